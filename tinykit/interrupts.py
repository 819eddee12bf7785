"""What a Ctrl-C that ends a call leaves: the partial result, and few lines for IPython to show.

IPython's own traceback reads and colors the source around each of some twenty frames of tinykit, twice, and
imports a few libraries to do so: it takes longer than stopping the model. It shows an error's own lines
instead where it has any. These name the user's frames, and what there is. The traceback itself is whole:
`%debug`, `traceback.print_exception(sys.last_value)` and Python outside IPython have all of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

_Place = tuple[str, int]  # a file's name and a line in it
_SHELL = "IPython.core.interactiveshell"
_WHERE = "The error's `partial`, now `sys.last_value.partial`"


def keep_partial(error: KeyboardInterrupt, found: Any, *, is_told: bool = False) -> None:
    """Let the error of a Ctrl-C have what there is so far as its `partial`, and be shown with it.

    Args:
        error: What is about to be raised again.
        found: A completion or a title, or a list of them.
        is_told: Whether the user has its text already, as of a stream.
    """
    error.partial = found  # type: ignore[attr-defined]
    shorten(error, partial(_so_far, found, is_told))


def shorten(error: KeyboardInterrupt, so_far: Callable[[], list[str]] = list) -> None:
    """Let IPython show the error with the lines of the user's that led to it, and these below them."""
    places = _users_places(sys._getframe(1))
    # of plain values: with a reference to itself the error would keep open what its frames hold
    error._render_traceback_ = partial(_lines, places, so_far)  # type: ignore[attr-defined]


def _users_places(frame: FrameType | None) -> list[_Place]:
    """Where the user's frames are, outermost first; IPython's, and what is around them, are not."""
    places: list[_Place] = []
    while frame is not None and frame.f_globals.get("__name__") != _SHELL:
        if str(frame.f_globals.get("__name__")).partition(".")[0] != "tinykit":
            places.insert(0, (frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return places


def _lines(places: Sequence[_Place], so_far: Callable[[], list[str]]) -> list[str]:
    import linecache

    lines = ["Interrupted here:"]
    for name, number in places:
        lines += [f"{_name_of(name)}, line {number}", f"----> {linecache.getline(name, number).strip()}"]
    return [*lines, "", "KeyboardInterrupt: stopped by Interrupt or Ctrl-C.", *so_far()]


def _name_of(file: str) -> str:
    """A file's name; for a cell as IPython has it."""
    from IPython.core.getipython import get_ipython

    names = getattr(get_ipython(), "compile", None)
    if (format_name := getattr(names, "format_code_name", None)) and (found := format_name(file)):
        return " ".join(found)
    return f"File {file}"


def _so_far(found: Any, is_told: bool) -> list[str]:
    if is_told:
        return [f"{_WHERE}, has what there is."]
    if isinstance(found, list):
        return [f"{_WHERE}, has {sum(map(_is_whole, found))} of {len(found)} results."]
    text = _printable(str(found))
    return [f"{_WHERE}, has what there is:", text] if text else ["There is nothing so far."]


def _is_whole(one: Any) -> bool:
    """Whether a result is there, and not only a part of it."""
    completion = getattr(one, "completion", one)
    return one is not None and getattr(completion, "cancelled_by", None) is None


def _printable(text: str) -> str:
    """Text of a model without what would move a terminal's cursor or change its colors."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text
    )
