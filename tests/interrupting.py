"""Ctrl-C at a place of one's choice, of all where Python may hear of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import CO_GENERATOR
from typing import Any


def interrupted(
    at: int, act: Callable[[], object], watched: tuple[str, ...]
) -> tuple[list[str], KeyboardInterrupt | None]:
    """Call `act`, with a KeyboardInterrupt at the `at`-th place in files whose paths begin like `watched`.

    Gives the function that was interrupted, if there are so many places, and the error that came out. Python
    hears of a signal when a function of its own begins, and after the call of any other. Not when an
    exception is thrown into a generator: that goes on where the generator's own handlers are. Nor, here, when a
    generator expression begins or goes on, as it may be its end that Python looks away from.
    """
    seen, come, thrown = [0], [], [0]

    def hear(frame: Any, event: str, argument: Any) -> None:
        is_generator = bool(frame.f_code.co_flags & CO_GENERATOR)
        if event.startswith("c_") and getattr(argument, "__name__", "") in ("throw", "close"):
            thrown[0] += 1 if event == "c_call" else -1
        is_place = (
            event == "c_return"
            or (event == "call" and not (is_generator and (thrown[0] or frame.f_code.co_name == "<genexpr>")))
            or (event == "return" and not is_generator)
        )
        if come or not is_place or not frame.f_code.co_filename.startswith(watched):
            return
        seen[0] += 1
        if seen[0] == at:
            come.append(frame.f_code.co_qualname)
            raise KeyboardInterrupt

    sys.setprofile(hear)
    try:
        act()
    except KeyboardInterrupt as error:
        return come, error
    finally:
        sys.setprofile(None)
    return come, None
