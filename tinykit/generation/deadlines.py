"""Deadlines that are heard in the middle of a forward, however long that takes."""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Sequence

from tinykit.generation.run import Run, is_cancelled
from tinykit.generation.turns import Bell

_AGAIN_S = 0.02  # to the next look at a run that was told to stop and computes on
_LONGEST_S = 1.0  # to the next look in any case: an interrupt may leave runs behind


class Deadlines:
    """Watches runs that have one, in a thread that lives while there are any.

    Args:
        stop: Ends what a run computes; says whether it was computing.
    """

    def __init__(self, stop: Callable[[Run], bool]) -> None:
        self._stop = stop
        self._runs: dict[Run, float] = {}  # and when their time is up
        self._watcher: object | None = None  # what the thread knows itself by; another one ends
        self._news = Bell()
        # taken twice where the garbage collector closes a stream in the middle of what is done here
        self._lock = threading.RLock()

    def watch(self, runs: Sequence[Run]) -> None:
        """Stop those that have a deadline once it has passed, unless they are `drop`ped before."""
        timed = {run: due_s for run in runs if (due_s := run.due_s) is not None}
        if not timed:
            return
        with self._lock:
            self._runs |= timed
            if self._watcher is None:
                watcher = object()
                _thread.start_new_thread(
                    self._watch, (watcher,)
                )  # at once or not at all, unlike Thread.start
                self._watcher = watcher
        self._news.ring()

    def drop(self, runs: Sequence[Run]) -> None:
        """Watch these no longer."""
        timed = [run for run in runs if run in self._runs]
        for run in timed:
            self._runs.pop(run, None)
        if timed:
            self._news.ring()

    def _watch(self, watcher: object) -> None:
        wait_s = 0.0
        while True:
            self._news.wait(wait_s)
            with self._lock:
                runs = {run: at for run, at in list(self._runs.items()) if not (run.is_done or run.is_left)}
                self._runs = runs
                if not runs and self._watcher is watcher:
                    self._watcher, self._news = None, Bell()
                if self._watcher is not watcher:
                    return
            wait_s = min([_LONGEST_S, *(self._next_look_s(run, at) for run, at in list(runs.items()))])

    def _next_look_s(self, run: Run, at: float) -> float:
        if not is_cancelled(run):
            return max(0.0, at - time.perf_counter())
        if self._stop(run):
            return _AGAIN_S  # it may just have been about to begin, and not have heard
        self._runs.pop(run, None)  # whatever it does next looks first
        return _LONGEST_S
