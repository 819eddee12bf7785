"""Long calls into a library, made in a thread of their own so that Ctrl-C is heard or work done meanwhile.

Python hears of a signal in its main thread and between two steps of its own: a call that computes for half a
second is deaf for as long. A thread that waits for another one is not.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")
_POLL_S = 0.05  # Windows hears of Ctrl-C only between two waits
_calls = threading.local()


class _Call(Generic[T]):
    """Something to do, and whether it was done."""

    def __init__(self, act: Callable[[], T]) -> None:
        self._act = act
        self._claim = threading.Lock()  # of who runs it, or sees that nobody shall; never released
        self._end = threading.Lock()  # not an Event, in which an interrupt may leave a lock held
        self._end.acquire()
        self._alone = threading.Lock()
        self._alone.acquire()
        self.is_alone = False
        self.is_over = False
        self.results: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        _calls.current = self
        try:
            self.results.append(self._act())
        except BaseException as error:
            self.error = error
        finally:
            self.is_over = True
            self.goes_alone()
            self._end.release()

    def goes_alone(self) -> None:
        """From now on it needs Python's lock no more, or it has ended."""
        self.is_alone = True
        with suppress(RuntimeError):  # it was released before
            self._alone.release()

    def wait_until_alone(self) -> None:
        """Until somebody else may keep Python's lock without keeping this one waiting."""
        while not self.is_alone:
            self._alone.acquire(timeout=_POLL_S)

    def wait(self) -> None:
        """Until it is over, or for a moment."""
        self._end.acquire(timeout=_POLL_S)

    def goes_on(self) -> bool:
        """Whether somebody runs it; what has not begun by now never will."""
        return not self._claim.acquire(blocking=False) and not self.is_over


def call_apart(act: Callable[[], T], stop: Callable[[], None]) -> T:
    """What `act` returns, or its error; from the main thread in another one, else at once.

    Args:
        act: What takes long.
        stop: Lets it end soon; called again and again after a Ctrl-C, for as long as it has not.

    Raises:
        KeyboardInterrupt: Ctrl-C; `act` has ended, or will never begin.
    """
    if threading.current_thread() is not threading.main_thread():
        return act()
    call = _Call(act)
    interrupt: BaseException | None = None
    try:
        _thread.start_new_thread(call.run, ())  # at once or not at all, unlike Thread.start
        while not call.is_over:
            call.wait()
    except BaseException as error:
        interrupt = error
    while interrupt is not None:
        try:
            if not call.goes_on():
                break
            stop()
            call.wait()
        except KeyboardInterrupt as another:  # of somebody impatient
            interrupt = another
    if interrupt is not None:
        raise interrupt
    if call.error is not None:
        raise call.error
    return call.results[0]


class GoingAlone:
    """An iterable of `items`; that somebody iterates over it tells that their call now leaves Python's lock.

    For a library that takes an iterable and looks at it just before its long part: so a call `beside` keeps
    the lock only when nobody needs it.
    """

    def __init__(self, items: Iterable[str]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[str]:
        call = getattr(_calls, "current", None)
        if call is not None:
            call.goes_alone()
        return iter(self._items)


def call_beside(
    act: Callable[[], T], meanwhile: Callable[[Callable[[], None]], U], undo: Callable[[T], object]
) -> tuple[T, U]:
    """What `act` returns, from another thread, and `meanwhile`, from this one at the same time.

    Whatever is raised here, also by a Ctrl-C, comes after the end of `act`, whose result is undone then.

    Args:
        act: Calls into a library.
        meanwhile: Its argument waits until that library computes without Python's lock (see `GoingAlone`).
            Whoever keeps the lock for long before that keeps `act` waiting for as long.
        undo: Is given what `act` returned, if that is not wanted any more.
    """
    call = _Call(act)
    found: list[U] = []
    failure: BaseException | None = None
    try:
        _thread.start_new_thread(call.run, ())
        found.append(meanwhile(call.wait_until_alone))
        while not call.is_over:
            call.wait()
    except BaseException as error:
        failure = error
    while failure is not None:
        try:
            if not call.goes_on():
                break
            call.wait()
        except KeyboardInterrupt as another:
            failure = another
    if failure is not None:
        for result in call.results:
            undo(result)
        raise failure
    if call.error is not None:
        raise call.error
    return call.results[0], found[0]
