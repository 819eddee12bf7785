"""A view that works in the background, one job at a time, and says in a line what it does."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from tinykit.widgets.job import Job
from tinykit.widgets.progress_bar import ProgressBar
from tinykit.widgets.view import View, error_text, status_html


class Background(View):
    """A view with a status line, a progress bar and at most one running job.

    What a job says once another has taken its place is not shown.
    """

    _stopped_text = "Stopped."

    def __init__(self) -> None:
        super().__init__()
        self.progress = ProgressBar()
        self.progress.clear()
        self._job: Job | None = None
        self._status = ""
        self._status_line: Any = None

    @property
    def status(self) -> str:
        """What is being done, or how it ended."""
        return self._status

    def stop(self) -> None:
        """End what is running; what is done stays."""
        job = self._job
        if job is not None and job.is_running:
            job.stop()
        else:
            self._say("Nothing is running.")

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is running any more; False if that took too long."""
        job = self._job
        return job is None or job.wait(timeout_s)

    def close(self) -> None:
        """Stop, and take the widgets out of the notebook."""
        if self._job is not None:
            self._job.stop()
            self._job.wait()
        super().close()

    def _begin(self, status: str, work: Callable[[Job], None]) -> Job:
        """Stop the job before, and begin another once it has ended; the lock is held until it is noted."""
        with self.lock:
            before = self._job
            if before is not None:
                before.stop()
            self._say("Waiting for the run before to end …" if before and before.is_running else status)
            self._job = Job(work, on_end=self._end, after=before)
            return self._job

    def _is_current(self, job: Job) -> bool:
        return job is self._job

    def _say(self, text: str, job: Job | None = None) -> None:
        """Show what is being done; what a job says that is no longer the last is dropped."""
        with self.lock:
            if job is None or job is self._job:
                self._status = text.strip()
                if self._status_line is not None:
                    self._status_line.value = status_html(self._status)

    def _end(self, job: Job) -> None:
        with self.lock:
            if job is self._job:
                self.progress.clear()
                if job.error is not None:
                    self._say(error_text(job.error))
                elif job.is_stopped:
                    self._say(self._stopped_text)

    def _new_status_line(self, widgets: ModuleType) -> Any:
        self._status_line = widgets.HTML(status_html(self._status))
        return self._status_line

    def _told(self, act: Callable[[], object]) -> Callable[[], None]:
        """The act for a button: its error is shown in the status line, as nobody sees one of a click."""

        def click() -> None:
            try:
                act()
            except Exception as error:
                self._say(error_text(error))

        return click
