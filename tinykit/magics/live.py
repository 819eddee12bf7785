"""One display for one answer: shown as it grows, at most ten times a second, and once more at its end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tinykit.displays import is_stable
from tinykit.markup import Bundle, block

_INTERVAL_S = 0.1


class LiveText:
    """Shows a growing text in one output of a notebook.

    Where outputs have to be stable (`is_stable`) nothing is shown before the end.

    Args:
        is_silent: Show nothing at all.
        clock: Seconds that only grow.
    """

    def __init__(self, *, is_silent: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._is_silent = is_silent
        self._is_stable = is_stable()
        self._clock = clock
        self._handle: Any = None
        self._last_s = 0.0

    def update(self, text: str) -> None:
        """Show the text so far, unless it was shown a moment ago."""
        if self._is_silent or self._is_stable or not text:
            return
        now = self._clock()
        if self._handle is None or now - self._last_s >= _INTERVAL_S:
            self._last_s = now
            self._send({"text/plain": text, "text/html": block(text)}, {})

    def finish(self, view: Bundle) -> None:
        """Show the whole."""
        if not self._is_silent:
            self._send(*view)

    def _send(self, data: dict[str, str], metadata: dict[str, Any]) -> None:
        from IPython.display import display

        if self._handle is not None:
            self._handle.update(data, raw=True, metadata=metadata)
        elif self._is_stable:
            display(data, raw=True, metadata=metadata)
        else:
            self._handle = display(data, raw=True, metadata=metadata, display_id=True)
