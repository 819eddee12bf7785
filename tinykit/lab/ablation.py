"""A recipe with one of its lines left out at a time: which carries the quality, which only costs tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from tinykit.lab.differences import Difference
from tinykit.lab.differences import rank as rank_variants
from tinykit.lab.plan import Target
from tinykit.lab.running import run as make_run
from tinykit.lab.runs import Run
from tinykit.lab.scoring import Named
from tinykit.lab.tables import Table, Tabular
from tinykit.recipes import Recipe, get_recipe

_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+")
_METRICS = ("valid", "keywords", "chrf")


@dataclass(frozen=True)
class Piece:
    """A part of a recipe that can be left out, and the recipe without it."""

    part: str
    text: str
    without: Recipe


@dataclass(frozen=True, repr=False)
class Ablation(Tabular):
    """The whole recipe against itself without each of its pieces."""

    run: Run
    base: str
    pieces: tuple[Piece, ...]
    differences: dict[str, tuple[Difference, ...]]

    def table(self) -> Table:
        """Pieces down; what leaving them out changes."""
        metrics = list(dict.fromkeys(d.metric.name for found in self.differences.values() for d in found))
        whole = self._prompt_tokens(self.base)
        rows = []
        for piece in self.pieces:
            found = {d.metric.name: d for d in self.differences.get(piece.without.name, ())}
            saved = f"{whole - self._prompt_tokens(piece.without.name):.1f}"
            changes = [f"{found[name].mean:+.1f}" if name in found else "-" for name in metrics]
            rows.append([f"{piece.part}: {piece.text}", saved, *changes, _verdict(list(found.values()))])
        columns = ["left out", "tokens saved", *metrics, "verdict"]
        notes = ["Changes are in points, without the piece minus with it; verdicts as in lab.diff."]
        return Table(f"{self.base} without one piece at a time", columns, rows, notes)

    def _prompt_tokens(self, variant: str) -> float:
        counts = [row.prompt_tokens for row in self.run.of(variant) if row.asked_model]
        return fmean(counts) if counts else 0.0


def ablate(
    recipe: str | Path | Recipe,
    cases: Any,
    *,
    model: str | Path | Target | None = None,
    metrics: Named | None = None,
    **options: Any,
) -> Ablation:
    """Run a recipe as it is and without each of its pieces.

    Args:
        recipe: The recipe; a model must be asked by it.
        cases: As for `lab.run`.
        model: What is asked.
        metrics: What is compared; `valid`, `keywords` and `chrf` by default.
        options: As for `lab.run`, such as `out`.
    """
    whole = get_recipe(recipe)
    found = pieces(whole)
    recipes = [whole, *(piece.without for piece in found)]
    run = make_run(cases, recipes, [Target() if model is None else model], **options)
    ranking = rank_variants(run, whole.name, metrics=metrics if metrics is not None else _METRICS)
    return Ablation(run, whole.name, found, dict(ranking.differences))


def pieces(recipe: Recipe) -> tuple[Piece, ...]:
    """The lines of a recipe's texts that can be left out; of a text of one line its sentences."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    for part in ("system", "template"):
        text = getattr(recipe, part)
        for before, piece, after in _splits(text):
            if "{message}" not in piece:
                rest = f"{before}{after}".strip("\n" if part == "template" else None)
                found.append((part, piece.strip(), {part: rest}))
    if recipe.prefill.strip():
        found.append(("prefill", recipe.prefill.strip(), {"prefill": ""}))
    return tuple(
        Piece(part, text, replace(recipe, name=f"{recipe.name} -{number}", **change))
        for number, (part, text, change) in enumerate(found, start=1)
    )


def _splits(text: str) -> list[tuple[str, str, str]]:
    """What comes before, the piece itself, what comes after, for each piece."""
    if len([line for line in text.split("\n") if line.strip()]) > 1:
        parts = text.splitlines(keepends=True)
    else:
        ends = [match.end() for match in _SENTENCE_END.finditer(text)]
        parts = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    return [
        ("".join(parts[:at]), part, "".join(parts[at + 1 :])) for at, part in enumerate(parts) if part.strip()
    ]


def _verdict(found: list[Difference]) -> str:
    worse = [d.metric.name for d in found if d.winner == d.a]
    better = [d.metric.name for d in found if d.winner == d.b]
    told = [f"carries {', '.join(worse)}"] if worse else []
    told += [f"harms {', '.join(better)}"] if better else []
    if told:
        return "; ".join(told)
    return "no difference" if all(d.better == d.worse == 0 for d in found) else "undecided"
