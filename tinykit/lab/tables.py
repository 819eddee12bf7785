"""Tables that say the same as text, HTML, Markdown and CSV.

The HTML has captions and header scopes and no colors of its own: it looks like its page, light or dark.
Whatever a model wrote is escaped here, at the last step, and nowhere else.
"""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinykit.lab.marking import NOTE, Marked, marked_pair
from tinykit.scripts import is_unspaced

_TEXT_CELL = 48  # characters of a cell in text; more go to further lines
_MARKDOWN = str.maketrans({char: f"\\{char}" for char in "\\`*_{}[]<>|#~!"})
_STYLE = (
    "border-collapse:collapse;text-align:left;font-variant-numeric:tabular-nums",
    "border-bottom:1px solid currentColor;padding:0.2em 0.8em;vertical-align:top;overflow-wrap:anywhere;"
    "max-width:32em;white-space:pre-wrap",
)


@dataclass(frozen=True)
class Table:
    """Cells with headers, a caption, and notes below.

    Attributes:
        caption: What the table shows.
        columns: Headers of the columns; the first one is that of the rows' names.
        rows: Texts, as many as columns; the first one names the row.
        notes: Sentences that are shown below it.
        is_text: Whether the cells are texts and not numbers, which are aligned to the right.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    is_text: bool = False

    def __str__(self) -> str:
        body = aligned([self.columns, *self.rows], is_text=self.is_text)
        return "\n".join([self.caption, "", *body, *(["", *self.notes] if self.notes else [])])

    def to_html(self) -> str:
        """As a table element, with notes below."""
        head = "".join(f'<th scope="col" style="{_STYLE[1]}">{_escaped(name)}</th>' for name in self.columns)
        body = "\n".join(f"<tr>{self._html_row(row)}</tr>" for row in self.rows)
        notes = "".join(f"<p>{_escaped(note)}</p>" for note in self.notes)
        caption = f'<caption style="text-align:left">{_escaped(self.caption)}</caption>'
        return (
            f'<table style="{_STYLE[0]}">{caption}\n<thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}\n</tbody></table>{notes}"
        )

    def _html_row(self, row: Sequence[str]) -> str:
        side = "" if self.is_text else ";text-align:right"
        first = f'<th scope="row" style="{_STYLE[1]}">{_escaped(row[0])}</th>'
        rest = "".join(f'<td style="{_STYLE[1]}{side}">{_cell_html(cell)}</td>' for cell in row[1:])
        return first + rest

    def to_markdown(self) -> str:
        """As a table of GitHub's Markdown, its caption in front."""
        line = "|" + "|".join("---" if self.is_text or at == 0 else "---:" for at in range(len(self.columns)))
        rows = ["| " + " | ".join(map(markdown, row)) + " |" for row in (self.columns, *self.rows)]
        notes = [f"\n{markdown(note)}" for note in self.notes]
        return "\n".join([f"**{markdown(self.caption)}**", "", rows[0], f"{line}|", *rows[1:], *notes]) + "\n"

    def to_csv(self) -> str:
        """As comma-separated values, without caption, notes and marks."""
        file = io.StringIO()
        rows = [[cell.unmarked if isinstance(cell, Marked) else cell for cell in row] for row in self.rows]
        csv.writer(file, lineterminator="\n").writerows([self.columns, *rows])
        return file.getvalue()

    def _repr_html_(self) -> str:
        return self.to_html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows where it shows no HTML."""
        printer.text(str(self))


class Tabular:
    """What is shown as its table: results that have a `table()`.

    A dataclass of this kind is made with `repr=False`: IPython prefers a `__repr__` of the class itself to
    what is inherited.
    """

    def table(self) -> Table:
        """All of it, for people."""
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.table().to_html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def changes_table(
    caption: str,
    columns: Sequence[str],
    changes: Sequence[tuple[str, str | None, str | None]],
    notes: Sequence[str] = (),
) -> Table:
    """Names with two titles each; words that only one of them has are marked."""
    rows = [
        [name, *(marked_pair(a, b) if a and b else (a or "(none)", b or "(none)"))] for name, a, b in changes
    ]
    told = [NOTE] if any(isinstance(cell, Marked) for row in rows for cell in row) else []
    return Table(caption, columns, rows, [*told, *notes], is_text=True)


def markdown(text: str) -> str:
    """A text as it stands, in Markdown and inside a table."""
    return " ".join(text.split()).translate(_MARKDOWN)


def _cell_html(cell: str) -> str:
    return _encodable(cell.to_html()) if isinstance(cell, Marked) else _escaped(cell)


def _escaped(text: str) -> str:
    return _encodable(html.escape(text))


def _encodable(text: str) -> str:
    """Lone surrogates, which have no bytes in UTF-8, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def aligned(lines: Sequence[Sequence[str]], *, is_text: bool = False) -> list[str]:
    """Lines of cells as lines of text; numbers to the right, but for the first column."""
    cells = [[_wrapped(cell) for cell in line] for line in lines]
    widths = [max(width(part) for line in cells for part in line[at]) for at in range(len(lines[0]))]
    found = []
    for line in cells:
        for row in range(max(map(len, line))):
            parts = [
                _padded(cell[row] if row < len(cell) else "", widths[at], is_text or at == 0)
                for at, cell in enumerate(line)
            ]
            found.append("  ".join(parts).rstrip())
    return found


def _padded(text: str, wanted: int, is_left: bool) -> str:
    pad = " " * (wanted - width(text))
    return text + pad if is_left else pad + text


def _wrapped(cell: str) -> list[str]:
    """A cell's lines, none wider than may be; control characters, which a terminal would obey, are gone."""
    clean = "".join(char if char.isprintable() else " " for char in cell.replace("\n", " "))
    lines = [""]
    for word in clean.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if width(joined) <= _TEXT_CELL or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(word)
    return [part for line in lines for part in _cut(line)]


def _cut(line: str) -> list[str]:
    """A word that is wider than a cell, in pieces."""
    pieces = [""]
    for char in line:
        if width(pieces[-1] + char) > _TEXT_CELL:
            pieces.append("")
        pieces[-1] += char
    return pieces


def width(text: str) -> int:
    """Columns of a terminal that a text takes."""
    return sum(2 if is_unspaced(char) else 1 for char in text)
