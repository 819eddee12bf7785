"""Workers that died: the next one is started a little later each time, and at some point not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from tinykit.errors import WorkerError
from tinykit.worker.launch import Launch

KEEP_S = 600.0
MOST = 3  # deaths within that time, after which no other is started
_PAUSES_S = (0.0, 0.5, 2.0)  # before the next start, by the number of deaths


class Crash(NamedTuple):
    """A worker that died, when, and of what as far as we know."""

    digest: str
    name: str
    at_s: float
    reason: str
    is_of_loading: bool


class CrashMemory:
    """What this program has seen of deaths. For all threads.

    A model whose worker died while it was loading is not tried again: it would take the machine's memory, or
    crash its library, once more.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._crashes: list[Crash] = []

    def add(self, launch: Launch, reason: str, *, is_of_loading: bool = False) -> None:
        """Remember a death."""
        with self._lock:
            self._crashes.append(Crash(launch.digest, launch.name, self._clock(), reason, is_of_loading))

    def of(self, launch: Launch) -> list[Crash]:
        """The deaths that are not too old."""
        with self._lock:
            oldest = self._clock() - KEEP_S
            self._crashes = [one for one in self._crashes if one.at_s > oldest]
            return [one for one in self._crashes if one.digest == launch.digest]

    def clear(self, launch: Launch) -> None:
        """Forget them, because it works, or because the user wants it tried again."""
        with self._lock:
            self._crashes = [one for one in self._crashes if one.digest != launch.digest]

    def check(self, launch: Launch, sleep: Callable[[float], object] = time.sleep) -> None:
        """Wait a little after a death.

        Raises:
            WorkerError: it died while loading, or too often; no other is started for now.
        """
        crashes = self.of(launch)
        if not crashes:
            return
        last = crashes[-1]
        if last.is_of_loading or len(crashes) >= MOST:
            raise WorkerError(
                f"The worker {launch.name} is not started again for now: {last.reason}"
                + (f" ({len(crashes)} times lately)." if len(crashes) > 1 else "."),
                hint="session.clear_failures() lets it be tried again. Its log: "
                f"tinykit worker logs {launch.name}",
                worker=launch.name,
            )
        sleep(max(0.0, last.at_s + _PAUSES_S[len(crashes)] - self._clock()))


CRASHES = CrashMemory()  # of this process
