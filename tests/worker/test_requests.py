"""Requests on their way: who is told what while others are served, and what ends with whom."""

import logging
import socket
import threading

import filelock
import pytest

from tests.worker.conftest import PATIENCE_S, wait_until
from tinykit import TinySession
from tinykit.errors import WorkerError
from tinykit.worker.client import ask, greet
from tinykit.worker.spawning import attach, is_free


def test_who_waits_is_told_how_many_come_first_and_when_it_is_its_turn(shared, backend, options, in_thread):
    shared.load()
    events = []
    with TinySession(shared=True, **{**options, "progress": events.append}) as late:
        backend.on("hold")
        first = in_thread(lambda: shared.complete("a", slot="s", max_tokens=3))
        backend.wait_for("held")
        second = in_thread(lambda: shared.complete("b", slot="s", max_tokens=3))
        wait_until(lambda: shared.worker.waiting == 1)
        third = in_thread(lambda: late.complete("c", max_tokens=3))
        wait_until(lambda: shared.worker.waiting == 2)
        wait_until(lambda: events and events[-1].message == "1 request comes first at the shared worker")
        assert {event.name for event in events if event.message} >= {"tiny: queue"}
        backend.off("hold")
        assert {one.get().finish_reason for one in (first, second, third)} == {"length"}


def test_everybody_gets_the_answer_to_what_they_asked(shared, alone, backend, options, in_thread):
    expected = [alone.complete(text, max_tokens=9) for text in ("a", "bcd")]
    shared.load()
    with TinySession(shared=True, **options) as other:
        backend.on("hold")
        calls = [
            in_thread(lambda session=session, text=text: session.complete(text, max_tokens=9))
            for session, text in ((shared, "a"), (other, "bcd"))
        ]
        backend.wait_for("held")
        wait_until(lambda: shared.worker.running + shared.worker.waiting == 2)
        backend.off("hold")
        assert [call.get() for call in calls] == expected


def test_shutdown_does_not_wait_for_the_model(shared, backend, in_thread):
    shared.load()
    launch = shared._remote(shared.spec).launch
    backend.on("hold")
    call = in_thread(lambda: shared.complete("a", max_tokens=9))
    backend.wait_for("held")
    connection, secret = launch.transport.connect()
    greeting, frames = greet(connection, secret)
    assert ask(connection, frames, "shutdown") == {"pid": greeting["pid"]}
    with pytest.raises(WorkerError, match="a client asked for it"):
        call.get()
    wait_until(lambda: is_free(launch))
    backend.off("hold")


def test_closed_session_fails_what_it_waits_for_and_nobody_elses(shared, backend, options, in_thread):
    shared.load()
    other = TinySession(shared=True, **options)
    backend.on("hold")
    stays = in_thread(lambda: shared.complete("a", max_tokens=9))
    leaves = in_thread(lambda: other.complete("b", max_tokens=9))
    backend.wait_for("held")
    wait_until(lambda: shared.worker.running + shared.worker.waiting == 2)
    other.close()
    with pytest.raises(WorkerError, match="connection to the worker was closed"):
        leaves.get()
    backend.off("hold")
    assert stays.get().finish_reason == "length"
    wait_until(lambda: shared.worker.running == 0)


def test_prewarming_that_fails_is_told_in_the_log_alone(shared, caplog):
    launch = shared._remote(shared.spec).launch
    launch.path("sock").mkdir()  # nothing can be bound there
    with caplog.at_level(logging.DEBUG, logger="tinykit"):
        assert shared.prewarm() is None
        wait_until(lambda: "prewarming failed" in caplog.text)
    assert "before it listened" in caplog.text
    assert shared.worker is None


def test_what_answers_and_is_no_worker_is_an_error_with_its_address(launch):
    with filelock.FileLock(launch.path("lock")), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(launch.transport.path))
        listener.listen()

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(2**16)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(WorkerError, match="does not answer as a worker") as caught:
            attach(launch)
        thread.join(PATIENCE_S)
    assert str(launch.transport.path) in str(caught.value) and "tinykit worker stop" in caught.value.hint
