"""One connection to a worker: requests out, answers and events in, by a thread of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tinykit.errors import WorkerDiedError, WorkerError
from tinykit.worker.protocol import VERSION, FrameError, Frames, Message, pack

GREETING_S = 20.0
_SLICE_S = 0.2  # of waiting; on Windows only what ends can be interrupted
_PIECE = 2**16


class WorkerLeft(WorkerError):
    """The worker was gone before it had taken a request: the next one may be asked."""


class Call:
    """A request that is under way."""

    def __init__(self, client: Client, number: int) -> None:
        self.number = number
        self.is_accepted = False  # the worker has it
        self._client = client
        self._events: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def send(self, op: str, params: dict[str, Any] | None = None) -> None:
        """Ask for it.

        Raises:
            WorkerError: the worker is gone, or the request is too large.
        """
        self._client.start(self, op, params)

    def put(self, message: Message) -> None:
        """Take what has arrived for this request."""
        self.is_accepted = self.is_accepted or "failure" not in message
        if message.get("event") != "accepted":
            self._events.put(message)

    def next(self, timeout_s: float | None = None) -> Message | None:
        """The next event or the answer; None if none comes in time.

        Raises: the worker's error, if that is the answer.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = (
                _SLICE_S if deadline_s is None else min(_SLICE_S, max(0.0, deadline_s - time.monotonic()))
            )
            try:
                message = self._events.get(timeout=left_s)
            except queue.Empty:
                if deadline_s is not None and time.monotonic() >= deadline_s:
                    return None
                continue
            if (failure := message.get("failure")) is not None:
                raise failure
            if "error" in message and "event" not in message:  # of a part it is an event
                from tinykit.worker.wire import error_of

                raise error_of(message["error"])
            return message

    def events(self) -> Iterator[Message]:
        """Everything up to the answer, which comes last."""
        while True:
            message = self.next()
            assert message is not None
            yield message
            if "result" in message:
                return

    def result(self, on_event: Callable[[Message], None] | None = None) -> dict[str, Any]:
        """The answer. Raises: the worker's error."""
        while True:
            message = self.next()
            assert message is not None
            if "result" in message:
                found: dict[str, Any] = message["result"]
                return found
            if on_event is not None:
                on_event(message)

    def cancel(self) -> None:
        """Let the worker end it; its answer is what there is by then."""
        with contextlib.suppress(WorkerError):
            self._client.send(
                {"id": self._client.new_number(), "op": "cancel", "params": {"target": self.number}}
            )


class Client:
    """A connection that was greeted.

    Args:
        connection: To the worker.
        greeting: What it answered.
        frames: What has arrived so far.
        obituary: Makes the error for requests that are under way when the worker is gone.
    """

    def __init__(
        self,
        connection: socket.socket,
        greeting: dict[str, Any],
        frames: Frames,
        obituary: Callable[[], WorkerError],
    ) -> None:
        self.pid: int = greeting["pid"]
        self.tag: dict[str, Any] = greeting["tag"]
        self.is_open = True
        self._is_deaf = False  # it takes nothing more, though its end may not have been read yet
        self._socket = connection
        self._frames = frames
        self._obituary = obituary
        self._numbers = itertools.count(1)
        self._calls: dict[int, Call] = {}
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._process = os.getpid()
        self._reader = threading.Thread(target=self._read, name="tinykit worker client", daemon=True)
        try:
            self._reader.start()
        except BaseException:
            self._hang_up()  # so that it ends, if it has begun
            raise

    @property
    def is_usable(self) -> bool:
        """Whether it is open, and this is no fork of the process that opened it."""
        return self.is_open and not self._is_deaf and self._process == os.getpid()

    def new_number(self) -> int:
        """A number for a request."""
        return next(self._numbers)

    def new_call(self) -> Call:
        """A request to be sent by its `send`: whoever is interrupted in that can cancel it."""
        return Call(self, self.new_number())

    def start(self, call: Call, op: str, params: dict[str, Any] | None) -> None:
        """Send a request. Raises: as `Call.send`."""
        with self._lock:
            if not self.is_open:
                raise _left()
            self._calls[call.number] = call
        try:
            self.send({"id": call.number, "op": op, "params": params or {}})
        except BaseException:
            with self._lock:
                self._calls.pop(call.number, None)
            raise

    def send(self, message: Message) -> None:
        """Send a message as it is. Raises: as `Call.send`."""
        try:
            data = pack(message)
        except FrameError as error:
            raise WorkerError(
                f"The request is too large for the shared worker: {error}.", hint="Send it in parts."
            ) from error
        with self._sending:
            try:
                self._socket.sendall(data)
            except OSError as error:
                self._is_deaf = True
                raise _left() from error
            except BaseException:
                self.close()  # half a frame was sent: nothing after it would be understood
                raise

    def close(self) -> None:
        """Leave; the worker cancels what is under way for us."""
        self._hang_up()
        if threading.current_thread() is not self._reader and self._process == os.getpid():
            self._reader.join(5.0)
        self._socket.close()

    def _hang_up(self) -> None:
        self.is_open = False
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read(self) -> None:
        with contextlib.suppress(OSError, FrameError):
            while True:
                while (message := self._frames.take()) is not None:
                    self._pass_on(message)
                data = self._socket.recv(_PIECE)
                if not data:
                    break
                self._frames.feed(data)
        was_open, self.is_open = self.is_open, False
        with self._lock:
            calls, self._calls = list(self._calls.values()), {}
        self._socket.close()
        for call in calls:
            if not was_open:
                error = WorkerError("The connection to the worker was closed.")
            else:
                error = self._obituary() if call.is_accepted else _left()
            call.put({"failure": error})

    def _pass_on(self, message: Message) -> None:
        number = message.get("id")
        is_last = "event" not in message
        with self._lock:
            call = self._calls.pop(number, None) if is_last else self._calls.get(number)  # type: ignore[arg-type]
        if call is not None:
            call.put(message)


def greet(
    connection: socket.socket, secret: str | None, *, is_for_work: bool = False
) -> tuple[dict[str, Any], Frames]:
    """Say hello; what the worker answers, and what has arrived after it.

    One that is `is_for_work` counts as a request, so that the worker does not end before the first one comes.

    Raises:
        OSError: it did not answer in time, or left.
        ValueError: what answered is no worker, or refused; the message says so.
    """
    frames = Frames()
    connection.settimeout(GREETING_S)
    hello = {"id": 0, "op": "hello", "version": VERSION, "secret": secret, "work": is_for_work}
    connection.sendall(pack(hello))
    try:
        while (answer := frames.take()) is None:
            data = connection.recv(_PIECE)
            if not data:
                raise ConnectionResetError("it left without an answer")
            frames.feed(data)
    except FrameError as error:
        raise ValueError(f"it is no worker: {error}") from error
    connection.settimeout(None)
    result = answer.get("result")
    if not isinstance(result, dict) or not isinstance(result.get("pid"), int) or "tag" not in result:
        problem = answer.get("error")
        text = problem.get("message") if isinstance(problem, dict) else None
        raise ValueError(text or "it is no worker: its answer to the greeting is none")
    return result, frames


def _left() -> WorkerLeft:
    return WorkerLeft("The worker has ended.")


def ask(connection: socket.socket, frames: Frames, op: str) -> dict[str, Any] | None:
    """The answer to one short request on a connection of its own, which is closed; None if there is none."""
    with connection:
        try:
            connection.settimeout(GREETING_S)
            connection.sendall(pack({"id": 1, "op": op}))
            while (answer := frames.take()) is None or answer.get("id") != 1:
                if answer is None:
                    data = connection.recv(_PIECE)
                    if not data:
                        return None
                    frames.feed(data)
        except (OSError, FrameError):
            return None
    result = answer.get("result")
    return result if isinstance(result, dict) else None


def died(name: str, log: str, text: str, *, pid: int | None = None) -> WorkerDiedError:
    """The error for requests whose worker is gone, with the end of its log."""
    who = f"The shared worker {name}" + (f" (pid {pid})" if pid else "")
    end = f" The end of its log:\n{text}" if text else ""
    hint = f"Ask again: a new one is started. Its whole log: tinykit worker logs {name}"
    return WorkerDiedError(f"{who} ended before it answered.{end}", hint=hint, worker=name, log=log)
