"""What a Ctrl-C that ends a call leaves: the partial result, and few lines to show.

IPython's own traceback reads and colors the source around each of some twenty frames of tinykit, twice, and
imports a few libraries to do so: it takes longer than stopping the model. It shows an error's own lines
instead where it has any. These name the user's frames, and what there is. A script that ends with the error
shows the user's frames alone as well, unless it has a `sys.excepthook` of its own. The traceback itself is
whole: `%debug`, `traceback.print_exception(sys.last_value)` and whoever catches the error have all of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType, TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
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


def with_partial(act: Callable[[], T], nothing: Callable[[], object]) -> T:
    """What `act` returns; where a Ctrl-C comes before there is anything, its `partial` is `nothing`.

    So it is in the moments around the model's work too, and while a model is loaded.
    """
    try:
        return act()
    except KeyboardInterrupt as error:
        if not hasattr(error, "partial"):
            keep_partial(error, nothing())
        raise


def shorten(error: KeyboardInterrupt, so_far: Callable[[], list[str]] = list) -> None:
    """Let the error be shown with the user's lines that led to it, in IPython with `so_far` below them."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show
    places = _users_places(sys._getframe(1))
    # of plain values: with a reference to itself the error would keep open what its frames hold
    error._render_traceback_ = partial(_lines, places, so_far)  # type: ignore[attr-defined]


def _users_places(frame: FrameType | None) -> list[_Place]:
    """Where the user's frames are, outermost first; IPython's, and what is around them, are not."""
    places: list[_Place] = []
    while frame is not None and frame.f_globals.get("__name__") != _SHELL:
        if not _is_ours(frame):
            places.insert(0, (frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return places


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "tinykit"


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What Python shows of an error that ends a program, of one that was shortened without our frames."""
    if not isinstance(error, KeyboardInterrupt) or not hasattr(error, "_render_traceback_"):
        sys.__excepthook__(kind, error, trace)
        return
    import traceback

    shown = traceback.TracebackException(kind, error, trace)
    shown.stack = traceback.StackSummary.extract(iter(_users_frames(trace)))
    print("".join(shown.format(chain=False)), end="", file=sys.stderr)  # noqa: T201


def _users_frames(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    """All down to our first one, and below it those of functions that the user gave us."""
    import sysconfig
    import traceback

    libraries = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    found: list[tuple[FrameType, int]] = []
    is_inside = False
    for frame, line in traceback.walk_tb(trace):
        is_inside = is_inside or _is_ours(frame)
        file = frame.f_code.co_filename
        if not is_inside or not (_is_ours(frame) or file.startswith((*libraries, "<frozen"))):
            found.append((frame, line))
    return found


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
