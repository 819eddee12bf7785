"""Ctrl-C as a wish to stop soon."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


@contextmanager
def stop_on_interrupt(on_stop: Callable[[], None]) -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one is a KeyboardInterrupt, as always.

    Outside of the main thread, where Python lets nobody listen to signals, nothing sets the event.
    """
    stop = threading.Event()

    def handle(signum: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        with suppress(RuntimeError):  # what was interrupted may be in the middle of writing to the terminal
            on_stop()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
