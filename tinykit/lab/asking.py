"""Rating in a terminal: the message, two titles, and a key."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol

from tinykit.lab.rating import KEYS, Question
from tinykit.markup import visible

_QUIT = ("q", "\x03", "\x04", "")  # also Ctrl-C and Ctrl-D where keys come raw, and the end of a pipe
_MESSAGE_CHARS = 1500
_HELP = ", ".join([*(f"{key} {name}" for key, (_, name) in KEYS.items()), "q quit"])


class Asked(Protocol):
    """What can be asked: a `Rating`."""

    @property
    def question(self) -> Question | None:
        """What is to be answered now."""

    @property
    def status(self) -> str:
        """How far it is."""

    def press(self, key: str, *, guard_s: float | None = None) -> bool:
        """Answer by a key; what comes sooner than `guard_s` after another one is a slip."""


def ask(
    rating: Asked, *, read_key: Callable[[], str] | None = None, write: Callable[[str], object] | None = None
) -> None:
    """Ask until all is answered or ``q`` is pressed; what was answered is kept in either case.

    Args:
        rating: What to ask.
        read_key: Gives a key; by default one of the terminal, or the next character of a pipe.
        write: Shows a text; by default prints it.
    """
    read, show = read_key or terminal_key, write or _print
    guard_s = 0.0 if read_key is None and not sys.stdin.isatty() else None  # a pipe does not slip
    while (question := rating.question) is not None:
        show(_screen(rating, question))
        while True:
            key = read()
            if key in _QUIT:
                show(f"\n{rating.status}. The same call goes on.")
                return
            if rating.press(key.lower(), guard_s=guard_s):
                break
            if key.lower() not in KEYS and not key.isspace():
                show(f"Keys: {_HELP}")
    show(f"\n{rating.status}.")


def _screen(rating: Asked, question: Question) -> str:
    message = visible(question.message.strip())
    if len(message) > _MESSAGE_CHARS:
        message = f"{message[:_MESSAGE_CHARS]} … ({len(message):,} characters)"
    return (
        f"\n{'-' * 72}\n{rating.status}\n\n{message}\n\n"
        f"  1  {visible(question.left)}\n  2  {visible(question.right)}\n\n{_HELP}"
    )


def terminal_key() -> str:
    """The next key of the terminal, without Enter; of a pipe, its next character."""
    if not sys.stdin.isatty():
        return sys.stdin.read(1)
    import click

    try:
        return click.getchar()[:1]  # two keys at once, as of a double press, come as one
    except (KeyboardInterrupt, EOFError):
        return "q"


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201
