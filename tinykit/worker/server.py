"""A worker's process: bind under a lock, serve, end when idle, told to, or of no more use."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from tinykit.errors import BusyError, OptionError, WorkerError
from tinykit.worker.connections import Connection, Connections
from tinykit.worker.fair_queue import FairQueue, QueueFull
from tinykit.worker.launch import Launch
from tinykit.worker.memory import memory_bytes
from tinykit.worker.protocol import VERSION, Message
from tinykit.worker.transport import Transport

if TYPE_CHECKING:
    from tinykit.worker.jobs import Job
    from tinykit.worker.model_thread import ModelThread

BUDGET_S = 2.0  # for a clean end
_SEND_S = 0.5  # of it, to send what is not sent yet
_LOOK_S = 5.0  # between two looks at the own socket

_log = logging.getLogger("tinykit.worker")


class Worker:
    """Answers its clients; everything here runs in the thread of the connections, and never waits."""

    def __init__(self, launch: Launch, transport: Transport, listener: socket.socket) -> None:
        self._launch = launch
        self._transport = transport
        self._started_s = self._used_s = time.monotonic()
        self._connections = Connections(listener, self)
        self._queue: FairQueue[Job] = FairQueue()
        self._waiting: dict[int, dict[Any, Job]] = {}  # by client and request: what is not settled
        self._served = 0
        self._model: ModelThread | None = None
        self._thread: threading.Thread | None = None
        self._end_reason: str | None = None
        self._early: list[tuple[Connection, Message]] = []  # until what serves them is imported
        self._is_ready = False
        self._looked_s = self._started_s

    def run(self) -> str:
        """Serve until the end; returns why it came."""
        threading.Thread(target=self._import, name="imports", daemon=True).start()
        self._connections.run()
        reason = self._end_reason or "idle"
        for job in self._unsettled():
            job.fail(WorkerError(f"The shared worker was ended: {reason}.", worker=self._launch.name))
        if self._model is not None:
            self._model.stop()
        deadline_s = time.monotonic() + BUDGET_S
        self._connections.close(_SEND_S)
        if self._thread is not None:
            self._thread.join(max(0.1, deadline_s - time.monotonic()))
        return reason

    def _import(self) -> None:
        """Import what takes its time beside the connections, so that a greeting is answered at once."""
        try:
            import tinykit.worker.model_thread
            import tinykit.worker.wire  # noqa: F401
        except Exception as error:
            _log.exception("the worker cannot run")
            self.end(f"it cannot run: {error}")
        self._is_ready = True
        self._connections.wake()

    def end(self, reason: str) -> None:
        """End soon; for any thread and for signal handlers."""
        self._end_reason = self._end_reason or reason
        self._connections.wake()

    def admits(self, connection: Connection, greeting: Message) -> Message:
        """The answer to a greeting."""
        number = greeting.get("id")
        if greeting.get("op") != "hello":
            return _refusal(number, "The first message must be a greeting.")
        if not self._transport.admits(connection.socket, greeting.get("secret")):
            _log.warning("client %d was not let in", connection.number)
            return _refusal(number, "This worker serves another user.")
        if greeting.get("version") != VERSION:
            # who speaks another version still learns whose worker this is, so as to replace it
            _log.info("client %d speaks version %r", connection.number, greeting.get("version"))
        connection.is_for_work = bool(greeting.get("work"))
        if connection.is_for_work:
            self._used_s = time.monotonic()
        result = {"version": VERSION, "tag": self._launch.tag, "pid": os.getpid(), "name": self._launch.name}
        return {"id": number, "result": result}

    def receive(self, connection: Connection, message: Message) -> None:
        """Answer at once what needs no model; let the rest wait in the queue."""
        op, number = message.get("op"), message.get("id")
        if op == "ping":
            self._reply(connection, number, {"pid": os.getpid()})
        elif op == "status":
            self._reply(connection, number, self.status(connection))
        elif op == "cancel":
            self._reply(connection, number, {"number": self._cancel(connection, message.get("params"))})
        elif op == "clear_failures":
            self._reply(connection, number, {})
            self._clear_failures()
        elif op == "shutdown":
            self._reply(connection, number, {"pid": os.getpid()})
            self.end("a client asked for it")
        elif self._is_ready:
            self._accept(connection, message)
        else:
            self._early.append((connection, message))

    def lose(self, connection: Connection) -> None:
        """Cancel what a client that has left was waiting for."""
        self._early = [pair for pair in self._early if pair[0] is not connection]
        jobs = self._waiting.pop(connection.number, {})
        for job in jobs.values():
            self._end_job(job)
        if self._model is not None:
            self._model.free_slots(connection.number)

    def tick(self) -> bool:
        """Look after deadlines, the queue and idleness; False when it is time to end."""
        if self._is_ready and self._early:
            early, self._early = self._early, []
            for connection, message in early:
                self._accept(connection, message)
        jobs = self._unsettled()
        for job in jobs:
            if job.cancelled_by is not None:
                self._end_job(job)
        self._tell_positions()
        now_s = time.monotonic()
        if jobs or self._early:
            self._used_s = now_s
        elif now_s - self._used_s >= self._launch.idle_s:
            self.end(f"nothing was asked for {self._launch.idle_s} s")
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            if not self._transport.is_ours():
                self.end("its place in the runtime folder is gone")
        if self._thread is not None and not self._thread.is_alive():
            self.end("the model's thread ended")
        return self._end_reason is None

    def status(self, connection: Connection) -> dict[str, Any]:
        """What can be said without asking the model; who only looks is no client."""
        loaded = self._model.loaded if self._model else None
        state = "loading" if self._model and self._model.is_loading else "ready" if loaded else "not loaded"
        return {
            "name": self._launch.name,
            "pid": os.getpid(),
            "tag": self._launch.tag,
            "state": state,
            "device": loaded.info.device if loaded else None,
            "backend": loaded.info.backend if loaded else None,
            "dtype": loaded.info.dtype if loaded else None,
            "uptime_s": time.monotonic() - self._started_s,
            "idle_s": time.monotonic() - self._used_s,
            "idle_limit_s": self._launch.idle_s,
            "memory_bytes": memory_bytes(),
            "clients": len(self._connections) - (not connection.is_for_work),
            "waiting": len(self._queue),
            "running": len(self._model.jobs) if self._model else 0,
            "served": self._served,
            "log": self._launch.log,
        }

    def _accept(self, connection: Connection, message: Message) -> None:
        from tinykit.worker.jobs import Job
        from tinykit.worker.model_thread import OPERATIONS

        op = message.get("op")
        if op not in OPERATIONS:
            error = OptionError(f"There is no operation {op!r:.40}.", name="op", value=None)
            self._connections.send(connection, _error(message.get("id"), error))
            return
        self._used_s = time.monotonic()
        try:
            job = Job(connection.number, message, lambda answer: self._connections.send(connection, answer))
        except (TypeError, ValueError) as problem:
            self._connections.send(connection, _error(message.get("id"), problem))
            return
        own = self._waiting.setdefault(connection.number, {})
        for number in [number for number, one in own.items() if one.is_settled]:
            del own[number]
        if job.parts == 0:
            job.settle({})
            return
        own[job.number] = job
        job.tell("accepted")
        try:
            self._queue.put(connection.number, job)
        except QueueFull as full:
            hint = (
                "Ask again later, or send fewer requests at a time: titles() and complete_many() take many."
            )
            job.fail(BusyError(f"The shared worker is busy: {full}.", hint=hint, worker=self._launch.name))
            return
        self._served += 1
        self._start_model()

    def _start_model(self) -> None:
        """Start the model's thread with the first request, so that a worker that waits costs little."""
        if self._model is None:
            from tinykit.worker.model_thread import ModelThread
            from tinykit.worker.wire import spec_of

            self._model = ModelThread(
                spec_of(self._launch.spec),
                self._launch.options,
                self._queue,
                on_progress=self._tell_progress,
                on_poisoned=lambda: self.end("a model could not be released"),
            )
            self._thread = threading.Thread(target=self._model.run, name="model", daemon=True)
            self._thread.start()

    def _cancel(self, connection: Connection, params: object) -> int:
        """Cancel one request of a client, or all of them; returns how many that were."""
        own = self._waiting.get(connection.number, {})
        wanted = params.get("target") if isinstance(params, dict) else None
        jobs = [job for job in own.values() if not job.is_settled and wanted in (None, job.number)]
        for job in jobs:
            self._end_job(job)
        return len(jobs)

    def _end_job(self, job: Job) -> None:
        job.cancel("cancel")
        self._queue.remove(lambda one: one.is_settled)  # else they would count until the model has time
        if self._model is not None and job.active:
            self._model.interrupt(job)

    def _unsettled(self) -> list[Job]:
        return [job for own in self._waiting.values() for job in own.values() if not job.is_settled]

    def _tell_positions(self) -> None:
        """Let those who wait know how many are before them, when that has changed."""
        for position, job in enumerate(self._queue.in_order()):
            if job.begun_s is None and position != job.position:
                if position or job.position:
                    job.tell("queued", position=position)
                job.position = position

    def _tell_progress(self, values: dict[str, Any]) -> None:
        """Pass on what a download or an import says, to all who wait."""
        for job in self._unsettled():
            job.tell("progress", progress=values)

    def _clear_failures(self) -> None:
        """Try devices again on which a model has failed."""
        if self._model is not None:
            from tinykit.loading import FAILURES

            FAILURES.clear()

    def _reply(self, connection: Connection, number: object, result: dict[str, Any]) -> None:
        self._connections.send(connection, {"id": number, "result": result})


def _refusal(number: object, text: str) -> Message:
    return {"id": number, "error": {"type": "WorkerError", "message": text}}


def _error(number: object, error: BaseException) -> Message:
    from tinykit.worker.wire import error_values

    return {"id": number, "error": error_values(error)}
