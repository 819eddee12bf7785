"""What failed to run where, remembered for a while, so that the same failure is not waited for again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

KEEP_S = 600.0  # a driver may be installed meanwhile, or another program may end and free memory


class FailedRun(NamedTuple):
    """A model that failed on a device; `at` is the time by the clock that counts its age."""

    model: str
    device: str
    dtype: str
    reason: str
    at: float


class FailureMemory:
    """The latest failure of each model, device and precision. Usable from all threads.

    Args:
        keep_s: Seconds until a failure is forgotten.
        clock: Tells the time in seconds.
    """

    def __init__(self, *, keep_s: float = KEEP_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: dict[tuple[str, str, str], FailedRun] = {}

    def add(self, model: str, device: str, dtype: str, reason: str) -> None:
        """Remember a failure from now on."""
        with self._lock:
            self._runs[model, device, dtype] = FailedRun(model, device, dtype, reason, self._clock())

    def find(self, model: str, device: str, dtype: str) -> FailedRun | None:
        """The failure of exactly this model, device and precision, if it is not too old."""
        return next((run for run in self.all(model) if run[1:3] == (device, dtype)), None)

    def all(self, model: str | None = None) -> tuple[FailedRun, ...]:
        """Every failure that is not too old, oldest first; of one model, if it is named."""
        with self._lock:
            oldest = self._clock() - self._keep_s
            self._runs = {key: run for key, run in self._runs.items() if run.at > oldest}
            runs = sorted(self._runs.values(), key=lambda run: run.at)
        return tuple(run for run in runs if model in (None, run.model))

    def clear(self, model: str | None = None, device: str | None = None) -> None:
        """Forget the failures of a model, of a device, or all."""
        with self._lock:
            for run in list(self._runs.values()):
                if model in (None, run.model) and device in (None, run.device):
                    del self._runs[run[:3]]
