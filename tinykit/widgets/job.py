"""Work in a thread of its own that can be asked to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tinykit.progress import ProgressEvent


class Stopped(BaseException):
    """Ends the work of a job that was asked to stop.

    No `Exception`, because the progress lets none of those through, and a download can only be stopped from
    there. What has arrived of it is kept, as after Ctrl-C.
    """


class Job:
    """Work that runs in the background from the moment it is made.

    Args:
        work: Is called with the job. It should call `check` between two steps.
        on_end: Is called with the job once the work has ended, however it did.
        after: A job to wait for before the work begins.
    """

    def __init__(
        self,
        work: Callable[[Job], None],
        *,
        on_end: Callable[[Job], None] | None = None,
        after: Job | None = None,
    ) -> None:
        self.error: Exception | None = None
        self._work = work
        self._on_end = on_end
        self._after = after
        self._cancels: list[Callable[[], object]] = []
        self._stopping = threading.Event()
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="tinykit job", daemon=True).start()

    @property
    def is_stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping.is_set()

    @property
    def is_running(self) -> bool:
        """Whether the work goes on."""
        return not self._ended.is_set()

    def stop(self) -> None:
        """Ask the work to end as soon as it can; does not wait for that."""
        self._stopping.set()
        for cancel in tuple(self._cancels):
            cancel()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; False if it did not come in time."""
        return self._ended.wait(timeout_s)

    def check(self) -> None:
        """Raise `Stopped` if the job was asked to stop."""
        if self.is_stopped:
            raise Stopped

    @contextmanager
    def stoppable(self, cancel: Callable[[], object]) -> Iterator[None]:
        """While the block runs, `stop` calls `cancel` as well, from its own thread."""
        self._cancels.append(cancel)
        try:
            self.check()
            yield
        finally:
            self._cancels.remove(cancel)

    def listening(self, show: Callable[[ProgressEvent], object]) -> Callable[[ProgressEvent], None]:
        """A progress callback that ends the work, where it stands, once the job was asked to stop."""

        def heard(event: ProgressEvent) -> None:
            show(event)
            if event.status not in ("error", "ready"):
                self.check()

        return heard

    def _run(self) -> None:
        try:
            if self._after is not None:
                self._after.wait()
                self._after = None
            self.check()
            self._work(self)
        except Stopped:
            pass
        except Exception as error:
            self.error = error
        finally:
            try:
                if self._on_end is not None:
                    self._on_end(self)
            finally:
                self._ended.set()
