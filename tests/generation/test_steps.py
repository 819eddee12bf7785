"""What a reader of steps relies on: their order, their size, and what comes before an error."""

import itertools
import threading

import pytest

from tests import tiny_models as tiny
from tests.generation.test_deadlines import PATIENCE_S, Endless, engine_on
from tests.generation.test_engine import EOS, A, B, tokenizer
from tests.generation.test_streaming import ids, saying
from tinykit.backends.scripted import ScriptedBackend
from tinykit.errors import BackendError, OptionError
from tinykit.generation.constraint import Constraint
from tinykit.generation.engine import Engine
from tinykit.generation.request import GenerationOptions, Request
from tinykit.generation.slots import checked_slot


def test_listener_is_waited_for_before_the_next_step():
    engine, computed = saying("hello"), []
    engine.generate(Request((A, B)), on_chunk=lambda piece: computed.append(len(engine.backend.calls)))
    assert computed == [1, 2, 3, 4, 5]


def test_reader_of_a_stream_is_waited_for_before_the_next_step():
    engine = saying("hello")
    computed = [len(engine.backend.calls) for _ in engine.stream(Request((A, B)))]
    assert computed == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("error", [BackendError("full"), RuntimeError("foreign"), MemoryError()], ids=repr)
@pytest.mark.parametrize("slot", [None, 0])
def test_steps_before_an_error_come_first(error, slot):
    failing = [True]

    def script(seen):
        if len(seen) == 4 and failing[0]:
            raise error
        return [*ids("hello"), EOS][len(seen) - 2]

    backend = ScriptedBackend(script, vocab_size=len(tiny.VOCABULARY))
    engine = Engine(backend, tokenizer(), [EOS], cache_bytes=1 << 20)
    stream, pieces = engine.stream(Request((A, B), slot=slot)), []
    with pytest.raises(type(error)) as caught:
        for piece in stream:
            pieces.append(piece)
    assert caught.value is error
    assert "".join(pieces) == "he" == stream.result.text
    assert list(stream) == [] and engine.cancel() == 0
    failing[0] = False
    assert engine.generate(Request((A, B), slot=slot)).text == "hello"


def test_error_in_a_verify_listener_ends_the_run_and_loses_nothing():
    engine = saying("hello")

    def fail(event):
        raise RuntimeError("full disk")

    with pytest.raises(RuntimeError, match="full disk"):
        engine.generate(Request((A, B), slot=0), on_verify=fail)
    assert len(engine.backend.calls) == 1
    assert engine.generate(Request((A, B), slot=0)).text == "hello"


@pytest.mark.parametrize("per_step", [1, 3, 32])
def test_forced_tokens_come_in_steps_of_the_size_that_was_asked_for(per_step):
    pytest.importorskip("llguidance")
    text = "abcdefghij"
    constraint = Constraint.choices([text, f"{text[:4]}z"])
    options = GenerationOptions(constraint=constraint, tokens_per_step=per_step)
    stream = saying(text).stream(Request((A, B), options))
    sizes = [len(piece.token_ids) for piece in stream]
    assert stream.result.text == text and stream.result.usage.forced_tokens > 0
    assert sum(sizes) == len(text) and max(sizes) <= per_step
    assert len(sizes) >= len(text) / per_step


@pytest.mark.parametrize("slot", [None, -1])
def test_no_slot(slot):
    assert checked_slot(slot) is None


@pytest.mark.parametrize("slot", [True, -2, 1.0, "", b"a", [0]], ids=repr)
def test_what_is_no_slot(slot):
    with pytest.raises(OptionError, match="slot must be"):
        checked_slot(slot)


def test_slots_run_side_by_side():
    engine = saying("hello")
    stream = engine.stream(Request((A, B), slot=0))
    next(stream)
    found = []
    for slot in (1, "ada", None):
        thread = threading.Thread(
            target=lambda slot=slot: found.append(engine.generate(Request((A, B), slot=slot)).text)
        )
        thread.start()
        thread.join(PATIENCE_S)
    assert found == ["hello"] * 3
    assert "".join(stream) == "ello"


def test_runs_of_one_slot_follow_each_other_whether_called_or_streamed():
    engine, heard = saying("hi"), []

    def streamed(number):
        heard.extend(number for _ in engine.stream(Request((A, B), slot=0)))

    def called(number):
        engine.generate(Request((A, B), slot=0), on_chunk=lambda piece: heard.append(number))

    first = engine.stream(Request((A, B), slot=0))
    next(first)
    threads = [
        threading.Thread(target=act, args=(number,), daemon=True)
        for number, act in enumerate((called, streamed, called, streamed))
    ]
    for thread in threads:
        thread.start()
    assert heard == []
    first.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    runs = [number for number, _ in itertools.groupby(heard)]
    assert sorted(runs) == [0, 1, 2, 3]  # each without another in between
    assert [heard.count(number) for number in range(4)] == [2, 3, 2, 3]


@pytest.mark.parametrize("at", [1, 3], ids=["prefill", "decode"])
@pytest.mark.parametrize("by", ["engine", "stream"])
def test_cancel_ends_a_forward_that_computes_on(at, by):
    engine = engine_on(Endless(at))
    stream, pieces = engine.stream(Request((A, B))), []
    thread = threading.Thread(target=lambda: pieces.extend(stream), daemon=True)
    thread.start()
    assert engine.backend.is_computing.acquire(timeout=PATIENCE_S)
    assert (engine if by == "engine" else stream).cancel() in (1, None)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert stream.result.cancelled_by == "cancel" and len(stream.result.token_ids) == at - 1
