"""Calls in a thread of their own: they end before their caller goes on, whatever comes in between."""

import _thread
import threading

import pytest

from tests.backends.test_onnx_batch import opened
from tinykit.backends import apart
from tinykit.backends.apart import GoingAlone, call_apart, call_beside

PATIENCE_S = 60


def never():
    raise AssertionError("nobody asked to stop")


def test_result_and_error_are_those_of_the_call():
    assert call_apart(lambda: 7, never) == 7
    with pytest.raises(ZeroDivisionError):
        call_apart(lambda: 1 / 0, never)


def test_call_runs_elsewhere_only_where_signals_are_heard():
    assert call_apart(threading.get_ident, never) != threading.get_ident()
    found = []
    other = threading.Thread(
        target=lambda: found.append(call_apart(threading.get_ident, never) == threading.get_ident())
    )
    other.start()
    other.join(PATIENCE_S)
    assert found == [True]


def pressed(times, stopped):
    """A call that presses Ctrl-C, and lasts until it is told to stop after the last time."""
    left = [times]
    again = threading.Event()

    def act():
        _thread.interrupt_main()
        assert again.wait(PATIENCE_S)

    def stop():
        left[0] -= 1
        if left[0] > 0:
            _thread.interrupt_main()
        else:
            stopped.append(True)
            again.set()

    return act, stop


@pytest.mark.parametrize("times", [1, 3])
def test_interrupt_stops_the_call_and_comes_after_its_end(times):
    stopped, over = [], []
    act, stop = pressed(times, stopped)

    def watched():
        act()
        over.append(True)

    with pytest.raises(KeyboardInterrupt):
        call_apart(watched, stop)
    assert stopped and over == [True]


def test_call_that_could_not_begin_never_does(monkeypatch):
    begun = []

    waiting = []

    def interrupted(run, arguments):
        waiting.append(run)
        raise KeyboardInterrupt

    monkeypatch.setattr(apart._thread, "start_new_thread", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call_apart(lambda: begun.append(1), never)
    waiting[0]()
    assert begun == []


def test_both_are_done_at_once_and_give_their_results():
    begun = threading.Event()

    def act():
        begun.set()
        return threading.get_ident()

    def meanwhile(_):
        assert begun.wait(PATIENCE_S)  # so the other one runs, and elsewhere
        return threading.get_ident()

    there, here = call_beside(act, meanwhile, never)
    assert here == threading.get_ident() != there


def test_waits_until_the_library_looks_at_its_last_argument():
    asked, order = threading.Event(), []

    def act():
        assert asked.wait(PATIENCE_S)
        order.append("before")
        found = set(GoingAlone(["a", "b"]))
        assert over.wait(PATIENCE_S)
        return found

    def meanwhile(wait):
        asked.set()
        wait()
        order.append("alone")
        over.set()

    over = threading.Event()
    assert call_beside(act, meanwhile, never)[0] == {"a", "b"}
    assert order == ["before", "alone"]


@pytest.mark.parametrize("act", [lambda: 7, lambda: [list(GoingAlone("a")), list(GoingAlone("b"))]])
def test_wait_ends_with_a_call_that_never_says_so_or_says_it_twice(act):
    def meanwhile(wait):
        wait()
        wait()
        return "here"

    assert call_beside(act, meanwhile, never)[1] == "here"


def test_onnx_runtime_tells_when_it_goes_alone(monkeypatch, tmp_path):
    told, goes_alone = [], apart._Call.goes_alone

    def heard(call):
        told.append(call.is_over)
        goes_alone(call)

    monkeypatch.setattr(apart._Call, "goes_alone", heard)
    backend, _ = call_beside(lambda: opened("shared_buffers", tmp_path), lambda _: None, never)
    backend.close()
    assert told == [False, True]


def test_items_are_given_where_nothing_goes_on_beside():
    assert list(GoingAlone(["a"])) == ["a"]


def test_error_of_the_call_comes_when_both_have_ended():
    ended = []
    with pytest.raises(ZeroDivisionError):
        call_beside(lambda: 1 / 0, lambda _: ended.append(True), never)
    assert ended == [True]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_error_meanwhile_waits_for_the_call_and_undoes_it(error):
    go, begun, undone = threading.Event(), threading.Event(), []

    def act():
        begun.set()
        assert go.wait(PATIENCE_S)
        return "opened"

    def meanwhile(_):
        assert begun.wait(PATIENCE_S)
        go.set()
        raise error("here")

    with pytest.raises(error, match="here"):
        call_beside(act, meanwhile, undone.append)
    assert undone == ["opened"]


def test_interrupt_while_waiting_comes_after_the_end_and_undoes_the_call(monkeypatch):
    undone, noticed, goes_on = [], threading.Event(), apart._Call.goes_on

    def seen(call):
        noticed.set()
        return goes_on(call)

    def act():
        _thread.interrupt_main()
        assert noticed.wait(PATIENCE_S)
        return "opened"

    monkeypatch.setattr(apart._Call, "goes_on", seen)
    with pytest.raises(KeyboardInterrupt):
        call_beside(act, lambda _: None, undone.append)
    assert undone == ["opened"]
