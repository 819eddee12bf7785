"""How a worker is reached: a Unix socket, or where there is none a loopback port with a secret.

Both sides use `Transport` alone. Only programs of the same user get through: the socket's folder and the
socket are theirs alone and the system is asked who calls; the port's secret stands in a file of that kind.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
import time
from pathlib import Path
from typing import Protocol

CONNECT_S = 5.0
_BACKLOG = 128


class Transport(Protocol):
    """A place where a worker listens."""

    path: Path

    def listen(self) -> socket.socket:
        """Bind; whatever stood there before is removed, so the caller must hold the worker's lock."""
        ...

    def connect(self) -> tuple[socket.socket, str | None]:
        """A connection and the secret to greet with, if it takes one.

        Raises:
            OSError: nobody listens there.
        """
        ...

    def admits(self, connection: socket.socket, secret: object) -> bool:
        """Whether who greets with this secret may come in."""
        ...

    def is_ours(self) -> bool:
        """Whether what stands there is still what `listen` made."""
        ...

    def remove(self) -> None:
        """Leave nothing behind."""
        ...


class UnixTransport:
    """A socket in the file system, readable by its owner alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark: tuple[int, int] | None = None

    def listen(self) -> socket.socket:
        """Bind; a socket that a dead worker left is removed."""
        self.remove()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self.path))
            self.path.chmod(0o600)
            self._mark = _mark(self.path)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener

    def connect(self) -> tuple[socket.socket, str | None]:
        """A connection; no secret is needed."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(CONNECT_S)
            _connect(connection, str(self.path))
        except OSError:
            connection.close()
            raise
        return connection, None

    def admits(self, connection: socket.socket, secret: object) -> bool:
        """Whether the other end is a program of the same user, as far as the system tells."""
        uid = peer_uid(connection)
        return uid is None or uid == os.getuid()

    def is_ours(self) -> bool:
        """Whether nobody has removed or replaced it."""
        return _mark(self.path) == self._mark

    def remove(self) -> None:
        """Remove the socket."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def _connect(connection: socket.socket, path: str) -> None:
    """Connect, also where so many do at once that there is no room for us at first."""
    deadline_s = time.monotonic() + CONNECT_S
    while True:
        try:
            connection.connect(path)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(0.02)


def peer_uid(connection: socket.socket) -> int | None:
    """The user at the other end of a Unix socket; None where the system does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return None
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, size))
    return int(uid)


class LoopbackTransport:
    """A port of 127.0.0.1; a file that its owner alone can read has the number and a secret."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._secret = ""
        self._mark: tuple[int, int] | None = None

    def listen(self) -> socket.socket:
        """Bind to a free port, and write it down with a new secret."""
        self.remove()
        self._secret = secrets.token_hex(32)
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(("127.0.0.1", 0))
            listener.listen(_BACKLOG)
            fresh = self.path.with_name(f"{self.path.name}.{os.getpid()}")
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"port": listener.getsockname()[1], "secret": self._secret}, file)
            fresh.replace(self.path)
            self._mark = _mark(self.path)
        except OSError:
            listener.close()
            raise
        return listener

    def connect(self) -> tuple[socket.socket, str | None]:
        """A connection and the secret from the file."""
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            port, secret = int(found["port"]), str(found["secret"])
        except (ValueError, KeyError, TypeError) as error:
            raise FileNotFoundError(f"{self.path} names no port") from error
        connection = socket.create_connection(("127.0.0.1", port), timeout=CONNECT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, secret

    def admits(self, connection: socket.socket, secret: object) -> bool:
        """Whether the secret is the one in the file."""
        return isinstance(secret, str) and secrets.compare_digest(secret.encode(), self._secret.encode())

    def is_ours(self) -> bool:
        """Whether nobody has removed or replaced it."""
        return _mark(self.path) == self._mark

    def remove(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self.path.unlink()


def _mark(path: Path) -> tuple[int, int] | None:
    """What tells a file from others that stood in its place."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def has_unix_sockets() -> bool:
    """Whether this system has them; Python has none on Windows."""
    return hasattr(socket, "AF_UNIX") and os.name == "posix"


def transport_at(path: Path) -> Transport:
    """The transport of an endpoint, which its ending tells."""
    return LoopbackTransport(path) if path.suffix == ".port" else UnixTransport(path)
