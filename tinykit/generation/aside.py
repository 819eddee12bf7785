"""Forwards that are no generation, such as those of a choice: how a cancel reaches them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tinykit.errors import ForwardInterrupted
from tinykit.generation.request import Watcher


class Aside:
    """One call of that kind, from its first forward to its last.

    Args:
        watcher: Who waits for it, where many are served at once.
    """

    def __init__(self, watcher: Watcher | None = None) -> None:
        self.watcher = watcher
        self.is_cancelled = False

    def check(self) -> None:
        """Raise ForwardInterrupted if it was cancelled, or its watcher waits no longer."""
        if self.is_cancelled or (self.watcher is not None and self.watcher.cancelled_by is not None):
            raise ForwardInterrupted("The choice was cancelled before it was made.")


class Asides:
    """Those of one model that are under way, one of a thread at most; any thread may cancel them."""

    def __init__(self) -> None:
        self._open: dict[int, Aside] = {}

    @contextmanager
    def begin(self, watcher: Watcher | None = None) -> Iterator[Aside]:
        """Another one, while the block lasts."""
        aside = Aside(watcher)
        try:
            self._open[threading.get_ident()] = aside
            yield aside
        finally:
            self.forget_left()

    def forget_left(self) -> None:
        """Let go of this thread's, which may stand here still: a Ctrl-C can come before its block's end."""
        self._open.pop(threading.get_ident(), None)

    def cancel(self, stop: Callable[[Aside], object]) -> int:
        """Cancel all, and call `stop` for each, to end the forward that it may be in; returns how many."""
        asides = list(self._open.values())
        for aside in asides:
            aside.is_cancelled = True
            stop(aside)
        return len(asides)
