"""A progress bar that is a callback: give it as `progress=`, and show it where you like."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tinykit.progress import ProgressEvent
from tinykit.widgets.view import Pace, View, status_html


class ProgressBar(View):
    """A bar with a sentence beside it, for downloads, imports and loads.

    Call it with `ProgressEvent`s, from any thread: ``TinySession(model, progress=bar)``. It shows at most ten
    of them a second, and always the last.
    """

    _purpose = "a progress bar"

    def __init__(self) -> None:
        super().__init__()
        self.bar: Any = None
        self.label: Any = None
        self._pace = Pace(self._draw, self.lock)
        self._sentence = "Nothing was done yet."
        self._percent: int | None = None

    def __call__(self, event: ProgressEvent) -> None:
        """Show one step of slow work."""
        if event.status in ("ready", "initiate", "download") or event.file is not None:
            return
        with self.lock:
            self._sentence = _sentence(event)
            self._percent = 100 if event.status == "done" else event.percent
            if event.status in ("done", "error"):
                self._pace.now()
            else:
                self._pace.soon()

    def text(self) -> str:
        """What was heard last."""
        return self._sentence

    def clear(self) -> None:
        """Take the bar away until something is heard again."""
        with self.lock:
            self._sentence, self._percent = "", None
            self._pace.drop()
            self._draw()

    def _build(self, widgets: ModuleType) -> Any:
        self.bar = widgets.FloatProgress(min=0.0, max=100.0, tooltip="Share of the work that is done")
        self.bar.layout.width = "12em"
        self.label = widgets.HTML()
        self._draw()
        return widgets.HBox([self.bar, self.label])

    def _draw(self) -> None:
        if self.bar is None:
            return
        # without a total there is no share to show, and a full bar would be a lie
        self.bar.layout.display = "none" if self._percent is None else ""
        self.bar.value = float(self._percent or 0)
        self.label.value = status_html(self._sentence) if self._sentence else ""


def _sentence(event: ProgressEvent) -> str:
    if event.status == "error":
        return f"{event.name}: stopped" + (f" ({event.message})" if event.message else "")
    return event.message or str(event.name)
