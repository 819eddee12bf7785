"""Where there are no Unix sockets, as on Windows: a loopback port with a secret serves as a socket does."""

import json
import os
import signal
import socket
import threading

import pytest

from tests.worker.conftest import PATIENCE_S, is_alive, wait_until
from tinykit import TinySession
from tinykit.worker import admin, remote
from tinykit.worker.client import ask, greet
from tinykit.worker.protocol import Frames, pack
from tinykit.worker.spawning import end_worker, is_free
from tinykit.worker.transport import LoopbackTransport

ONE_WORKER = True


@pytest.fixture(autouse=True)
def loopback(monkeypatch):
    """A system without Unix sockets, as far as this program knows; its workers do as they are told."""
    monkeypatch.setattr(remote, "has_unix_sockets", lambda: False)


@pytest.fixture
def launch(shared):
    shared.load()
    launch = shared._remote(shared.spec).launch
    assert isinstance(launch.transport, LoopbackTransport)
    return launch


def test_answers_are_those_of_a_session_of_ones_own(launch, shared, alone, options):
    asked = {"max_tokens": 20, "stop": ["q"], "logprobs": 2}
    assert shared.complete("a", **asked) == alone.complete("a", **asked)
    assert list(shared.stream("a", max_tokens=9)) == list(alone.stream("a", max_tokens=9))
    assert shared.titles(["why does it fail", "hi there!"]) == alone.titles(["why does it fail", "hi there!"])
    assert shared.choose("Which?", ["a", "b"]) == alone.choose("Which?", ["a", "b"])
    with TinySession(shared=True, **options) as other:
        assert other.complete("a", max_tokens=3) == shared.complete("a", max_tokens=3)
        assert other.worker.pid == shared.worker.pid != os.getpid()


def test_cancel_and_status_do_not_wait_for_the_model(launch, shared, backend, in_thread):
    backend.on("hold")
    call = in_thread(lambda: shared.complete("a", max_tokens=200))
    backend.wait_for("held")
    assert shared.worker.running == 1 and shared.cancel() == 1
    backend.off("hold")
    assert call.get().cancelled_by == "cancel"


def test_port_and_secret_are_for_the_user_alone(launch):
    path = launch.transport.path
    assert path.suffix == ".port" and path.stat().st_mode & 0o777 == 0o600
    found = json.loads(path.read_text())
    assert set(found) == {"port", "secret"} and len(found["secret"]) == 64
    with socket.create_connection(("127.0.0.1", found["port"])) as connection:
        assert connection.getpeername()[0] == "127.0.0.1"


@pytest.mark.parametrize("secret", ["0" * 64, "", None, 7, ["x"], "ünïcode"], ids=str)
def test_nobody_comes_in_without_the_secret(launch, shared, secret):
    connection, right = launch.transport.connect()
    with connection, pytest.raises(ValueError, match="another user"):
        greet(connection, secret)
    connection, right = launch.transport.connect()
    greeting, frames = greet(connection, right)
    assert ask(connection, frames, "ping") == {"pid": greeting["pid"]} == {"pid": shared.worker.pid}


def test_nothing_is_answered_before_the_greeting(launch):
    connection, secret = launch.transport.connect()
    with connection:
        connection.settimeout(PATIENCE_S)
        connection.sendall(pack({"id": 1, "op": "status", "secret": secret}))
        frames, data = Frames(), b"-"
        while (message := frames.take()) is None:
            data = connection.recv(2**16)
            frames.feed(data)
        assert "must be a greeting" in message["error"]["message"]
        assert connection.recv(2**16) == b""


def test_workers_are_listed_and_ended_and_the_next_has_another_secret(launch, shared):
    before, pid = launch.transport.path.read_text(), shared.worker.pid
    assert [row["pid"] for row in admin.running()] == [pid]
    assert end_worker(launch)
    wait_until(lambda: not is_alive(pid))
    assert not launch.transport.path.exists() and admin.running() == []
    assert shared.complete("a", max_tokens=3).text
    assert launch.transport.path.read_text() != before


class Stranger:
    """Another program that got the port of a worker that died; it answers as `reply`."""

    def __init__(self, reply):
        self._reply = reply
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.heard = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self):
        while True:
            connection, _ = self._listener.accept()
            with connection:
                self.heard += 1
                if self._reply is None:
                    return
                connection.recv(2**16)
                connection.sendall(self._reply)

    def close(self):
        self._reply = None
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join(PATIENCE_S)
        self._listener.close()


@pytest.mark.parametrize("left", ["closed port", "stranger", "garbage", "empty"])
def test_what_a_killed_worker_left_is_in_nobodys_way(launch, shared, left):
    expected, pid = shared.complete("a", max_tokens=3), shared.worker.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_free(launch))
    path, stranger = launch.transport.path, None
    assert path.exists()
    if left == "stranger":
        stranger = Stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        path.write_text(json.dumps({"port": stranger.port, "secret": "x"}))
    elif left != "closed port":
        path.write_text("{not json" if left == "garbage" else "")
    try:
        assert shared.complete("a", max_tokens=3) == expected
        assert shared.worker.pid != pid
        assert stranger is None or stranger.heard
    finally:
        if stranger is not None:
            stranger.close()
