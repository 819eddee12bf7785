"""`%%tiny_eval`: titles of several recipes for the messages of a cell, side by side, with a few scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinykit.errors import OptionError
from tinykit.markup import Bundle, Table

if TYPE_CHECKING:
    from tinykit.events import ProgressEvent
    from tinykit.session import TinySession
    from tinykit.titling import Title

_METRICS = {"valid": "a title", "words_3_7": "3-7 words", "invented": "invented"}
_BASELINE = "first-words"


@dataclass(frozen=True)
class Comparison:
    """What recipes make of the same messages.

    Attributes:
        messages: The messages.
        titles: For each recipe a title for each message.
        scores: For each recipe and metric the mean in percent, over the messages where it applies.
    """

    messages: tuple[str, ...]
    titles: dict[str, tuple[Title, ...]]
    scores: dict[str, dict[str, float]]

    def table(self) -> Table:
        """Messages down, recipes across; below them the scores, of which no reference is needed."""
        rows = [
            (message, *(titles[at].text or "(no title)" for titles in self.titles.values()))
            for at, message in enumerate(self.messages)
        ]
        rows += [
            (f"{name}, %", *(_number(scores.get(metric)) for scores in self.scores.values()))
            for metric, name in _METRICS.items()
        ]
        caption = f"{len(self.messages)} messages, {len(self.titles)} recipes; for 'invented' less is better"
        return Table.of(caption, ("message", *self.titles), rows)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return self.table()._repr_mimebundle_()


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
) -> Comparison:
    """Title all messages by each recipe; `progress` hears how far it is.

    Raises:
        UnknownRecipeError: before anything is asked.
    """
    from tinykit.lab import datasets, metrics
    from tinykit.recipes import get_recipe
    from tinykit.titles import has_task

    chosen = {name: get_recipe(name) for name in recipes}
    cases = [
        datasets.Case(str(number), message, expect_none=not has_task(message))
        for number, message in enumerate(messages)
    ]
    titles = {
        name: tuple(session.title_results(messages, recipe=recipe, progress=progress))
        for name, recipe in chosen.items()
    }
    scores = {
        name: metrics.score(cases, [title.text for title in found], metrics=tuple(_METRICS)).overall
        for name, found in titles.items()
    }
    return Comparison(tuple(messages), titles, scores)
