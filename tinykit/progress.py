"""One progress for everything slow: a bar in a terminal, one updated line in a notebook, plain lines in a
log, events for a callback, or nothing.

Work that takes less than half a second shows nothing. Longer work ends as one sentence with its size and
seconds. An error in showing is logged once and never stops the work.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tinykit import settings
from tinykit.displays import QUIET_S, Bar, Display, Events, Lines, NotebookBar, is_stable
from tinykit.errors import OptionError
from tinykit.events import ProgressEvent, subscribe, tell
from tinykit.plurals import counted

__all__ = ["FileCounter", "Progress", "ProgressEvent", "Stage", "size_text", "subscribe"]

_log = logging.getLogger("tinykit")
_TELLING_S = 5.0  # of counted work; before that a guess at the time left says nothing


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
        self.files: dict[str, tuple[int, int]] = {}  # loaded and total bytes, if there are several files
        self.started_s = time.monotonic()
        self._begun: tuple[float, int] | None = None  # when something was counted first, and the count then
        self._displays: list[Display] = []

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_s

    @property
    def is_telling(self) -> bool:
        """True if the end is worth a sentence: it took a while, and something was there to be done."""
        return self.elapsed_s >= QUIET_S and (self.count > 0 or self.total is not None)

    @property
    def percent(self) -> int | None:
        """Share of the total in whole percent, rounded down; None without a total."""
        return max(0, min(100, self.count * 100 // self.total)) if self.total else None

    def advance(self, amount: int) -> None:
        """Count work that was done."""
        self.count += amount
        if self._begun is None and amount > 0:
            self._begun = self.elapsed_s, self.count
        self._show("update")

    def restart(self) -> None:
        """Count from zero again, because the work had to start over."""
        self.count = self.initial = 0
        self._begun = None
        self._show("update")

    def amount_text(self) -> str:
        """What has been done, such as '92.9 MB' or '272 tensors'."""
        return size_text(self.count) if self.unit == "B" else counted(self.count, self.unit.removesuffix("s"))

    def state_text(self) -> str:
        """Where the work stands, such as 'smollm2-135m: 40 % of 92.9 MB'."""
        if self.total is None or self.percent is None:
            return f"{self.label}: {self.amount_text()}"
        total = (
            size_text(self.total) if self.unit == "B" else counted(self.total, self.unit.removesuffix("s"))
        )
        return f"{self.label}: {self.percent} % of {total}{self._left_text()}"

    def _left_text(self) -> str:
        """How long it will still take, once there is something to tell it by.

        What came before the first count, such as opening a file, tells nothing of the pace.
        """
        if self._begun is None or self.total is None:
            return ""
        begun_s, begun_count = self._begun
        spent_s, done = self.elapsed_s - begun_s, self.count - begun_count
        if spent_s < _TELLING_S or done <= 0:
            return ""
        left_s = max(0.0, spent_s * (self.total - self.count) / done)
        return f", about {left_s:.0f} s left" if left_s < 90 else f", about {left_s / 60:.0f} min left"

    def summary_text(self) -> str:
        """The sentence at the end, such as 'smollm2-135m: 92.9 MB in 3.1 s'."""
        amount = self.amount_text()
        if self.initial:
            kept = size_text(self.initial) if self.unit == "B" else f"{self.initial:,}"
            amount += f" ({kept} of them from before)"
        return f"{self.label}: {amount} in {self.elapsed_s:.1f} s"

    @contextmanager
    def one_file(self, name: str) -> Iterator[FileCounter]:
        """Count one of several files while the block runs; its bytes count for the whole as well."""
        self._show("file", "initiate", name)
        self._show("file", "download", name)
        yield FileCounter(self, name)
        self._show("file", "done", name)

    def _show(self, step: str, *details: object) -> None:
        for display in tuple(self._displays):
            try:
                getattr(display, step)(self, *details)
            except Exception:
                self._displays.remove(display)
                _log.warning("Showing the progress of %s failed; the work goes on", self.label, exc_info=True)


class FileCounter:
    """Counts one file of a stage that has several."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._name = name

    def advance(self, amount: int) -> None:
        """Count bytes that arrived."""
        loaded_bytes, total_bytes = self._stage.files[self._name]
        self._stage.files[self._name] = (loaded_bytes + amount, total_bytes)
        self._stage.advance(amount)
        self._stage._show("file", "progress", self._name)

    def restart(self) -> None:
        """Count this file from zero again."""
        loaded_bytes, _ = self._stage.files[self._name]
        self._stage.initial = max(0, self._stage.initial - loaded_bytes)
        self.advance(-loaded_bytes)


class Progress:
    """Where progress goes.

    Args:
        show: None follows the setting `progress`; True shows, False hides; a function gets a
            `ProgressEvent` for each step, and nothing is shown.

    Raises:
        OptionError: anything else.
    """

    def __init__(self, show: bool | Callable[[ProgressEvent], None] | None = None) -> None:
        if not (show is None or isinstance(show, bool) or callable(show)):
            raise OptionError(
                f"progress must be True, False or a function, not {show!r:.80}.",
                hint="Leave it out to follow the variable TINYKIT_PROGRESS, which may be off or plain.",
                name="progress",
                value=show,
            )
        self._show = show
        self._relayed: dict[str, Stage] = {}

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
        files: Mapping[str, tuple[int, int]] | None = None,
    ) -> Iterator[Stage]:
        """Show a piece of work while the block runs.

        Args:
            label: What is worked on.
            total: How much there is to do, None if unknown.
            unit: `"B"` for bytes, else a plural noun such as `"tensors"`.
            model: Key of the model that the work is for.
            file: The file in work.
            initial: How much was there already, for instance from an earlier try.
            files: Loaded and total bytes by name, if the work is about several files.
        """
        stage = Stage(label, total=total, unit=unit, model=model, file=file, initial=initial)
        stage.files = dict(files or {})
        stage._displays = [self._new_display(), Events(tell)]
        stage._show("start")
        try:
            yield stage
        except BaseException as exc:
            stage._show("fail", exc)
            raise
        stage._show("finish")

    def ready(self, model: str, *, name: str | None = None, task: str = "text-generation") -> None:
        """Tell callback and listeners that a model can be used now.

        Args:
            model: Its key.
            name: Where it came from, such as a repo; by default the key.
            task: What it does, in the hub's words.
        """
        self._call(ProgressEvent("ready", model=model, name=name or model, task=task))

    def note(self, message: str, *, model: str | None = None) -> None:
        """Tell something once, such as what is waited for."""
        self._call(ProgressEvent("progress", model=model, name=model, message=message))
        if type(self._new_display()) not in (Display, Events) and sys.stderr is not None:
            print(message, file=sys.stderr, flush=True)  # noqa: T201

    def relay(self, event: ProgressEvent) -> None:
        """Tell callback and listeners of a step of another process's work; show it as if it were ours."""
        self._call(event)
        if event.name is None or callable(self._show):
            return
        # who comes late to a download hears of it by the sum of its files first
        is_first = event.status in ("initiate", "progress_total") and event.name not in self._relayed
        if is_first:
            is_bytes = event.total_bytes is not None
            total, unit = event.total_bytes, "B" if is_bytes else "steps"
            stage = Stage(event.name, total=total, unit=unit, model=event.model, file=event.file)
            stage._displays = [self._new_display()] if is_bytes else []
            self._relayed[event.name] = stage
            stage._show("start")
        stage_or_none = self._relayed.get(event.name)
        if stage_or_none is None or (event.file != stage_or_none.file and event.status != "progress_total"):
            return
        if event.status in ("progress", "progress_total") and event.loaded_bytes is not None:
            stage_or_none.advance(event.loaded_bytes - stage_or_none.count)
        elif event.status in ("done", "error"):
            del self._relayed[event.name]
            stage_or_none._show(*(("finish",) if event.status == "done" else ("fail", event.message)))

    def _call(self, event: ProgressEvent) -> None:
        tell(event)
        if callable(self._show):
            try:
                self._show(event)
            except Exception:
                _log.warning("The progress callback failed; the work goes on", exc_info=True)

    def _new_display(self) -> Display:
        if callable(self._show):
            return Events(self._show)
        mode = settings.get("progress")
        if self._show is False or (mode == "off" and self._show is None):
            return Display()
        if mode == "plain":
            return Lines()
        if _is_notebook():
            return Display() if is_stable() else NotebookBar()
        return Bar() if sys.stderr is not None and sys.stderr.isatty() else Lines()


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
