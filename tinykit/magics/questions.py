"""Lines such as `%title why is it slow?`, which IPython takes for a plea for help about `slow`.

Its rule is that a line that ends with a question mark asks for help. For the magics whose text is prose it
is a question for the model. `%title?` alone still shows the help.
"""

from __future__ import annotations

from typing import Any

from IPython.core.inputtransformer2 import (
    HelpEnd,
    TokenTransformBase,
    assemble_continued_line,
    find_end_of_continued_line,
)

_NAMES = ("title", "tiny")


class Question(TokenTransformBase):  # type: ignore[misc]
    """A line magic of ours, also one that is assigned, whose text ends with a question mark."""

    priority = HelpEnd.priority - 1

    def __init__(self, start: tuple[int, int], percent: tuple[int, int]) -> None:
        super().__init__(start)
        self._percent_line, self._percent_column = percent[0] - 1, percent[1]

    @classmethod
    def find(cls, tokens_by_line: list[list[Any]]) -> Question | None:
        """The first such line of a cell."""
        for line in tokens_by_line:
            if len(line) > 2 and line[-2].string == "?":
                words = [token for token in line if token.string.strip()]
                texts = [token.string for token in words]
                at = 0 if texts[:1] == ["%"] else texts.index("=") + 1 if "=" in texts else len(texts)
                if texts[at : at + 1] == ["%"] and len(texts) > at + 2 and texts[at + 1] in _NAMES:
                    if texts[at + 2] == "?":
                        continue
                    return cls(words[0].start, words[at].start)
        return None

    def transform(self, lines: list[str]) -> list[str]:
        """The cell with the call of the magic in place of the line."""
        first, column = self._percent_line, self._percent_column
        last = find_end_of_continued_line(lines, first)
        name, _, text = assemble_continued_line(lines, (first, column), last)[1:].partition(" ")
        call = f"{lines[first][:column]}get_ipython().run_line_magic({name!r}, {text!r})\n"
        return [*lines[:first], call, *lines[last + 1 :]]
