"""Calls in a thread of their own: they end before their caller goes on, whatever comes in between."""

import _thread
import threading

import pytest

from tinykit.backends import apart
from tinykit.backends.apart import call_apart

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
