"""The rating view: a message, two titles whose makers are not shown, and a key or button for each answer."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from html import escape
from types import ModuleType
from typing import Any, Protocol

from tinykit.markup import visible
from tinykit.widgets.view import FAINT, LINE, View, button, line_of, status_html

_WRAP = "white-space: pre-wrap; overflow-wrap: anywhere"
_CARD = f"flex: 1 1 15em; border: {LINE}; padding: 4px 10px"
_MESSAGE = (
    f"{_WRAP}; max-height: 16em; overflow: auto; border-left: 3px solid currentColor; padding: 0 10px; "
    "margin: 6px 0"
)
_BUTTONS: Mapping[str, tuple[str, str]] = {
    "1": ("1 is better", "The first title is better"),
    "2": ("2 is better", "The second title is better"),
    "0": ("0 equal", "Both are equally good"),
    "x": ("x both bad", "Neither title will do"),
    "s": ("s skip", "Say nothing about this pair"),
    "u": ("u undo", "Take back the last answer"),
}


class Shown(Protocol):
    """What is shown of a question."""

    @property
    def message(self) -> str:
        """The message that the titles are for."""

    @property
    def left(self) -> str:
        """The first title."""

    @property
    def right(self) -> str:
        """The second title."""


class Rated(Protocol):
    """What can be rated: `tinykit.lab.Rating`, or something of your own."""

    @property
    def question(self) -> Shown | None:
        """What is to be answered now; None at the end."""

    @property
    def status(self) -> str:
        """How far it is."""

    def press(self, key: str) -> bool:
        """Answer by a key: 1, 2, 0, x, s, u; whether it counted."""

    def text(self) -> str:
        """All of it as plain text."""


class RatingView(View):
    """Asks which of two titles is better; by keys while its field has the focus, or by buttons.

    Args:
        rating: What to ask and where to put the answers, such as ``lab.rate(run, "titles", "plain")``.
    """

    _purpose = "the rating view"

    def __init__(self, rating: Rated) -> None:
        super().__init__()
        self._rating = rating

    def press(self, key: str) -> bool:
        """Answer by a key, and show what comes next; whether it counted."""
        with self.lock:
            done = self._rating.press(key)
            if done:
                self._draw()
            return done

    def text(self) -> str:
        """The question and how far it is."""
        return self._rating.text()

    def _build(self, widgets: ModuleType) -> Any:
        self.keys = widgets.Text(
            description="Keys",
            placeholder="1 2 0 x s u",
            tooltip="1 or 2 is better, 0 equally good, x both bad, s skip, u undo",
            continuous_update=True,
            layout=widgets.Layout(width="14em"),
        )
        self.keys.observe(self._typed, names="value")
        self.buttons = {
            key: button(widgets, text, tooltip, partial(self._clicked, key))
            for key, (text, tooltip) in _BUTTONS.items()
        }
        self.status, self.pair = widgets.HTML(), widgets.HTML()
        self._draw()
        return widgets.VBox(
            [self.status, self.pair, line_of(widgets, self.keys, *self.buttons.values())],
            layout=widgets.Layout(width="100%"),
        )

    def _typed(self, change: Any) -> None:
        """A key in the field, which is emptied again: only the last one is meant for what is shown."""
        key = str(change["new"]).strip().lower()[-1:]
        if change["new"]:
            if key:
                self.press(key)
            self.keys.value = ""

    def _clicked(self, key: str) -> None:
        self.press(key)
        # with the focus on a button a key would be a command of the notebook: x cuts the cell
        self.keys.focus()

    def _draw(self) -> None:
        if hasattr(self, "pair"):
            self.status.value = status_html(self._rating.status)
            self.pair.value = _question_html(self._rating.question)


def _question_html(question: Shown | None) -> str:
    if question is None:
        return f'<div role="status" style="{FAINT}">Nothing is left to rate.</div>'
    cards = _card_html("1", question.left) + _card_html("2", question.right)
    return (
        '<div aria-live="polite" style="line-height: 1.4">'
        f'<div role="group" aria-label="Message" tabindex="0" style="{_MESSAGE}">'
        f"{_safe(question.message)}</div>"
        f'<div style="display: flex; flex-wrap: wrap; gap: 8px">{cards}</div></div>'
    )


def _card_html(number: str, title: str) -> str:
    return (
        f'<div role="group" aria-label="Title {number}" style="{_CARD}"><div style="{FAINT}">{number}</div>'
        f'<div style="font-weight: 600; {_WRAP}">{_safe(title)}</div></div>'
    )


def _safe(text: str) -> str:
    return escape(visible(text))
