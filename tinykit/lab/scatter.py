"""Points with intervals in two directions: what one gets against what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from tinykit.charts import Chart, figure, written

_WIDE, _TALL = 420, 240  # pixels of the plane
_LEFT, _TOP, _BELOW = 70, 24, 40
_LINE = 20
_CHARS, _LINES = 56, 14  # of the plane in text
_PLACES = ((7, -7, "start"), (-7, -7, "end"), (7, 16, "start"), (-7, 16, "end"))  # of a letter at its point


@dataclass(frozen=True)
class Value:
    """A number, and from where to where it may be."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class Point:
    """One thing in the plane; `told` are its numbers in words."""

    label: str
    x: Value
    y: Value
    told: str


@dataclass(frozen=True)
class Scatter(Chart):
    """Points with letters; what each letter is, and its numbers, stand below.

    Attributes:
        caption: What is against what.
        x_name, y_name: The axes, with units.
        points: What is shown; at most 26 have a letter of their own.
        notes: Sentences below.
        digits: Decimals at the ends of the axes, across and up.
    """

    caption: str
    x_name: str
    y_name: str
    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()
    digits: tuple[int, int] = (2, 1)

    def text(self) -> str:
        """The plane in characters, letters at the points, then a line for each."""
        grid = [[" "] * (_CHARS + 1) for _ in range(_LINES + 1)]
        for letter, point in self._lettered():
            row, column = self._cell(point)
            # where two are in one place, the later letter stands beside it
            free = [(abs(at - column), at) for at in range(_CHARS + 1) if grid[row][at] == " "]
            column = min(free, default=(0, column))[1]
            grid[row][column] = letter
        (_, right), (bottom, top) = self._x_ends(), self._y_ends()
        left = self._x_ends()[0]
        high, low = self._shown(top, 1), self._shown(bottom, 1)
        margin = max(len(high), len(low))
        names = [high, *[""] * (_LINES - 1), low]
        lines = [f"{name:>{margin}} |{''.join(row)}".rstrip() for name, row in zip(names, grid, strict=True)]
        ends = f"{self._shown(left, 0)}{self._shown(right, 0):>{_CHARS + 1 - len(self._shown(left, 0))}}"
        foot = [f"{'':{margin}} +{'-' * (_CHARS + 1)}", f"{'':{margin}}  {ends}"]
        axes = f"Across: {self.x_name}. Up: {self.y_name}."
        return "\n".join([self.caption, "", *lines, *foot, axes, "", *self._legend(), *self.notes])

    def html(self) -> str:
        """An SVG of the plane and of the lines below it."""
        below = _TOP + _TALL + _BELOW
        lines = [*self._legend(), *self.notes]
        bottom, right = _TOP + _TALL, _LEFT + _WIDE
        (low_x, high_x), (low_y, high_y) = self._x_ends(), self._y_ends()
        body = [
            f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="currentColor"/>',
            written(self.y_name, _LEFT, _TOP - 10),
            written(self._shown(high_y, 1), _LEFT - 6, _TOP + 8, "end"),
            written(self._shown(low_y, 1), _LEFT - 6, bottom, "end"),
            written(self._shown(low_x, 0), _LEFT, bottom + 18),
            written(self._shown(high_x, 0), right, bottom + 18, "end"),
            written(self.x_name, _LEFT + _WIDE / 2, bottom + 18, "middle"),
            *self._marks(),
            *(written(line, _LEFT, below + (at + 1) * _LINE - 6) for at, line in enumerate(lines)),
        ]
        height = below + _LINE * len(lines) + 4
        width = _LEFT + _WIDE + max([110, *(7 * len(line) - _WIDE for line in lines)])
        return figure(self.caption, self._spoken(), width, height, "".join(body))

    def _marks(self) -> list[str]:
        found: list[str] = []
        taken = [(self._at_x(p.x.middle), self._at_y(p.y.middle)) for p in self.points]
        for letter, point in self._lettered():
            x, y = self._at_x(point.x.middle), self._at_y(point.y.middle)
            found.append(_stroke(self._at_x(point.x.low), y, self._at_x(point.x.high), y))
            found.append(_stroke(x, self._at_y(point.y.low), x, self._at_y(point.y.high)))
            found.append(f'<circle cx="{x}" cy="{y}" r="4"/>')
            dx, dy, anchor = next(
                (place for place in _PLACES if _is_free(x + place[0], y + place[1] - 4, taken, (x, y))),
                _PLACES[0],
            )
            taken.append((x + dx, y + dy - 4))
            found.append(written(letter, x + dx, y + dy, anchor))
        return found

    def _lettered(self) -> list[tuple[str, Point]]:
        return [(_letter(at), point) for at, point in enumerate(self.points)]

    def _legend(self) -> list[str]:
        return [f"{letter}  {point.label}: {point.told}" for letter, point in self._lettered()]

    def _spoken(self) -> str:
        lines = "; ".join(f"{point.label}: {point.told}" for point in self.points)
        return f"{self.caption}. {lines}"

    def _x_ends(self) -> tuple[float, float]:
        """From 0, so that twice as long is twice as far."""
        return _ends([0.0, *(value for p in self.points for value in (p.x.low, p.x.high))])

    def _y_ends(self) -> tuple[float, float]:
        return _ends([value for p in self.points for value in (p.y.low, p.y.high)])

    def _at_x(self, value: float) -> float:
        return round(_LEFT + _WIDE * _share(value, self._x_ends()), 1)

    def _at_y(self, value: float) -> float:
        return round(_TOP + _TALL * (1 - _share(value, self._y_ends())), 1)

    def _cell(self, point: Point) -> tuple[int, int]:
        return (
            round(_LINES * (1 - _share(point.y.middle, self._y_ends()))),
            round(_CHARS * _share(point.x.middle, self._x_ends())),
        )

    def _shown(self, value: float, axis: int) -> str:
        return f"{value:,.{self.digits[axis]}f}"


def _letter(at: int) -> str:
    return chr(ord("A") + at) if at < 26 else "+"


def _ends(values: list[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if low < high else (low - 1, high + 1)


def _share(value: float, ends: tuple[float, float]) -> float:
    return (value - ends[0]) / (ends[1] - ends[0])


def _is_free(x: float, y: float, taken: list[tuple[float, float]], own: tuple[float, float]) -> bool:
    return not any(abs(x - other[0]) < 11 and abs(y - other[1]) < 13 for other in taken if other != own)


def _stroke(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="currentColor" stroke-opacity="0.6"/>'
