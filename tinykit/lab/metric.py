"""What a metric is: a function with what is known about its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tinykit.lab.datasets import Case

Of = Literal["title", "row", "set"]
Better = Literal["high", "low", ""]


@dataclass(frozen=True)
class Metric:
    """A named measure of titles; called with a case and a title it gives the value.

    Attributes:
        name: What its column is called.
        function: Gives a number, a bool, a dict of such, or None where it does not apply. It gets, as `of`
            says, a case and its title (``title``), a case, its row and the recipe (``row``), or all cases and
            all titles of one variant (``set``), and then returns a list with a value for each.
        of: What it measures.
        better: Whether higher or lower values are better; empty if neither is.
        unit: ``%`` for values from 0 to 1, which are shown as percent; else what the number counts.
        help: One sentence for people.
        is_standard: Whether it is among those that are computed if none are named.
    """

    name: str
    function: Callable[..., Any]
    of: Of = "title"
    better: Better = "high"
    unit: str = "%"
    help: str = ""
    is_standard: bool = False

    def __call__(self, case: Case, title: str | None) -> float | None:
        """The value of one title."""
        value = self.function(case, title)
        return None if value is None else float(value)

    @property
    def scale(self) -> float:
        """What a value is multiplied by to be shown."""
        return 100.0 if self.unit == "%" else 1.0
