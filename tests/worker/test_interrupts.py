"""Ctrl-C at every place of the side that asks a worker: it comes out, and the next call is a good one."""

import contextlib
import queue
import threading
from pathlib import Path

import pytest

import tinykit
from tests.interrupting import interrupted
from tests.worker.conftest import wait_until
from tinykit import TinySession
from tinykit.worker import client, remote_run, spawning

ONE_WORKER = True  # all tests here ask the same one

FOLDER = Path(tinykit.__file__).parent
WATCHED = (
    str(FOLDER / "worker"),
    str(FOLDER / "generation" / "stream.py"),
    contextlib.__file__,
    threading.__file__,
    queue.__file__,
)


def called(session):
    return session.complete("a", max_tokens=3).text


def streamed(session):
    return "".join(session.stream("a", max_tokens=3))


def titled(session):
    return session.title_result("plan a trip to Lisbon").text


def answered(session):
    return [one.text for one in session.complete_many(["a", "b"], max_tokens=3)]


def sampled(session):
    return [one.text for one in session.complete("a", n=2, max_tokens=3, temperature=1.0, seed=3)]


def chosen(session):
    return session.choose("a", ["b", "c"])


def looked(session):
    return session.worker.pid


ACTS = [called, streamed, titled, answered, sampled, chosen]


# every seventh place, to be quick
@pytest.mark.parametrize("act", [*ACTS, looked])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a socket that was let go
def test_interrupt_anywhere_leaves_a_usable_session(shared, in_thread, act):
    expected, at = act(shared), 0
    while True:
        at += 7
        come, error = interrupted(at, lambda: act(shared), WATCHED)
        if not come:
            break
        place = f"place {at}, in {come[0]}"
        assert isinstance(error, KeyboardInterrupt), place
        assert in_thread(lambda: act(shared)).get() == expected, place
    assert at > 10
    wait_until(lambda: shared.worker.running == 0)


@pytest.mark.parametrize("act", ACTS)
def test_interrupt_anywhere_cancels_what_was_asked(shared, options, backend, in_thread, monkeypatch, act):
    monkeypatch.setattr(remote_run, "_LAST_WORDS_S", 0.0)
    act(shared)
    model = shared._chat_remote()
    info = model.info
    with TinySession(shared=True, lazy=True, **options) as other:
        other.load()
        backend.on("hold")
        held = in_thread(lambda: other.complete("a", max_tokens=3))
        backend.wait_for("held")
        at, come = 0, [""]
        while come[0] != "Call.next":  # there it waits for the answer
            at += 1
            model.attach()
            model.info = info  # a load would wait as well
            come, error = interrupted(at, lambda: act(shared), WATCHED)
            assert isinstance(error, KeyboardInterrupt), come
            wait_until(lambda: shared.worker.waiting == 0)
        backend.off("hold")
        assert held.get().finish_reason == "length"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupt_on_the_way_in_leaves_no_connection_behind(launch, shared, monkeypatch):
    shared.load()

    class Starting(threading.Thread):
        def start(self):
            super().start()
            raise KeyboardInterrupt

    monkeypatch.setattr(client.threading, "Thread", Starting)
    with pytest.raises(KeyboardInterrupt):
        spawning.attach(launch)
    wait_until(lambda: shared.worker.clients == 1)


def test_stream_that_nobody_reads_asks_nothing(shared):
    shared.load()
    served = shared.worker.served
    with shared.stream("a", max_tokens=1000) as stream:
        pass
    assert (stream.result.finish_reason, stream.result.cancelled_by) == ("cancelled", "close")
    shared.stream("a", max_tokens=1000)
    assert shared.worker.served == served


def test_cancelled_requests_that_wait_are_gone_at_once(shared, options, backend, in_thread):
    shared.load()
    with TinySession(shared=True, lazy=True, **options) as other:
        other.load()
        backend.on("hold")
        held = in_thread(lambda: shared.complete("a", max_tokens=3))
        backend.wait_for("held")
        late = in_thread(lambda: other.complete("a", max_tokens=3))
        wait_until(lambda: shared.worker.waiting == 1)
        assert other.cancel() == 1
        assert (late.get().cancelled_by, shared.worker.waiting) == ("cancel", 0)
        stream = other.stream("a", max_tokens=3)
        stream.cancel()  # before it is read
        assert (list(stream), stream.result.cancelled_by) == ([""], "cancel")
        backend.off("hold")
        assert held.get().finish_reason == "length"
