"""Bars as HTML that follows the theme, with a text twin that holds the same numbers."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from tinykit.markup import Bundle, bundle, visible

_TEXT_CHARS = 32  # of the longest bar
_ROW, _LABEL, _BAR, _VALUE = 22, 210, 300, 100  # pixels


@dataclass(frozen=True)
class Bars:
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
        return (
            f'<figure style="margin: 0"><figcaption>{html.escape(self.caption)}</figcaption>'
            f'<svg role="img" aria-label="{html.escape(self._spoken())}" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" style="max-width: 100%; height: auto" fill="currentColor" '
            f'font-size="13">{"".join(map(self._bar, range(len(self.bars))))}</svg></figure>'
        )

    def _bar(self, at: int) -> str:
        label, value = self.bars[at]
        top, length = at * _ROW, round(_BAR * self._share(value), 1)
        return (
            f'<text x="{_LABEL - 8}" y="{top + 15}" text-anchor="end">{html.escape(visible(label))}</text>'
            f'<rect x="{_LABEL}" y="{top + 4}" width="{length}" height="{_ROW - 8}" rx="2"/>'
            f'<text x="{_LABEL + length + 6}" y="{top + 15}">{self._number(value)}</text>'
        )

    def _spoken(self) -> str:
        return f"{self.caption}: " + "; ".join(f"{name} {self._number(value)}" for name, value in self.bars)

    def _share(self, value: float) -> float:
        longest = max((number for _, number in self.bars), default=0.0)
        return max(0.0, value / longest) if longest > 0 else 0.0

    def _number(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return bundle(self.text(), self.html())

    def __str__(self) -> str:
        return self.text()
