"""What a training gave: the adapter's folder, and how its titles compare."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tinykit.lab.metrics import Scores
from tinykit.plurals import counted
from tinykit.tune.options import Check

NEW = "new"


@dataclass(frozen=True, eq=False)
class TuneResult:
    """A trained adapter.

    Attributes:
        folder: The adapter, for ``TinySession(base, adapter=folder)`` and for `peft`.
        base: The model to use it with.
        recipe: Name of the recipe it was trained for, which is in the folder too.
        scores: For each way to make titles, on pairs that the training never saw: the first words of the
            message, the base, the adapter that tinykit ships, and the new one. Empty if nothing was kept
            out, or if the training or the comparison was stopped.
        pairs: Pairs that were trained on.
        left_out: Rows that were not, by reason.
        steps: Steps that were taken.
        seconds: Training time.
        history: The checks on the way.
        stopped: Whether Ctrl-C ended the training before its time.
    """

    folder: Path
    base: str
    recipe: str
    pairs: int
    steps: int
    seconds: float
    left_out: Mapping[str, int] = field(default_factory=dict)
    scores: Mapping[str, Scores] = field(default_factory=dict)
    history: Sequence[Check] = ()
    stopped: bool = False

    def table(self) -> str:
        """The scores as aligned text, one row for each way to make titles; in percent."""
        if not self.scores:
            return "Not scored."
        metrics = list(dict.fromkeys(name for scores in self.scores.values() for name in scores.overall))
        lines = [["", "n", *metrics]]
        for name, scores in self.scores.items():
            values = (scores.overall.get(metric) for metric in metrics)
            cells = ["-" if value is None else f"{value:.1f}" for value in values]
            lines.append([name, str(len(scores.rows)), *cells])
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        return "\n".join(
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
            for line in lines
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "folder": str(self.folder),
            "base": self.base,
            "recipe": self.recipe,
            "pairs": self.pairs,
            "left_out": dict(self.left_out),
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "stopped": self.stopped,
            "scores": {name: scores.to_dict() for name, scores in self.scores.items()},
            "history": [asdict(check) for check in self.history],
        }

    def save(self, path: Path) -> None:
        """Write everything but the folder's place as JSON."""
        values = {name: value for name, value in self.to_dict().items() if name != "folder"}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def __str__(self) -> str:
        ended = ", stopped before its time" if self.stopped else ""
        left_out = "".join(f", {count} {reason} left out" for reason, count in self.left_out.items())
        return f"{self.folder}: {self._work} in {self.seconds / 60:.1f} min{ended}{left_out}\n{self.table()}"

    def __repr__(self) -> str:
        chrf = self.scores[NEW].overall.get("chrf") if NEW in self.scores else None
        score = "" if chrf is None else f", chrF {chrf:.1f}"
        return f"<TuneResult {str(self.folder)!r}: {self._work}{score}>"

    @property
    def _work(self) -> str:
        return f"{counted(self.steps, 'step')} on {counted(self.pairs, 'pair')}"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows: the scores, without times."""
        printer.text(f"Adapter for {self.base}, trained on {counted(self.pairs, 'pair')}\n{self.table()}")
