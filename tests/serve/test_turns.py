import asyncio

import pytest

from tinykit.errors import ClosedError
from tinykit.serve.refusals import RefusedError
from tinykit.serve.turns import Turns


def scene(at_once=1, waiting=10):
    """Turns, a function that begins a job by name, and the names in the order in which they had their turn."""
    turns, order, gates = Turns(at_once=at_once, waiting=waiting), [], {}

    async def job(name):
        async with turns.turn():
            order.append(name)
            await gates[name].wait()

    def begin(name):
        gates[name] = asyncio.Event()
        return asyncio.create_task(job(name))

    return turns, order, gates, begin


async def settle():
    """Let every task that can go on do so."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_turns_come_in_the_order_of_arrival():
    async def play():
        turns, order, gates, begin = scene()
        tasks = [begin(name) for name in "abcd"]
        await settle()
        assert (order, turns.waiting) == (["a"], 3)
        for name in "abcd":
            gates[name].set()
            await settle()
        await asyncio.gather(*tasks)
        assert (order, turns.waiting) == (list("abcd"), 0)

    asyncio.run(play())


def test_several_at_once():
    async def play():
        turns, order, gates, begin = scene(at_once=2)
        tasks = [begin(name) for name in "abc"]
        await settle()
        assert (order, turns.waiting) == (["a", "b"], 1)
        gates["b"].set()
        await settle()
        assert order == ["a", "b", "c"]
        for gate in gates.values():
            gate.set()
        await asyncio.gather(*tasks)

    asyncio.run(play())


def test_who_leaves_the_queue_or_the_turn_loses_it_for_nobody_else():
    async def play():
        turns, order, gates, begin = scene()
        a, b, c = (begin(name) for name in "abc")
        await settle()
        b.cancel()
        await settle()
        assert turns.waiting == 1
        a.cancel()
        await settle()
        assert order == ["a", "c"]
        gates["c"].set()
        await c
        d = begin("d")
        gates["d"].set()
        await d
        assert order == ["a", "c", "d"]

    asyncio.run(play())


def test_turn_that_comes_in_the_moment_of_leaving_is_passed_on():
    async def play():
        turns, order, gates, begin = scene()
        a, b, c = (begin(name) for name in "abc")
        await settle()
        gates["a"].set()
        await asyncio.sleep(0)  # a gives its turn to b, which has not noticed
        b.cancel()
        await settle()
        assert order == ["a", "c"] and b.cancelled()
        gates["c"].set()
        await asyncio.gather(a, c)
        assert turns.waiting == 0

    asyncio.run(play())


def test_full_queue_is_busy():
    async def play():
        _, order, gates, begin = scene(waiting=1)
        a, b, c = (begin(name) for name in "abc")
        with pytest.raises(RefusedError, match="1 request waits"):
            await c
        for name in "ab":
            gates[name].set()
        await asyncio.gather(a, b)
        assert order == ["a", "b"]

    asyncio.run(play())


def test_closing_sends_away_who_waits_and_comes_but_nobody_at_work():
    async def play():
        turns, order, gates, begin = scene()
        a, b = begin("a"), begin("b")
        await settle()
        turns.close()
        with pytest.raises(ClosedError):
            await b
        with pytest.raises(ClosedError):
            await begin("c")
        gates["a"].set()
        await a
        assert order == ["a"]

    asyncio.run(play())
