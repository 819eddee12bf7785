"""Charts as HTML that follows the theme, each with a text twin that holds the same numbers.

They are drawn in the color of the text around them, and say nothing by color: marks are filled or hollow,
points have letters, and numbers stand beside what they measure.
"""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tinykit.markup import Bundle, bundle, visible

_TEXT_CHARS = 32  # of the longest bar
_ROW, _LABEL, _BAR, _VALUE = 22, 210, 300, 100  # pixels
_NOTE = 290  # pixels for numbers and a word beside an interval


class Chart(ABC):
    """What all charts have in common: two twins, and the one of them that a front end asks for."""

    @abstractmethod
    def text(self) -> str:
        """The chart in characters, with all of its numbers."""

    @abstractmethod
    def html(self) -> str:
        """The chart as a figure, in the color of the text around it."""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return bundle(self.text(), self.html())

    def __str__(self) -> str:
        return self.text()


@dataclass(frozen=True)
class Charts(Chart):
    """Several charts below each other."""

    charts: tuple[Chart, ...]

    def text(self) -> str:
        """All of them, with an empty line between."""
        return "\n\n".join(chart.text() for chart in self.charts)

    def html(self) -> str:
        """All of them."""
        return "\n".join(chart.html() for chart in self.charts)


@dataclass(frozen=True)
class Bars(Chart):
    """Labeled numbers from 0 on as bars.

    Attributes:
        caption: What they show, with the unit.
        bars: Labels and numbers.
        digits: Decimals that are shown.
    """

    caption: str
    bars: tuple[tuple[str, float], ...]
    digits: int = 0

    @classmethod
    def of(cls, caption: str, bars: Sequence[tuple[str, float]], digits: int = 0) -> Bars:
        """The same from any sequence."""
        return cls(caption, tuple(bars), digits)

    def text(self) -> str:
        """One line for each bar: label, bar, number."""
        labels = max((len(label) for label, _ in self.bars), default=0)
        lines = [
            f"{label.ljust(labels)}  {'#' * round(_TEXT_CHARS * self._share(value)):{_TEXT_CHARS}}  "
            f"{self._number(value)}"
            for label, value in self.bars
        ]
        return "\n".join([self.caption, "", *lines])

    def html(self) -> str:
        """An SVG in the color of the text around it; the numbers stand beside the bars."""
        width, height = _LABEL + _BAR + _VALUE, _ROW * len(self.bars)
        body = "".join(map(self._bar, range(len(self.bars))))
        return figure(self.caption, self._spoken(), width, height, body)

    def _bar(self, at: int) -> str:
        label, value = self.bars[at]
        top, length = at * _ROW, round(_BAR * self._share(value), 1)
        return (
            written(label, _LABEL - 8, top + 15, "end")
            + f'<rect x="{_LABEL}" y="{top + 4}" width="{length}" height="{_ROW - 8}" rx="2"/>'
            + f'<text x="{_LABEL + length + 6}" y="{top + 15}">{self._number(value)}</text>'
        )

    def _spoken(self) -> str:
        return f"{self.caption}: " + "; ".join(f"{name} {self._number(value)}" for name, value in self.bars)

    def _share(self, value: float) -> float:
        longest = max((number for _, number in self.bars), default=0.0)
        return max(0.0, value / longest) if longest > 0 else 0.0

    def _number(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


@dataclass(frozen=True)
class Interval:
    """One row of `Intervals`: a number, from where to where it may be, and a word about it.

    Attributes:
        is_sure: Whether its mark is filled; it is hollow else.
    """

    label: str
    low: float
    middle: float
    high: float
    note: str = ""
    is_sure: bool = False


@dataclass(frozen=True)
class Intervals(Chart):
    """Numbers with intervals, beside a line at 0.

    Attributes:
        caption: What they show, with the unit.
        rows: The numbers.
        digits: Decimals that are shown.
        legend: What a filled mark means.
    """

    caption: str
    rows: tuple[Interval, ...]
    digits: int = 1
    legend: str = ""

    def text(self) -> str:
        """One line for each row: label, `[--o--]` or `[--#--]` with `|` at 0, and the numbers."""
        labels = max((len(row.label) for row in self.rows), default=0)
        numbers = [self._numbers(row) for row in self.rows]
        widest = max(map(len, numbers), default=0)
        lines = [
            f"{row.label.ljust(labels)}  {self._strip(row)}  {told.ljust(widest)}  {row.note}".rstrip()
            for row, told in zip(self.rows, numbers, strict=True)
        ]
        low, high = self._ends()
        scale = f"From {self._signed(low)} to {self._signed(high)}; | is 0."
        key = f" o: not sure. #: {self.legend}." if self.legend else ""
        return "\n".join([self.caption, "", *lines, "", scale + key])

    def _strip(self, row: Interval) -> str:
        cells = [" "] * (_TEXT_CHARS + 1)
        left, right = self._cell(row.low), self._cell(row.high)
        cells[left : right + 1] = "-" * (right - left + 1)
        cells[self._cell(0.0)] = "|"
        cells[left], cells[right] = "[", "]"
        cells[self._cell(row.middle)] = "#" if row.is_sure else "o"
        return "".join(cells)

    def _cell(self, value: float) -> int:
        return round(_TEXT_CHARS * self._share(value))

    def html(self) -> str:
        """An SVG: a line with ends, and a circle that is filled or hollow."""
        height = _ROW * (len(self.rows) + 1)
        zero = self._x(0.0)
        body = [
            f'<line x1="{zero}" y1="0" x2="{zero}" y2="{height - _ROW + 4}" stroke="currentColor" '
            'stroke-dasharray="2 3"/>',
            *(self._row(at, row) for at, row in enumerate(self.rows)),
            *(
                written(self._signed(value), self._x(value), height - 6, anchor)
                for value, anchor in zip(self._ends(), ("start", "end"), strict=True)
            ),
            written("0", zero, height - 6, "middle") if self._has_room_for_zero() else "",
        ]
        return figure(self._captioned(), self._spoken(), _LABEL + _BAR + _NOTE, height, "".join(body))

    def _row(self, at: int, row: Interval) -> str:
        y = at * _ROW + 11
        left, middle, right = self._x(row.low), self._x(row.middle), self._x(row.high)
        ends = "".join(
            f'<line x1="{x}" y1="{y - 4}" x2="{x}" y2="{y + 4}" stroke="currentColor"/>'
            for x in (left, right)
        )
        line = f'<line x1="{left}" y1="{y}" x2="{right}" y2="{y}" stroke="currentColor"/>'
        # the stroke of a hollow mark would let the line through, so the line is cut out around it
        gap = 0 if row.is_sure else 5
        if gap and right - left > 2 * gap:
            line = "".join(
                f'<line x1="{a}" y1="{y}" x2="{b}" y2="{y}" stroke="currentColor"/>'
                for a, b in ((left, max(left, middle - gap)), (min(right, middle + gap), right))
            )
        mark = f'<circle cx="{middle}" cy="{y}" r="4.5" stroke="currentColor" stroke-width="1.5"'
        mark += "/>" if row.is_sure else ' fill="none"/>'
        told = f"{self._numbers(row)}  {row.note}".strip()
        label, numbers = (
            written(row.label, _LABEL - 8, y + 4, "end"),
            written(told, _LABEL + _BAR + 12, y + 4, "start"),
        )
        return label + ends + line + mark + numbers

    def _ends(self) -> tuple[float, float]:
        values = [value for row in self.rows for value in (row.low, row.middle, row.high)] + [0.0]
        low, high = min(values), max(values)
        return (low, high) if low < high else (-1.0, 1.0)

    def _share(self, value: float) -> float:
        low, high = self._ends()
        return (value - low) / (high - low)

    def _x(self, value: float) -> float:
        return round(_LABEL + _BAR * self._share(value), 1)

    def _has_room_for_zero(self) -> bool:
        return 0.15 < self._share(0.0) < 0.85

    def _captioned(self) -> str:
        return f"{self.caption}. Filled: {self.legend}." if self.legend else self.caption

    def _spoken(self) -> str:
        rows = "; ".join(f"{row.label} {self._numbers(row)} {row.note}".strip() for row in self.rows)
        return f"{self.caption}: {rows}"

    def _numbers(self, row: Interval) -> str:
        return f"{self._signed(row.middle)} ({self._signed(row.low)} to {self._signed(row.high)})"

    def _signed(self, value: float) -> str:
        shown = f"{value:+,.{self.digits}f}"
        return shown[1:] if not float(shown.replace(",", "")) else shown


@dataclass(frozen=True)
class Histograms(Chart):
    """How values spread: bins in common, a count in each for every row.

    Attributes:
        caption: What was counted.
        bins: Names of the bins.
        rows: Labels and counts, as many as bins.
    """

    caption: str
    bins: tuple[str, ...]
    rows: tuple[tuple[str, tuple[int, ...]], ...]

    def text(self) -> str:
        """Bins down, rows across, with bars and counts."""
        chars, digits = 12, len(str(self._most()))
        width = chars + digits + 1
        names = max(map(len, self.bins), default=0)
        labels = [label for label, _ in self.rows]
        widths = [max(width, len(label)) for label in labels]
        head = "  ".join(label.ljust(size) for label, size in zip(labels, widths, strict=True))
        lines = [f"{'':{names}}  {head}".rstrip()]
        for at, name in enumerate(self.bins):
            cells = [
                f"{counts[at]:{digits}} {'#' * self._length(counts[at], chars)}".ljust(size)
                for (_, counts), size in zip(self.rows, widths, strict=True)
            ]
            lines.append(f"{name:>{names}}  {'  '.join(cells)}".rstrip())
        return "\n".join([self.caption, "", *lines])

    def html(self) -> str:
        """One strip of columns for each row, the counts on top, the bins named below."""
        wide, tall, strip = 46, 40, 78
        width, height = wide * len(self.bins), strip * len(self.rows) + 4
        parts = []
        for at, (label, counts) in enumerate(self.rows):
            base = at * strip + tall + 20
            parts.append(written(label, _LABEL - 8, base - 8, "end"))
            parts.append(
                f'<line x1="{_LABEL}" y1="{base}" x2="{_LABEL + width}" y2="{base}" stroke="currentColor"/>'
            )
            for column, (name, count) in enumerate(zip(self.bins, counts, strict=True)):
                x, size = _LABEL + column * wide, tall * count / max(1, self._most())
                parts.append(
                    f'<rect x="{x + 4}" y="{base - size:.1f}" width="{wide - 8}" height="{size:.1f}"/>'
                )
                parts.append(written(str(count), x + wide / 2, round(base - size - 3, 1), "middle"))
                parts.append(written(name, x + wide / 2, base + 13, "middle", size=10))
        return figure(self.caption, self._spoken(), _LABEL + width, height, "".join(parts))

    def _most(self) -> int:
        return max((count for _, counts in self.rows for count in counts), default=0)

    def _length(self, count: int, chars: int) -> int:
        return max(1, round(chars * count / self._most())) if count else 0

    def _spoken(self) -> str:
        rows = (
            f"{label}: " + ", ".join(f"{name} {count}" for name, count in zip(self.bins, counts, strict=True))
            for label, counts in self.rows
        )
        return f"{self.caption}. {'; '.join(rows)}"


def figure(caption: str, spoken: str, width: float, height: float, body: str) -> str:
    """An SVG with a caption and a text for those who hear it; it shrinks where there is no room."""
    return (
        f'<figure style="margin: 0"><figcaption>{html.escape(visible(caption))}</figcaption>'
        f'<svg role="img" aria-label="{html.escape(visible(spoken))}" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" style="max-width: 100%; height: auto" fill="currentColor" '
        f'font-size="13">{body}</svg></figure>'
    )


def written(text: str, x: float, y: float, anchor: str = "start", *, size: int | None = None) -> str:
    """A text in an SVG."""
    smaller = f' font-size="{size}"' if size else ""
    shown = html.escape(visible(text))
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{smaller}>{shown}</text>'
