"""One model in a worker, as a session sees it: attached when it is needed, again when it is gone."""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinykit import settings
from tinykit.backends.base import BackendInfo, EncoderInfo
from tinykit.errors import ClosedError, DeviceFallbackWarning, TinykitError, WorkerDiedError, WorkerError
from tinykit.interrupts import shorten
from tinykit.loading import checked_dtype
from tinykit.model_spec import ModelSpec
from tinykit.progress import Progress, ProgressEvent
from tinykit.worker.client import Call, Client, WorkerLeft
from tinykit.worker.crashes import CRASHES
from tinykit.worker.launch import Launch
from tinykit.worker.places import log_path, runtime_dir
from tinykit.worker.protocol import Message
from tinykit.worker.spawning import attach, probe
from tinykit.worker.transport import has_unix_sockets
from tinykit.worker.wire import event_of, info_of, spec_values

_ANSWER_S = 10.0  # for what needs no model

OnEvent = Callable[[Message], None]


@dataclass(frozen=True)
class WorkerStatus:
    """A worker's process.

    Attributes:
        name: What `tinykit worker` calls it.
        pid: Its process.
        state: ``not loaded``, ``loading`` or ``ready``.
        memory_bytes: What it holds in memory.
        uptime_s: Seconds since its start.
        idle_s: Seconds since the last request.
        idle_limit_s: After so many of them it ends.
        clients: Connections.
        waiting: Requests that wait.
        running: Requests under way.
        served: Requests so far.
        device, backend, dtype: What the model runs on, once it is loaded.
        log: Its log.
    """

    name: str
    pid: int
    state: str
    memory_bytes: int | None
    uptime_s: float
    idle_s: float
    idle_limit_s: int
    clients: int
    waiting: int
    running: int
    served: int
    device: str | None
    backend: str | None
    dtype: str | None
    log: str

    @classmethod
    def of(cls, values: dict[str, Any]) -> WorkerStatus:
        """The status out of a worker's answer."""
        return cls(**{name: values.get(name) for name in cls.__dataclass_fields__})  # type: ignore[arg-type]


def launch_of(spec: ModelSpec, options: dict[str, Any]) -> Launch:
    """The launch for a model and a session's arguments; settings count as they are now.

    Raises:
        OptionError: a setting or an argument that does not exist.
        WorkerError: there is no folder for workers.
    """
    chosen = {
        "device": settings.get("device", options.get("device")),
        "backend": settings.get("backend", options.get("backend")),
        "dtype": checked_dtype(options.get("dtype"), spec),
        "threads": settings.get("threads", options.get("threads")),
        "fallback": settings.get("fallback", options.get("fallback")),
    }
    launch = Launch(
        spec=spec_values(spec),
        options=chosen,
        home=str(settings.get("home")),
        cache_bytes=settings.get("cache_bytes"),
        folder=str(runtime_dir()),
        log="",
        idle_s=settings.get("worker_idle_s"),
        is_loopback=not has_unix_sockets(),
    )
    return launch.with_log(log_path(launch.name))


class RemoteModel:
    """A model in a worker.

    Args:
        spec: The model.
        options: The session's arguments for loading.
        progress: Where to show what the worker's downloads and imports tell.
    """

    def __init__(self, spec: ModelSpec, options: dict[str, Any], progress: Progress) -> None:
        self.spec = spec
        self.info: BackendInfo | EncoderInfo | None = None
        self.is_judge = spec.task == "judge"
        self.asked = "cpu"
        self.load_s = 0.0
        self._options = options
        self._progress = progress
        self._lock = threading.RLock()
        self._client: Client | None = None
        self._attached: Launch | None = None  # to this one
        self._has_replaced = False
        self._is_closed = False

    @property
    def launch(self) -> Launch:
        """The worker that is wanted as the settings are now."""
        return launch_of(self.spec, self._options)

    def attach(self) -> Client:
        """The connection, made now if there is none.

        Raises:
            WorkerError: there is no worker, and none can be started.
        """
        with self._lock:
            if self._is_closed:
                raise ClosedError("This session was closed.", hint="Make a new TinySession.")
            if self._client is None or not self._client.is_usable:
                self.info = None
                launch = self._attached = self.launch
                self._client = attach(
                    launch,
                    may_replace=not self._has_replaced,
                    on_start=self._tell_start,
                    on_replace=self._replaced,
                )
            return self._client

    def load(self, progress: Progress | None = None) -> None:
        """Let the worker load the model, if it has not; `progress` shows it in place of the session's.

        Raises: what loading it here would raise, and WorkerError.
        """
        with self._lock:
            if self.info is not None and self._client is not None and self._client.is_usable:
                return
            started_s = time.perf_counter()
            shown, self._progress = self._progress, progress or self._progress
            try:
                found = self._result("load", {"offline": self._options.get("offline")}, self.on_event)
            finally:
                self._progress = shown
            self.info, self.is_judge, self.asked = info_of(found["info"]), found["is_judge"], found["asked"]
            self.load_s += time.perf_counter() - started_s
        for one in found["warnings"]:
            warnings.warn(
                DeviceFallbackWarning(one["message"], asked=one["asked"], used=one["used"]), stacklevel=4
            )

    def result(self, op: str, params: dict[str, Any], on_event: OnEvent | None = None) -> dict[str, Any]:
        """The answer to a request; the model is loaded first.

        Raises: the worker's error, and WorkerError.
        """
        try:
            self.load()
            found = self._result(op, params, on_event or self.on_event)
        except KeyboardInterrupt as error:
            shorten(error)
            raise
        self.succeeded()
        return found

    def new_call(self) -> Call:
        """A request to be sent and read event by event; the model is loaded first. Raises: as `result`."""
        self.load()
        return self.attach().new_call()

    def quick(self, op: str, params: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The answer to what needs no model; None if there is no worker or no answer."""
        client = self._client
        if client is None or not client.is_usable:
            return None
        with contextlib.suppress(WorkerError):
            call = client.new_call()
            call.send(op, params)
            message = call.next(_ANSWER_S)
            return None if message is None else message.get("result")
        return None

    def status(self) -> WorkerStatus | None:
        """The worker's status, None if it does not run; none is started."""
        found = self.quick("status")
        if found is None:
            found = status_at(self.launch)
        return None if found is None else WorkerStatus.of(found)

    def close(self) -> None:
        """Leave the worker, which goes on for others."""
        self._is_closed = True
        self.detach()

    def detach(self) -> None:
        """Leave the worker until the next request."""
        client, self._client, self.info = self._client, None, None
        if client is not None:
            client.close()

    def on_event(self, message: Message) -> None:
        """Show what the worker tells while we wait."""
        if message["event"] == "progress":
            self._progress.relay(event_of(message["progress"]))
        elif message["event"] == "queued":
            ahead = message["position"]
            others = "1 request comes" if ahead == 1 else f"{ahead} requests come"
            text = f"{others} first at the shared worker" if ahead else "it is our turn"
            self._progress.relay(
                ProgressEvent("progress", model=self.spec.key, name=f"{self.spec.key}: queue", message=text)
            )

    def failed(self, error: WorkerError) -> None:
        """Remember that a worker died with something to do for us."""
        if isinstance(error, WorkerDiedError):
            reason = f"it died while it {'worked' if self.info else 'loaded the model'}"
            CRASHES.add(self._attached or self.launch, reason, is_of_loading=self.info is None)

    def succeeded(self) -> None:
        """Forget earlier deaths, now that a request was answered."""
        if self._attached is not None:
            CRASHES.clear(self._attached)

    def _result(self, op: str, params: dict[str, Any], on_event: OnEvent | None) -> dict[str, Any]:
        for is_last in (False, False, True):
            call = None
            try:
                call = self.attach().new_call()
                call.send(op, params)
                return call.result(on_event)
            except WorkerLeft:  # it was idle and has ended just now: the next one answers
                if is_last:
                    raise
            except WorkerError as error:
                self.failed(error)
                raise
            except BaseException as error:
                if call is not None and not isinstance(error, TinykitError):
                    call.cancel()
                raise
        raise AssertionError("the last try returns or raises")

    def _tell_start(self, name: str) -> None:
        text = f"{self.spec.key}: starting the shared worker"
        self._progress.relay(ProgressEvent("progress", model=self.spec.key, name=name, message=text))

    def _replaced(self) -> None:
        self._has_replaced = True


def status_at(launch: Launch) -> dict[str, Any] | None:
    """What the worker of a launch says of itself; None if none answers."""
    from tinykit.worker.client import ask

    with contextlib.suppress(WorkerError):
        found = probe(launch)
        if found is not None:
            return ask(found.socket, found.frames, "status")
    return None


def as_path(path: str | Path) -> str:
    """A path as the worker, which has another working folder, must get it."""
    return str(Path(path).expanduser().absolute())
