"""Who may use the model: so many at once, all others in the order in which they came."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tinykit.errors import ClosedError
from tinykit.plurals import counted
from tinykit.serve.refusals import RefusedError


class Turns:
    """A queue with a bound; everything happens in one event loop."""

    def __init__(self, *, at_once: int, waiting: int) -> None:
        """Let `at_once` work, and `waiting` wait."""
        self._free = at_once
        self._most_waiting = waiting
        self._queue: deque[asyncio.Future[None]] = deque()
        self.is_closed = False

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return len(self._queue)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, and have it.

        Raises:
            RefusedError: too many wait already.
            ClosedError: no more turns are given.
        """
        await self._take()
        try:
            yield
        finally:
            self._give_back()

    def close(self) -> None:
        """Send all away who wait or come from now on."""
        self.is_closed = True
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_exception(closing())

    async def _take(self) -> None:
        if self.is_closed:
            raise closing()
        if self._free:
            self._free -= 1
            return
        if len(self._queue) >= self._most_waiting:
            verb = "waits" if self._most_waiting == 1 else "wait"
            raise RefusedError(
                f"The model is busy, and {counted(self._most_waiting, 'request')} {verb} for it already.",
                hint="Try again in a moment.",
                status=429,
                code="busy",
            )
        place = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.cancelled():
                with suppress(ValueError):  # already gone, where another turn ended meanwhile
                    self._queue.remove(place)
            elif place.exception() is None:  # the turn came in the same moment: it is for the next one
                self._give_back()
            raise

    def _give_back(self) -> None:
        while self._queue:
            place = self._queue.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1


def closing() -> ClosedError:
    """The error for whoever comes too late."""
    return ClosedError("The server is closing.")
