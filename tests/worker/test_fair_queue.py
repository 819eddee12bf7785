"""Turns of clients and of their requests."""

import pytest

from tinykit.worker.fair_queue import FairQueue, QueueFull


class Item:
    def __init__(self, name, parts=1):
        self.name, self.left, self.is_held = name, parts, False


def take_from(item):
    if item.is_held:
        return False, True
    item.left -= 1
    return True, item.left > 0


def drained(queue):
    names = []
    while (item := queue.take(take_from)) is not None:
        names.append(item.name)
    return " ".join(names)


def test_clients_take_turns_and_so_do_the_requests_of_one():
    queue = FairQueue()
    queue.put(1, Item("a", 4))
    queue.put(1, Item("b"))
    queue.put(2, Item("c", 2))
    queue.put(3, Item("d"))
    assert [item.name for item in queue.in_order()] == ["a", "c", "d", "b"]
    assert drained(queue) == "a c d b c a a a"
    assert len(queue) == 0 and queue.take(take_from) is None


def test_request_that_cannot_go_on_lets_others_pass_and_keeps_its_place():
    queue, first, second = FairQueue(), Item("a"), Item("b")
    first.is_held = second.is_held = True
    for item in (first, Item("x"), second):
        queue.put(1, item)
    assert queue.take(take_from).name == "x"
    assert queue.take(take_from) is None
    first.is_held = second.is_held = False
    assert drained(queue) == "a b"


def test_requests_that_are_over_are_dropped():
    queue = FairQueue()
    queue.put(1, Item("a"))
    assert queue.take(lambda item: (False, False)) is None
    assert len(queue) == 0


def test_queue_has_limits_for_all_and_for_one():
    queue = FairQueue(limit=3, limit_of_one=2)
    assert [queue.put(1, Item("a")), queue.put(1, Item("b"))] == [0, 1]
    with pytest.raises(QueueFull, match="2 of this client"):
        queue.put(1, Item("c"))
    assert queue.put(2, Item("d")) == 2
    with pytest.raises(QueueFull, match="3 requests"):
        queue.put(3, Item("e"))
    assert [item.name for item in queue.remove(lambda item: item.name == "b")] == ["b"]
    assert queue.put(3, Item("e")) == 2


def test_wait_ends_with_something_to_do_or_with_a_call():
    queue = FairQueue()
    queue.wake()
    queue.wait()
    queue.put(1, Item("a"))
    queue.wait()
