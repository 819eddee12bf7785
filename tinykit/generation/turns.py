"""Turns at the model: threads get them in the order in which they asked.

An interrupt may come between any two calls. A context manager written in Python could be left without its
end then, and whatever it holds would stay held; so what is done in a turn is handed over as a function.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")
_POLL_S = 0.05  # how often a thread looks itself whether it is its turn, should nobody have told it


class Bell:
    """Wakes a thread that waits for it, once for each time it is rung.

    An interrupt may leave the lock within a `threading.Event` held, as that is taken by a function of
    Python's own; here there is none.
    """

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()

    def ring(self) -> None:
        """Let the waiting thread go on, or the next one that waits."""
        self._rings.put(None)

    def wait(self, timeout_s: float) -> None:
        """Until it is rung, or so long."""
        with suppress(queue.Empty):
            self._rings.get(timeout=timeout_s)


class Turns:
    """One thread at a time, in the order of asking; within a turn, the same thread may take another."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._line: dict[int, Bell] = {}  # by thread; the first has its turn

    def take(self, act: Callable[[], T]) -> T:
        """What `act` returns, called while no other thread has a turn."""
        me = threading.get_ident()
        if me in self._line:  # within a turn, or in the garbage collector while this thread waits for one
            with self._lock:
                return act()
        try:
            self._line[me] = told = Bell()
            while list(self._line)[:1] != [me]:
                told.wait(_POLL_S)
            with self._lock:
                return act()
        finally:
            self._line.pop(me, None)
            for following in list(self._line.values())[:1]:
                following.ring()
