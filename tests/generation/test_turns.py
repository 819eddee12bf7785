"""Threads take turns in the order in which they ask, whatever the machine does in between."""

import threading

import pytest

from tests.generation.test_engine import A, B
from tests.generation.test_streaming import saying
from tinykit.generation.request import Request
from tinykit.generation.turns import Turns

PATIENCE_S = 60


class Watched(dict):
    """A line that tells whoever joins it."""

    def __init__(self):
        self.joined = threading.Semaphore(0)

    def __setitem__(self, thread, told):
        super().__setitem__(thread, told)
        self.joined.release()


def started(act):
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_turns_come_in_the_order_of_asking():
    turns, order, threads = Turns(), [], []
    turns._line = line = Watched()

    def within():
        assert line.joined.acquire(timeout=PATIENCE_S)  # its own
        for number in range(8):
            threads.append(started(lambda number=number: turns.take(lambda: order.append(number))))
            assert line.joined.acquire(timeout=PATIENCE_S)
        order.append("first")

    turns.take(within)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert order == ["first", *range(8)]
    assert line == {}


def test_turn_within_a_turn_is_no_wait():
    turns = Turns()
    assert turns.take(lambda: turns.take(lambda: 7)) == 7
    assert turns._line == {}


def test_failed_turn_is_over():
    turns = Turns()
    with pytest.raises(ZeroDivisionError):
        turns.take(lambda: 1 / 0)
    found = []
    started(lambda: turns.take(lambda: found.append(1))).join(PATIENCE_S)
    assert found == [1]


def test_thread_that_steps_on_and_on_starves_no_other():
    engine = saying("hello")
    engine.turns._line = line = Watched()
    forward, asked, threads, found = engine.backend.forward, [], [], []

    def watched(token_ids, state, *, rows=1):
        asked.append(threading.get_ident())
        if len(asked) == 2:  # the first thread is at a step: another one comes
            while line.joined.acquire(blocking=False):
                pass
            threads.append(started(lambda: found.append(engine.generate(Request((B, A))))))
            assert line.joined.acquire(timeout=PATIENCE_S)
        return forward(token_ids, state, rows=rows)

    engine.backend.forward = watched
    assert engine.generate(Request((A, B))).text == "hello"
    threads[0].join(PATIENCE_S)
    assert found[0].text == "hello"
    me, other = threading.get_ident(), threads[0].ident
    # it takes a turn for a state and then one for each step: two of the first thread's between, at most
    assert other in asked[2:4]
    assert asked.count(me) == asked.count(other) == 6
