"""Titles' own constraint (being built)."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TitleLine:
    """One line."""

    max_words: int = 12

    def matcher(self, *args: object) -> Any:
        """The matcher."""
        raise NotImplementedError
