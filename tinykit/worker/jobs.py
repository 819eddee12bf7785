"""A request on its way through the worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from tinykit.errors import ForwardInterrupted, TinykitError
from tinykit.generation.batch import DEFAULT_BATCH_SIZE, Task
from tinykit.generation.request import Request
from tinykit.generation.result import CancelledBy, Chunk, Completion
from tinykit.worker.protocol import Message
from tinykit.worker.wire import chunk_values, completion_values, error_values

T = TypeVar("T")
Send = Callable[[Message], None]

PARTED = {"titles": "messages", "answer_all": "prompts"}  # operations on many things, and where these are
_ONES = ("answer",)  # operations whose answer is one completion


class Job:
    """What one client asked for, and how far it is. It watches over its own generations.

    Args:
        client: Number of the connection.
        message: The request.
        send: Sends to that connection.
    """

    def __init__(self, client: int, message: Message, send: Send) -> None:
        self.client = client
        self.number = message.get("id")
        self.op = str(message.get("op"))
        self.params: dict[str, Any] = dict(message.get("params") or {})
        self.arrived_s = time.perf_counter()
        self.begun_s: float | None = None
        timeout_s = self.params.get("timeout_s")
        self.deadline_s = None if timeout_s is None else self.arrived_s + float(timeout_s)
        parts = self.params.get(PARTED.get(self.op, ""))
        if self.op in PARTED and not isinstance(parts, list):
            raise TypeError(f"{self.op} takes a list of {PARTED[self.op]}")
        self.parts = len(parts) if isinstance(parts, list) else 1
        self.part = -1  # the one that was taken last
        self.active = 0
        self.ended = 0
        self.most_active = max(1, int(self.params.get("batch_size", DEFAULT_BATCH_SIZE)))
        self.position: int | None = None  # what its client was told last
        self._send = send
        self._lock = threading.Lock()
        self._cancelled_by: CancelledBy | None = None
        self.is_settled = False

    @property
    def slot(self) -> str | None:
        """The slot that it needs for itself, under a name that no other client's has."""
        name = self.params.get("slot")
        return None if name is None else f"{self.client} {type(name).__name__} {name}"

    @property
    def cancelled_by(self) -> CancelledBy | None:
        """Why it must end; its time may be up."""
        is_late = self.deadline_s is not None and time.perf_counter() >= self.deadline_s
        if self._cancelled_by is None and is_late:
            self._cancelled_by = "timeout"
        return self._cancelled_by

    def cancel(self, by: CancelledBy) -> None:
        """End it: at once while nothing of it has begun, else before its next step."""
        self._cancelled_by = self._cancelled_by or by
        has_words = self.op in _ONES or self.op in PARTED  # what there is so far is worth waiting for
        if self.active == 0 or not has_words:
            self.settle_cancelled()

    def settle_cancelled(self) -> None:
        """Answer that it was cancelled, with nothing, if no answer was sent."""
        by = self._cancelled_by or "cancel"
        if self.op in _ONES:
            nothing = completion_values(Completion.nothing(cancelled_by=by))
            count = self.params.get("n")
            self.settle({"completion": nothing} if count is None else {"completions": [nothing] * count})
        elif self.op in PARTED:
            self.settle({"cancelled_by": by})
        else:
            self.fail(ForwardInterrupted("The request was cancelled before it was answered."))

    def take(self) -> bool:
        """Take its next part, if so many of them may be under way; returns whether there was one."""
        if self.active >= self.most_active:
            return False
        self.part += 1
        self.active += 1
        self.begun_s = self.begun_s or time.perf_counter()
        return True

    @property
    def has_more(self) -> bool:
        """Whether parts of it still wait."""
        return self.part + 1 < self.parts

    def tell(self, event: str, **values: Any) -> None:
        """Send its client an event."""
        self._send({"id": self.number, "event": event, **values})

    def hear(self, chunk: Chunk) -> None:
        """Pass a piece of an answer on to a client that wants to read along."""
        if self.op in _ONES:
            self.tell("chunk", chunk=chunk_values(chunk))

    def end_part(self, part: int, values: dict[str, Any]) -> None:
        """A part is done: of many its client is told; of one this is the answer."""
        self.active -= 1
        self.ended += 1
        if self.op not in PARTED:
            self.settle(values)
            return
        self.tell("part", part=part, **values)
        if self.ended == self.parts:
            self.settle({})
        elif self.active == 0 and self.cancelled_by is not None:
            self.settle_cancelled()

    def fail_part(self, part: int, error: BaseException) -> None:
        """A part went wrong, and of many no other."""
        if self.op in PARTED:
            self.end_part(part, {"error": error_values(error)})
        else:
            self.active -= 1
            self.fail(error)

    def settle(self, result: dict[str, Any]) -> None:
        """Send the answer, unless one was sent."""
        if self._settles():
            self._send({"id": self.number, "result": result})

    def fail(self, error: BaseException) -> None:
        """Send an error as the answer, unless one was sent."""
        if self._settles():
            self._send({"id": self.number, "error": error_values(error)})

    def _settles(self) -> bool:
        with self._lock:
            is_first, self.is_settled = not self.is_settled, True
        return is_first

    def timed(self, completion: Completion) -> Completion:
        """A completion whose times count from the request's arrival."""
        waited_s = (self.begun_s or self.arrived_s) - self.arrived_s
        times = completion.timings
        ttft_s = None if times.ttft_s is None else times.ttft_s + waited_s
        timings = replace(
            times, queue_s=times.queue_s + waited_s, ttft_s=ttft_s, total_s=times.total_s + waited_s
        )
        return replace(completion, timings=timings)


def watched(task: Task[T], job: Job) -> Task[T]:
    """The same task, with all that it asks watched by the job."""
    try:
        asked = next(task)
        while True:
            try:
                found = yield _with_watcher(asked, job)
            except TinykitError as error:
                asked = task.throw(error)
            else:
                asked = task.send(found)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        task.close()


def _with_watcher(asked: Request | list[Request], job: Job) -> Request | list[Request]:
    if isinstance(asked, Request):
        return replace(asked, watcher=job)
    return [replace(request, watcher=job) for request in asked]
