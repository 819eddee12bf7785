"""Find the worker of a launch, or start it: one process for all who ask, however many ask at once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import tinykit
from tinykit.errors import WorkerError
from tinykit.worker.__main__ import FULL, LOST
from tinykit.worker.client import Client, died, greet
from tinykit.worker.crashes import CRASHES
from tinykit.worker.launch import Launch
from tinykit.worker.log_file import open_log, rotate, tail
from tinykit.worker.protocol import Frames

READY_S = 120.0
_POLL_S = 0.05
LEAVE_S = 5.0  # for a worker that was asked to end, before it is made to
_KILL_S = 5.0

_children: list[subprocess.Popen[bytes]] = []  # so that those that have ended are not left as zombies
_children_lock = threading.Lock()


class Found(NamedTuple):
    """A worker that answered."""

    socket: socket.socket
    greeting: dict[str, Any]
    frames: Frames


def probe(launch: Launch, *, is_for_work: bool = False) -> Found | None:
    """Greet whoever listens; None if nobody does.

    Raises:
        WorkerError: something answers, but is no worker of ours.
    """
    try:
        connection, secret = launch.transport.connect()
    except OSError as error:
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError, ConnectionResetError)):
            return None
        raise WorkerError(
            f"The worker {launch.name} cannot be reached at {launch.transport.path}: {error}.",
            hint=f"End it: tinykit worker stop {launch.name}",
            worker=launch.name,
        ) from error
    try:
        return Found(connection, *greet(connection, secret, is_for_work=is_for_work))
    except (ConnectionError, BrokenPipeError):  # it is about to end
        connection.close()
        return None
    except (OSError, ValueError) as error:
        connection.close()
        if is_free(launch):  # another program has the port of a worker that died
            return None
        raise WorkerError(
            f"What listens at {launch.transport.path} does not answer as a worker: {error}.",
            hint=f"End it: tinykit worker stop {launch.name}",
            worker=launch.name,
        ) from error
    except BaseException:
        connection.close()
        raise


def attach(
    launch: Launch,
    *,
    may_replace: bool = True,
    on_start: Callable[[str], None] | None = None,
    on_replace: Callable[[], None] | None = None,
) -> Client:
    """A connection to the launch's worker, which is started if it is not there.

    One of another version is replaced, but only if `may_replace`.

    Raises:
        WorkerError: it cannot be started, has failed too often lately, or cannot be reached.
    """
    started = _Starting(launch, on_start)
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        found = probe(launch, is_for_work=True)
        if found is None:
            started.look()
            time.sleep(_POLL_S)
            continue
        if found.greeting["tag"] == launch.tag:
            return _client(launch, found)
        found.socket.close()
        if not may_replace:
            raise WorkerError(
                f"The worker {launch.name} is of another version, {found.greeting['tag']}, and was replaced "
                "once already.",
                hint="Two versions of tinykit are in use: end the other one's programs, or set "
                "TINYKIT_WORKER_DIR to different folders.",
                worker=launch.name,
            )
        may_replace = False
        if on_replace is not None:
            on_replace()
        end_worker(launch, found.greeting["pid"])
    raise WorkerError(
        f"The worker {launch.name} did not listen within {READY_S:.0f} s.{_end_of(launch)}",
        worker=launch.name,
    )


class _Starting:
    """The start of a worker's process, at most once for each time that nobody listens."""

    def __init__(self, launch: Launch, on_start: Callable[[str], None] | None) -> None:
        self._launch = launch
        self._on_start = on_start
        self._process: subprocess.Popen[bytes] | None = None
        self._lost = 0

    def look(self) -> None:
        """Start it, or see what has become of it.

        Raises:
            WorkerError: it ended at once, or has failed too often lately.
        """
        if self._process is None:
            CRASHES.check(self._launch)
            if self._on_start is not None:
                self._on_start(self._launch.name)
            self._process = spawn(self._launch)
            return
        code = self._process.poll()
        if code is None:
            return
        if code in (0, LOST):  # another one was there first, or it has been told to end
            self._process = None
            time.sleep(min(1.0, _POLL_S * 2**self._lost))
            self._lost += 1
            return
        if code == FULL:  # which may be over soon, so that it does not count as a crash
            raise WorkerError(
                f"The worker {self._launch.name} cannot start: there is no room in {self._launch.folder}.",
                hint="Free some space there, or set TINYKIT_WORKER_DIR to a folder on another disk.",
                worker=self._launch.name,
                code=code,
            )
        CRASHES.add(self._launch, f"it ended with code {code} before it listened")
        raise WorkerError(
            f"The worker {self._launch.name} ended with code {code} before it listened."
            f"{_end_of(self._launch)}",
            worker=self._launch.name,
            code=code,
        )


def spawn(launch: Launch) -> subprocess.Popen[bytes]:
    """Start the worker's process, detached: it outlives this one, and holds nothing of it.

    Raises:
        WorkerError: it cannot be started.
    """
    log_file = Path(launch.log)
    rotate(log_file)
    log = open_log(log_file)
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tinykit.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if log is None else log,
            stderr=subprocess.STDOUT,
            close_fds=True,
            cwd=Path(launch.folder).anchor or None,
            env=_environment(launch),
            **_detached(),
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as launched:
            launched.write(launch.text.encode())
    except OSError as error:
        raise WorkerError(
            f"The worker {launch.name} cannot be started: {error}.", worker=launch.name
        ) from error
    finally:
        if log is not None:
            os.close(log)
    with _children_lock:
        _children[:] = [child for child in _children if child.poll() is None]
        _children.append(process)
    return process


def _detached() -> dict[str, Any]:
    if os.name == "nt":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}  # type: ignore[attr-defined]
    return {"start_new_session": True}


def _environment(launch: Launch) -> dict[str, str]:
    """Ours, with the home and the package where they are for us."""
    package = str(Path(tinykit.__file__).resolve().parent.parent)
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "TINYKIT_HOME": launch.home,
        "TINYKIT_CACHE_BYTES": str(launch.cache_bytes),
        "TINYKIT_PROGRESS": "off",
        "TOKENIZERS_PARALLELISM": "false",
        # glibc would soon keep what is freed of prompts' states in its heaps, some 200 MB after eight clients
        "MALLOC_MMAP_THRESHOLD_": os.environ.get("MALLOC_MMAP_THRESHOLD_", str(2**20)),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
    }


def _client(launch: Launch, found: Found) -> Client:
    pid = found.greeting["pid"]

    def obituary() -> WorkerError:
        return died(launch.name, launch.log, tail(Path(launch.log)), pid=pid)

    return Client(found.socket, found.greeting, found.frames, obituary)


def _end_of(launch: Launch) -> str:
    text = tail(Path(launch.log))
    return f" The end of its log:\n{text}" if text else ""


def end_worker(launch: Launch, pid: int | None = None) -> bool:
    """End the worker: ask, then terminate, then kill; returns whether there was one.

    Raises:
        WorkerError: it is still there.
    """
    found = None
    with suppress(WorkerError):
        found = probe(launch)
    if found is not None:
        pid = found.greeting["pid"]
        with found.socket, suppress(OSError):
            _ask_to_end(found)
    if pid is None:
        pid = recorded_pid(launch)
    if pid is None:
        return False
    for number, budget_s in ((None, LEAVE_S), (signal.SIGTERM, LEAVE_S), (_KILL, _KILL_S)):
        if number is not None:
            with suppress(OSError):
                os.kill(pid, number)
        if _is_gone(launch, budget_s if found is not None or number is not None else 0.0):
            return True
    raise WorkerError(f"The worker {launch.name} (pid {pid}) cannot be ended.", worker=launch.name, pid=pid)


_KILL: int = getattr(signal, "SIGKILL", signal.SIGTERM)


def _ask_to_end(found: Found) -> None:
    from tinykit.worker.protocol import pack

    found.socket.settimeout(LEAVE_S)
    found.socket.sendall(pack({"id": 1, "op": "shutdown"}))
    while found.socket.recv(2**16):
        pass  # until it hangs up


def recorded_pid(launch: Launch) -> int | None:
    """The process that serves, as far as is written down; None if its lock is free, so that it is dead."""
    if is_free(launch):
        return None
    try:
        return int(launch.path("pid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def is_free(launch: Launch, sweep: bool = False) -> bool:
    """Whether no process serves: the lock of one that died is free.

    With `sweep` what such a one has left is removed; the lock stays, since others may wait for it.
    """
    import filelock

    path = launch.path("lock")
    if not path.exists():
        return True
    lock = filelock.FileLock(path, mode=0o600)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return False
    except OSError:
        return True
    if sweep:
        for ending in ("sock", "port", "pid", "json"):
            with suppress(OSError):
                launch.path(ending).unlink()
    lock.release()
    return True


def _is_gone(launch: Launch, budget_s: float) -> bool:
    deadline_s = time.monotonic() + budget_s
    while True:
        with _children_lock:
            for child in _children:
                child.poll()
        if is_free(launch):
            return True
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_POLL_S)
