"""What displays are made of: a plain text and its HTML twin, with nothing of a theme's own in them.

Text of models and people is escaped here, at the last step. HTML sets no color, so that it reads in every
theme; what a sign or a color would say is said in a word.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Bundle = tuple[dict[str, str], dict[str, Any]]  # data by mime type, metadata

_KEPT = "\n\t\u200c\u200d"  # lines and tabs; joiners, which some scripts and emoji are made with
_WRAP = "white-space: pre-wrap; overflow-wrap: anywhere"
_CELL = "text-align: {align}; vertical-align: top; white-space: pre-wrap; overflow-wrap: {wrap}"
_WORD_CHARS = 24  # longer words may be torn apart, so that a path does not make a table too wide
_SHORT_CHARS = 60  # a caption of so many is one line, also above a narrow table


def bundle(text: str, html_text: str, facts: Mapping[str, Any] | None = None) -> Bundle:
    """A display: text and HTML, and what differs from run to run as metadata, where no comparison looks."""
    return {"text/plain": text, "text/html": html_text}, {"tinykit": dict(facts)} if facts else {}


def visible(text: str) -> str:
    """Text without control and format characters, which a terminal or a page would obey; lines stay."""
    return "".join(char if char.isprintable() or char in _KEPT else "\ufffd" for char in text)


def block(text: str) -> str:
    """A text as HTML that keeps its lines and wraps."""
    return f'<div style="{_WRAP}">{html.escape(visible(text))}</div>'


def note(text: str) -> str:
    """A remark as HTML, smaller than what it is about."""
    return f"<div><small>{html.escape(visible(text))}</small></div>"


@dataclass(frozen=True)
class Table:
    """Rows of text under a header and a caption, as aligned text or as HTML.

    Attributes:
        caption: What the table shows.
        header: Names of the columns.
        rows: One text for each column.
        numeric: Columns whose text is right-aligned.
    """

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        caption: str,
        header: Sequence[str],
        rows: Sequence[Sequence[str]],
        numeric: Collection[int] = (),
    ) -> Table:
        """The same from any sequences."""
        return cls(caption, tuple(header), tuple(map(tuple, rows)), frozenset(numeric))

    def text(self) -> str:
        """The caption, then columns padded to their widest cell; a line break in a cell becomes a space."""
        lines = [[" ".join(visible(cell).split()) for cell in row] for row in (self.header, *self.rows)]
        widths = [max(_width(line[at]) for line in lines) for at in range(len(self.header))]
        shown = ["  ".join(self._padded(line, widths)).rstrip() for line in lines]
        return "\n".join([visible(self.caption), "", *shown])

    def _padded(self, line: Sequence[str], widths: Sequence[int]) -> list[str]:
        pads = [" " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)]
        return [
            pad + cell if at in self.numeric else cell + pad
            for at, (cell, pad) in enumerate(zip(line, pads, strict=True))
        ]

    def html(self) -> str:
        """A table with a caption, column headers, and the first cell of each row as its header."""
        head = "".join(self._cell("th", at, name, "col") for at, name in enumerate(self.header))
        body = "".join(
            "<tr>"
            + "".join(
                self._cell("td" if at else "th", at, cell, "" if at else "row") for at, cell in enumerate(row)
            )
            + "</tr>"
            for row in self.rows
        )
        line = "; white-space: nowrap" if len(self.caption) <= _SHORT_CHARS else ""
        return (
            f'<table><caption style="text-align: left{line}">{html.escape(visible(self.caption))}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )

    def _cell(self, tag: str, at: int, text: str, scope: str) -> str:
        is_long = any(len(word) > _WORD_CHARS for word in text.split())
        style = _CELL.format(
            align="right" if at in self.numeric else "left", wrap="anywhere" if is_long else "break-word"
        )
        scoped = f' scope="{scope}"' if scope else ""
        return f'<{tag}{scoped} style="{style}">{html.escape(visible(text))}</{tag}>'

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return bundle(self.text(), self.html())

    def __str__(self) -> str:
        return self.text()


def _width(text: str) -> int:
    """Columns that a text takes in a terminal: wide characters take two."""
    import unicodedata

    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
