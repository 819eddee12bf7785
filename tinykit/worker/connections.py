"""All connections of a worker, in one thread that never waits for the model nor for a client.

Each connection has its own buffers with limits, so that junk, half frames, clients that read nothing and
floods of connections cost the others nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tinykit.worker.protocol import MAX_FRAME_BYTES, MAX_HELLO_BYTES, FrameError, Frames, Message, pack

MAX_CONNECTIONS = 200
MAX_UNREAD_BYTES = 32 * 2**20  # of answers that a client has not read
STALLED_S = 120.0  # a client that reads nothing for so long, though something waits for it, is let go
GREETING_S = 20.0
_PIECE = 2**16
_TICK_S = 0.5
_MAX_FAULTS = 20  # frames that are no message, after which a connection is closed

_log = logging.getLogger("tinykit.worker")
_numbers = itertools.count(1)


class Connection:
    """One client."""

    def __init__(self, sock: socket.socket) -> None:
        self.number = next(_numbers)
        self.socket = sock
        self.is_greeted = False
        self.is_for_work = False  # else it only looks
        self.is_closing = False  # once everything is sent
        self.is_lost = False  # at once
        self.frames = Frames(MAX_HELLO_BYTES)
        self.since_s = time.monotonic()
        self.faults = 0
        self._lock = threading.Lock()
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._moved_s = self.since_s  # when something was sent last, or nothing was left to send

    def greet(self) -> None:
        """Let it send real requests from now on."""
        self.is_greeted = True
        self.frames.limit_bytes = MAX_FRAME_BYTES

    def put(self, data: bytes) -> bool:
        """Add to what is to be sent; False if the client has left too much unread."""
        with self._lock:
            if self._unsent_bytes + len(data) > MAX_UNREAD_BYTES:
                return False
            if not self._unsent:
                self._moved_s = time.monotonic()
            self._unsent.append(memoryview(data))
            self._unsent_bytes += len(data)
        return True

    @property
    def has_unsent(self) -> bool:
        """Whether something is to be sent."""
        return bool(self._unsent)

    @property
    def is_stalled(self) -> bool:
        """Whether its client has stopped reading."""
        return self.has_unsent and time.monotonic() - self._moved_s > STALLED_S

    def flush(self) -> None:
        """Send what the system takes now.

        Raises:
            OSError: the client is gone.
        """
        with self._lock:
            while self._unsent:
                first = self._unsent[0]
                try:
                    sent = self.socket.send(first)
                except (BlockingIOError, InterruptedError):
                    return
                self._moved_s = time.monotonic()
                self._unsent_bytes -= sent
                if sent == len(first):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = first[sent:]


class Server(Protocol):
    """Who answers what the connections bring; called in their thread, so it must never wait."""

    def admits(self, connection: Connection, greeting: Message) -> Message:
        """The answer to a greeting; one with an error closes the connection."""
        ...

    def receive(self, connection: Connection, message: Message) -> None:
        """Take a message of a connection that was greeted."""
        ...

    def lose(self, connection: Connection) -> None:
        """A connection is gone."""
        ...

    def tick(self) -> bool:
        """Called now and then; False ends the thread."""
        ...


class Connections:
    """Accepts, reads and writes; `send` and `wake` may be called from any thread."""

    def __init__(self, listener: socket.socket, server: Server) -> None:
        self._server = server
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, Connection] = {}
        self._pending: deque[Connection] = deque()
        self._waker, self._woken = socket.socketpair()
        for one in (listener, self._waker, self._woken):
            one.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain)

    def __len__(self) -> int:
        return len(self._connections)

    def send(self, connection: Connection, message: Message) -> None:
        """Send a message when the client can take it; one that is gone gets nothing."""
        try:
            data = pack(message)
        except FrameError as error:
            data = pack({"id": message.get("id"), "error": _fault(f"The answer is too large: {error}.")})
        if not connection.put(data):
            _log.warning("client %d reads nothing and is let go", connection.number)
            connection.is_lost = True
        self._pending.append(connection)
        self.wake()

    def wake(self) -> None:
        """Let the thread look at once."""
        with contextlib.suppress(OSError):  # full: it will look anyhow
            self._waker.send(b"\0")

    def run(self) -> None:
        """Serve until the server's `tick` says that it is over."""
        is_on = True
        while is_on:
            for key, events in self._selector.select(_TICK_S):
                act: Callable[[int], None] = key.data
                act(events)
            while self._pending:
                self._write(self._pending.popleft())
            self._sweep()
            is_on = self._server.tick()

    def close(self, budget_s: float) -> None:
        """Stop accepting, send what is unsent within the budget, and close all."""
        deadline = time.monotonic() + budget_s
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self._listener)
        self._listener.close()
        while time.monotonic() < deadline and any(one.has_unsent for one in self._connections.values()):
            for connection in list(self._connections.values()):
                self._write(connection)
            time.sleep(0.01)
        for connection in list(self._connections.values()):
            self._drop(connection)

    def _accept(self, _: int) -> None:
        try:
            sock, _address = self._listener.accept()
        except OSError:
            time.sleep(0.01)  # out of descriptors: nothing else can be done about it
            return
        sock.setblocking(False)
        connection = Connection(sock)
        if len(self._connections) >= MAX_CONNECTIONS:
            with contextlib.suppress(OSError):
                sock.send(
                    pack(
                        {
                            "id": 0,
                            "error": {**_fault("The worker has too many connections."), "type": "BusyError"},
                        }
                    )
                )
            sock.close()
            return
        self._connections[connection.number] = connection
        self._selector.register(sock, selectors.EVENT_READ, lambda events: self._serve(connection, events))

    def _drain(self, _: int) -> None:
        with contextlib.suppress(OSError):
            while self._woken.recv(_PIECE):
                pass

    def _serve(self, connection: Connection, events: int) -> None:
        if events & selectors.EVENT_READ:
            self._read(connection)
        if events & selectors.EVENT_WRITE:
            self._write(connection)

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.socket.recv(_PIECE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return
        connection.frames.feed(data)
        while not connection.is_closing:
            try:
                message = connection.frames.take()
            except FrameError as error:
                self._complain(connection, error)
                continue
            if message is None:
                return
            self._take(connection, message)

    def _take(self, connection: Connection, message: Message) -> None:
        if connection.is_greeted:
            self._server.receive(connection, message)
            return
        answer = self._server.admits(connection, message)
        if "error" in answer:
            connection.is_closing = True
        else:
            connection.greet()
        self.send(connection, answer)

    def _complain(self, connection: Connection, error: FrameError) -> None:
        """Say what is wrong with a frame; whoever sends many of them, or is out of step, is let go."""
        _log.warning("client %d: %s", connection.number, error)
        connection.faults += 1
        if error.is_fatal or not connection.is_greeted or connection.faults >= _MAX_FAULTS:
            connection.is_closing = True
        self.send(connection, {"id": None, "error": _fault(f"This is no message: {error}.")})

    def _write(self, connection: Connection) -> None:
        if connection.number not in self._connections:
            return
        try:
            connection.flush()
        except OSError:
            connection.is_lost = True
        if connection.is_lost or (connection.is_closing and not connection.has_unsent):
            self._drop(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.has_unsent else 0)
        key = self._selector.get_key(connection.socket)
        if key.events != events:
            self._selector.modify(connection.socket, events, key.data)

    def _sweep(self) -> None:
        """Let go of those who do not greet, and of those who do not read."""
        now_s = time.monotonic()
        for connection in list(self._connections.values()):
            is_silent = not connection.is_greeted and now_s - connection.since_s > GREETING_S
            if is_silent or connection.is_stalled:
                _log.warning(
                    "client %d is %s and is let go", connection.number, "silent" if is_silent else "stalled"
                )
                self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if self._connections.pop(connection.number, None) is None:
            return
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)
        connection.socket.close()
        self._server.lose(connection)


def _fault(text: str) -> Message:
    return {"type": "WorkerError", "message": text}
