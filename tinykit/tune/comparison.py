"""A new adapter beside what there was before, on pairs that its training never saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tinykit.lab import metrics
from tinykit.lab.datasets import Case
from tinykit.progress import Progress, ProgressEvent
from tinykit.recipes import Recipe
from tinykit.registry import MODELS, get_model
from tinykit.session import TinySession
from tinykit.tune.pairs import Pair
from tinykit.tune.result import NEW

_UNTUNED = "plain"  # the recipe that does most for a model that was not trained for titles
_METRICS = ("valid", "words_3_7", "chrf", "none_ok", "invented")


def original_model(base: str | Path) -> str | Path:
    """The model without an adapter that a base stands for."""
    return get_model(base).chat_model or base


def compare(
    pairs: Sequence[Pair],
    adapter: Path,
    *,
    base: str | Path,
    recipe: Recipe,
    progress: bool | Callable[[ProgressEvent], None] | None = None,
    offline: bool | None = None,
) -> dict[str, metrics.Scores]:
    """Scores of the message's first words, the untuned model, the shipped adapter and the new one."""
    cases = [_case(pair, number) for number, pair in enumerate(pairs)]
    options: dict[str, Any] = {"progress": progress, "offline": offline, "lazy": True}
    sessions = {
        "first words": TinySession(recipe="first-words", **options),
        "base": TinySession(original_model(base), recipe=_UNTUNED, **options),
        **_shipped(base, options),
        NEW: TinySession(original_model(base), adapter=adapter, recipe=recipe, **options),
    }
    scores = {}
    with Progress(progress).stage(
        f"{get_model(base).key}: compare", total=len(cases) * len(sessions), unit="titles"
    ) as stage:
        for name, session in sessions.items():
            with session:
                found = []
                for case in cases:
                    found.append(session.title(case.message))
                    stage.advance(1)
            scores[name] = metrics.score(cases, found, metrics=_METRICS)
    return scores


def _shipped(base: str | Path, options: dict[str, Any]) -> dict[str, TinySession]:
    """The title model that tinykit has for this base, if it has one."""
    key = f"{get_model(original_model(base)).key}-titles"
    return {"shipped": TinySession(key, **options)} if key in MODELS else {}


def _case(pair: Pair, number: int) -> Case:
    return Case(
        id=str(number),
        message=pair.message,
        category=pair.category,
        language=pair.language,
        references=() if pair.title is None else (pair.title,),
        expect_none=pair.title is None,
    )
