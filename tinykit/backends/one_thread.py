"""One thread that does all work with a library that must not be used from several."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Abandoned(Exception):
    """The caller does not wait for this work any longer."""


class Work:
    """Something to do on the thread, and who waits for it."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act = act
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._is_abandoned = False
        self._result: Any = None
        self._error: BaseException | None = None

    @property
    def is_abandoned(self) -> bool:
        """Whether nobody waits any longer: the work may stop where it is."""
        return self._is_abandoned

    def abandon(self) -> bool:
        """Let the caller go on at once, if the work has no result yet; says whether that was so."""
        with self._lock:
            if self._is_over.is_set():
                return False
            self._is_abandoned = True
            self._is_over.set()
            return True

    def run(self, undo: Callable[[], None]) -> None:
        """Do it; `undo` follows if the caller had gone before there was a result."""
        result, error = None, None
        try:
            result = self._act()
        except BaseException as caught:
            error = caught
        with self._lock:
            if not self._is_abandoned:
                self._result, self._error = result, error
                self._is_over.set()
                return
        undo()

    def wait(self) -> Any:
        """The result, or its error; `Abandoned` if somebody else has abandoned it."""
        try:
            self._is_over.wait()
        except BaseException:  # Ctrl-C while waiting
            self.abandon()
            raise
        if self._is_abandoned:
            raise Abandoned
        if self._error is not None:
            raise self._error
        return self._result


class OneThread:
    """A queue of work and the thread that does it, which starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._queue: queue.SimpleQueue[tuple[Work, Callable[[], None]]] = queue.SimpleQueue()

    def submit(self, act: Callable[[], Any], undo: Callable[[], None] = lambda: None) -> Work:
        """Queue `act`; `undo` runs on the thread after it if its caller gave up meanwhile."""
        work = Work(act)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._thread.start()
        self._queue.put((work, undo))
        return work

    def call(self, act: Callable[[], T]) -> T:
        """The result of `act`, run on the thread; on the thread itself at once."""
        if threading.current_thread() is self._thread:
            return act()
        result: T = self.submit(act).wait()
        return result

    def _serve(self) -> None:
        while True:
            work, undo = self._queue.get()
            work.run(undo)
            del work, undo  # an idle thread keeps no model alive
