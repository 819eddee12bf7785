"""The ways to show slow work: events, a bar in a terminal, a few plain lines, one line in a notebook."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinykit import settings
from tinykit.events import ProgressEvent, Status

if TYPE_CHECKING:
    from tinykit.progress import Stage

QUIET_S = 0.5  # shorter work is not worth a line
_EVENT_INTERVAL_S = 0.1
_MAX_LINES = 10

_log = logging.getLogger("tinykit")


def is_stable() -> bool:
    """Whether a notebook's outputs shall be the same in every run: no progress, no updates of a display.

    The setting `stable` says it; without it, that a test runs the kernel, as nbval does. It compares what a
    notebook has saved with the messages of a run, and knows no updates.
    """
    chosen = settings.get("stable")
    return "PYTEST_CURRENT_TEST" in os.environ if chosen is None else bool(chosen)


class Display:
    """Shows one stage; this one shows nothing."""

    def start(self, stage: Stage) -> None:
        """Show that the work begins."""

    def update(self, stage: Stage) -> None:
        """Show that some of it was done."""

    def finish(self, stage: Stage) -> None:
        """Show that all of it was done."""

    def fail(self, stage: Stage, error: BaseException) -> None:
        """Show that it ended with an error."""

    def file(self, stage: Stage, status: Status, file: str) -> None:
        """Show a step of one file among several; most displays only show all of them together."""


class Events(Display):
    """Events for a callback: progress at most every tenth of a second, and always at the end."""

    def __init__(self, callback: Callable[[ProgressEvent], None]) -> None:
        self._callback = callback
        self._last_s = 0.0
        self._last_count = -1
        self._last_file_s = 0.0

    def start(self, stage: Stage) -> None:
        self._send(stage, "initiate")
        if stage.unit == "B":
            self._send(stage, "download")

    def update(self, stage: Stage) -> None:
        if stage.elapsed_s - self._last_s >= _EVENT_INTERVAL_S or stage.count == stage.total:
            self._last_s = stage.elapsed_s
            self._send_progress(stage)

    def finish(self, stage: Stage) -> None:
        if stage.count != self._last_count:
            self._send_progress(stage)
        self._send(stage, "done", stage.summary_text())

    def fail(self, stage: Stage, error: BaseException) -> None:
        self._send(stage, "error", str(error) or type(error).__name__)

    def file(self, stage: Stage, status: Status, file: str) -> None:
        loaded_bytes, total_bytes = stage.files[file]
        if status == "progress" and loaded_bytes < total_bytes:
            if stage.elapsed_s - self._last_file_s < _EVENT_INTERVAL_S:
                return
            self._last_file_s = stage.elapsed_s
        self._callback(ProgressEvent(status, stage.model, stage.label, file, loaded_bytes, total_bytes))
        if status == "done":
            self._send_progress(stage)

    def _send_progress(self, stage: Stage) -> None:
        self._last_count = stage.count
        self._send(stage, "progress_total" if stage.files else "progress", stage.state_text())

    def _send(self, stage: Stage, status: Status, message: str | None = None) -> None:
        is_bytes = stage.unit == "B"
        self._callback(
            ProgressEvent(
                status,
                model=stage.model,
                name=stage.label,
                file=stage.file,
                loaded_bytes=stage.count if is_bytes else None,
                total_bytes=stage.total if is_bytes else None,
                files=dict(stage.files) if status == "progress_total" else None,
                message=message,
            )
        )


class Bar(Display):
    """A tqdm bar on standard error, replaced by the sentence at the end."""

    def __init__(self) -> None:
        self._bar: Any = None

    def update(self, stage: Stage) -> None:
        if self._bar is None and stage.elapsed_s >= QUIET_S:
            self._bar = self._open(stage)
        if self._bar is not None:
            self._bar.update(stage.count - self._bar.n)

    def finish(self, stage: Stage) -> None:
        self._close()
        if stage.is_telling:
            print(stage.summary_text(), file=sys.stderr)  # noqa: T201

    def fail(self, stage: Stage, error: BaseException) -> None:
        self._close()

    def _open(self, stage: Stage) -> Any:
        from tqdm import tqdm

        is_bytes = stage.unit == "B"
        return tqdm(
            desc=stage.label,
            total=stage.total,
            initial=stage.count,
            unit="B" if is_bytes else f" {stage.unit}",
            unit_scale=is_bytes,
            leave=False,
            file=sys.stderr,
        )

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class Lines(Display):
    """A few whole lines on standard error, for logs: by share of the total, or ever more rarely."""

    def __init__(self) -> None:
        self._lines = 0
        self._next_percent = 0
        self._next_s = QUIET_S

    def update(self, stage: Stage) -> None:
        if self._is_due(stage) and self._lines < _MAX_LINES - 1:
            self._lines += 1
            self._next_percent = ((stage.percent or 0) + 10) // 20 * 20 + 20
            self._next_s = stage.elapsed_s * 2
            self._write(stage.state_text())

    def finish(self, stage: Stage) -> None:
        if stage.is_telling:
            self._write(stage.summary_text())

    def _is_due(self, stage: Stage) -> bool:
        if stage.elapsed_s < QUIET_S or stage.count == stage.total:
            return False
        return (
            stage.elapsed_s >= self._next_s if stage.percent is None else stage.percent >= self._next_percent
        )

    def _write(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201


class NotebookLine(Display):
    """One line of plain text that is updated in place; needs no widgets, and is kept in the notebook."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._last_s = 0.0

    def update(self, stage: Stage) -> None:
        if stage.elapsed_s >= QUIET_S and stage.elapsed_s - self._last_s >= _EVENT_INTERVAL_S:
            self._last_s = stage.elapsed_s
            self._write_state(stage)

    def finish(self, stage: Stage) -> None:
        if stage.is_telling:
            self._write({"text/plain": stage.summary_text()})

    def fail(self, stage: Stage, error: BaseException) -> None:
        if self._handle is not None:
            self._write({"text/plain": f"{stage.state_text()} (stopped)"})

    def _write_state(self, stage: Stage) -> None:
        self._write({"text/plain": stage.state_text()})

    def _write(self, content: dict[str, Any]) -> None:
        from IPython.display import display

        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


class NotebookBar(NotebookLine):
    """A bar of ipywidgets, replaced by the sentence at the end, so that no widget stays in the notebook.

    Where ipywidgets is missing or does not work it is the line of plain text.
    """

    def __init__(self) -> None:
        super().__init__()
        self._box: Any = None
        self._has_widgets = True

    def finish(self, stage: Stage) -> None:
        super().finish(stage)
        self._close()

    def fail(self, stage: Stage, error: BaseException) -> None:
        super().fail(stage, error)
        self._close()

    def _write_state(self, stage: Stage) -> None:
        if self._has_widgets:
            try:
                self._move(stage)
                return
            except Exception as exc:
                self._has_widgets = False
                _log.info("The progress is shown as text, because ipywidgets does not work: %r", exc)
        super()._write_state(stage)

    def _move(self, stage: Stage) -> None:
        if self._box is None:
            import ipywidgets

            bar = ipywidgets.FloatProgress(value=0.0, min=0.0, max=1.0)
            self._box = ipywidgets.HBox([bar, ipywidgets.Label()])
            self._set(stage)
            self._write({**self._box._repr_mimebundle_(), "text/plain": stage.state_text()})
        else:
            self._set(stage)

    def _set(self, stage: Stage) -> None:
        bar, label = self._box.children
        bar.value = 1.0 if stage.percent is None else stage.percent / 100
        label.value = stage.state_text()

    def _close(self) -> None:
        if self._box is not None:
            for widget in (*self._box.children, self._box):
                for part in (getattr(widget, "layout", None), getattr(widget, "style", None), widget):
                    if part is not None:
                        part.close()  # what stays open is saved with the notebook
