"""`%%tiny_eval`: titles of several recipes for the messages of a cell, side by side, with a few scores.

A run of the lab, so that titles come from its cache, a failure is a row, and Stop leaves what was made.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tinykit.errors import OptionError
from tinykit.markup import Bundle, Table
from tinykit.plurals import counted

if TYPE_CHECKING:
    from tinykit.events import ProgressEvent
    from tinykit.lab.local import Runner
    from tinykit.lab.plan import Target
    from tinykit.lab.rows import Row
    from tinykit.session import TinySession

_METRICS = {"valid": "a title", "words_3_7": "3-7 words", "invented": "invented"}
_BASELINE = "first-words"


@dataclass(frozen=True)
class Comparison:
    """What recipes make of the same messages.

    Attributes:
        messages: The messages.
        rows: For each recipe a row of the lab for each message; None where it was not made.
        scores: For each recipe and metric the mean in percent, over the messages where it applies.
        was_interrupted: Whether Ctrl-C ended it with what there was.
    """

    messages: tuple[str, ...]
    rows: dict[str, tuple[Row | None, ...]]
    scores: dict[str, dict[str, float]]
    was_interrupted: bool = False

    @property
    def titles(self) -> dict[str, tuple[str | None, ...]]:
        """For each recipe a title for each message, None where there is none."""
        return {name: tuple(row.title if row else None for row in rows) for name, rows in self.rows.items()}

    def table(self, *, stats: bool = False) -> Table:
        """Messages down, recipes across; below them the scores, of which no reference is needed.

        Args:
            stats: Also say how much was written, and what an earlier run had made already.
        """
        from tinykit.views import short

        lines = [
            (short(message), *(_cell(rows[at]) for rows in self.rows.values()))
            for at, message in enumerate(self.messages)
        ]
        lines += [
            (f"{name}, %", *(_number(scores.get(metric)) for scores in self.scores.values()))
            for metric, name in _METRICS.items()
        ]
        if stats:
            found = [[row for row in rows if row] for rows in self.rows.values()]
            lines += [
                ("tokens written", *(str(sum(row.completion_tokens for row in rows)) for rows in found)),
                ("from the cache", *(str(sum(row.cached for row in rows)) for rows in found)),
            ]
        size = f"{counted(len(self.messages), 'message')}, {counted(len(self.rows), 'recipe')}"
        caption = f"{size}; for 'invented' less is better"
        if missing := sum(row is None for rows in self.rows.values() for row in rows):
            caption += f"; {counted(missing, 'title')} {'was' if missing == 1 else 'were'} not made"
        return Table.of(caption, ("message", *self.rows), lines)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return self.table()._repr_mimebundle_()


def _cell(row: Row | None) -> str:
    if row is None:
        return "(not made)"
    return f"(failed: {row.error})" if row.status == "failed" else row.title or "(no title)"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def lines(cell: str) -> list[str]:
    """The messages of a cell, one a line; blank lines do not count."""
    return [line.strip() for line in cell.splitlines() if line.strip()]


def recipe_names(given: object, default: str) -> list[str]:
    """The recipes of ``-r a,b``; without it the default one and the titles without a model.

    Raises:
        OptionError: not names with commas between them.
    """
    if given is None:
        return list(dict.fromkeys([default, _BASELINE]))
    names = given.split(",") if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(
        isinstance(name, str) and name.strip() for name in names
    ):
        raise OptionError(
            f"--recipe must be names with commas between them, not {given!r:.80}.", name="recipe", value=given
        )
    return list(dict.fromkeys(name.strip() for name in names))


def compare(
    session: TinySession,
    messages: Sequence[str],
    recipes: Sequence[str],
    progress: Callable[[ProgressEvent], None] | bool | None = None,
    *,
    out: str | Path | None = None,
    cache: bool = True,
) -> Comparison:
    """What `lab.run` makes of the messages by each recipe, or as far as it came until Ctrl-C.

    Args:
        session: What makes the titles; it stays open.
        messages: The messages.
        recipes: The recipes' names.
        progress: Hears how far it is.
        out: Folder to keep the run in; it is not kept without one.
        cache: Whether titles that an earlier run has made count.

    Raises:
        UnknownRecipeError: before anything is asked.
        OptionError: the folder holds another run.
    """
    from tinykit.lab import datasets, running
    from tinykit.titles import has_task

    cases = [
        datasets.Case(str(number), message, expect_none=not has_task(message))
        for number, message in enumerate(messages)
    ]
    with tempfile.TemporaryDirectory() as folder:
        run = running.run(
            cases,
            recipes,
            _target(session),
            out=Path(folder) / "run" if out is None else out,
            baseline=False,
            cache=cache,
            runner=_runner(session),
            progress=progress,
        )
    rows = {name: tuple((*run.at(name, case.id), None)[0] for case in cases) for name in run.variants}
    means = run.scores(tuple(_METRICS))
    scores = {
        name: {metric: mean for metric in _METRICS if (mean := means.mean(name, metric)) is not None}
        for name in run.variants
    }
    return Comparison(tuple(messages), rows, scores, run.was_interrupted)


def _target(session: TinySession) -> Target:
    """What the lab calls the session's model."""
    from tinykit.lab.plan import Target

    model, adapter = session.asked_for
    options = session.load_options
    return Target(
        model, adapter, **{name: options[name] for name in ("device", "backend", "dtype", "threads")}
    )


def _runner(session: TinySession) -> Runner:
    """A runner that works with a session of somebody else, and leaves it open."""
    from tinykit.lab.local import LocalRunner

    class InUse(LocalRunner):
        def close(self) -> None:
            self._session = self._target = None

    return InUse(opener=lambda target: session)
