"""Streams, cancels, deadlines, slots and several requests at once, on a model that follows a script."""

import math
import threading
from fractions import Fraction

import numpy as np
import pytest

from tests import tiny_models as tiny
from tests.generation.test_engine import EOS, A, B, scripted_engine, tokenizer
from tinykit.backends.scripted import ScriptedBackend
from tinykit.errors import BackendError, OptionError
from tinykit.generation import slots
from tinykit.generation.constraint import Constraint
from tinykit.generation.engine import Engine
from tinykit.generation.request import GenerationOptions, Request
from tinykit.generation.result import Chunk
from tinykit.generation.slots import Slot, passing_slot


def ids(text):
    alphabet = tiny.byte_alphabet()
    return [tiny.VOCABULARY.index(alphabet[byte]) for byte in text.encode()]


def saying(text, prompt_length=2):
    return scripted_engine(ids(text), prompt_length)


def test_pieces_are_text_and_know_their_tokens():
    stream = saying("hello").stream(Request((A, B)))
    pieces = list(stream)
    assert "".join(pieces) == "hello" == stream.result.text
    assert all(isinstance(piece, str) for piece in pieces)
    assert [token for piece in pieces for token in piece.token_ids] == list(stream.result.token_ids)
    assert [piece.is_last for piece in pieces] == [False] * 5 + [True]


def test_stream_and_call_say_the_same():
    request = Request((A, B), GenerationOptions(20, stop="wor"))
    stream = saying("hello world").stream(request)
    text = "".join(stream)
    called = saying("hello world").generate(request)
    assert (text, stream.result) == (called.text, called)
    assert (called.text, called.finish_reason) == ("hello ", "stop")


def test_log_probabilities_come_with_each_piece():
    engine = saying("hi")
    pieces = list(engine.stream(Request((A, B), GenerationOptions(logprobs=2))))
    found = [one for piece in pieces for one in piece.logprobs]
    assert [one.token_id for one in found] == ids("hi")
    assert all(len(one.top) == 2 and one.logprob == one.top[0][1] < 0 for one in found)
    assert engine.generate(Request((A, B))).logprobs == ()


def test_callback_hears_each_piece_of_text_in_order():
    heard = []
    completion = saying("héllo").generate(Request((A, B)), on_chunk=heard.append)
    assert "".join(heard) == completion.text == "héllo"
    assert all(isinstance(piece, Chunk) and piece for piece in heard)


def test_error_in_a_callback_ends_the_run_and_loses_nothing():
    engine = saying("hello")

    def fail(piece):
        raise RuntimeError("full disk")

    with pytest.raises(RuntimeError, match="full disk"):
        engine.generate(Request((A, B)), on_chunk=fail)
    assert engine.generate(Request((A, B))).text == "hello"


def test_closing_a_stream_cancels_it():
    engine = saying("hello world")
    stream = engine.stream(Request((A, B)))
    assert next(stream) == "h"
    stream.close()
    stream.close()
    result = stream.result
    assert (result.text, result.finish_reason, result.cancelled_by) == ("h", "cancelled", "close")
    assert len(engine.backend.calls) == 1
    assert engine.generate(Request((A, B))).text == "hello world"


def test_stream_that_was_never_read_computes_nothing():
    engine = saying("hello")
    with engine.stream(Request((A, B))) as stream:
        pass
    assert (stream.result.finish_reason, stream.result.cancelled_by) == ("cancelled", "close")
    assert list(stream) == []
    assert engine.backend.calls == []


def test_leaving_the_loop_cancels():
    engine = saying("hello world")
    for piece in engine.stream(Request((A, B))):
        if piece == "l":
            break
    assert len(engine.backend.calls) == 3
    assert engine.cancel() == 0


def test_cancel_gives_what_there_is_and_what_was_held_back():
    engine = saying("ab</tie")
    stream = engine.stream(Request((A, B), GenerationOptions(stop="</title>")))
    text = ""
    for piece in stream:
        text += piece
        if len(stream.result.token_ids) == 5 and not piece.is_last:
            assert engine.cancel() == 1
    assert text == "ab</t" == stream.result.text
    assert (stream.result.finish_reason, stream.result.cancelled_by) == ("cancelled", "cancel")


def test_cancel_ends_one_stream_alone():
    engine = saying("hello")
    first, second = engine.stream(Request((A, B))), engine.stream(Request((A, B)))
    next(first), next(second)
    first.cancel()
    assert "".join(first) == ""
    assert first.result.cancelled_by == "cancel"
    assert "".join(second) == "ello"


def test_deadline_of_nothing_computes_nothing():
    engine = saying("hello")
    completion = engine.generate(Request((A, B), GenerationOptions(timeout_s=0)))
    assert (completion.text, completion.cancelled_by) == ("", "timeout")
    assert engine.backend.calls == []


def test_deadline_is_heard_between_two_steps(monkeypatch):
    engine = saying("hello")
    now = [0.0]
    monkeypatch.setattr("tinykit.generation.engine.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("tinykit.generation.run.time.perf_counter", lambda: now[0])
    request = Request((A, B), GenerationOptions(timeout_s=2.5))

    def tick(piece):
        now[0] += 1

    completion = engine.generate(request, on_chunk=tick)
    assert (completion.text, completion.cancelled_by) == ("hel", "timeout")
    assert completion.timings.total_s == 3


class Gated(ScriptedBackend):
    """Says A for ever; each forward says that it runs, and waits until it may end."""

    def __init__(self):
        super().__init__(lambda seen: A, vocab_size=len(tiny.VOCABULARY), context_length=100_000)
        self.is_running, self.may_end = threading.Event(), threading.Event()

    def forward(self, token_ids, state, *, rows=1):
        self.is_running.set()
        self.may_end.wait()
        return super().forward(token_ids, state, rows=rows)


def test_cancel_from_another_thread():
    engine = Engine(Gated(), tokenizer(), [EOS], cache_bytes=1 << 20)
    found = []
    thread = threading.Thread(
        target=lambda: found.append(engine.generate(Request((B,) * 9, GenerationOptions(1024))))
    )
    thread.start()
    engine.backend.is_running.wait()
    assert engine.cancel() == 1
    engine.backend.may_end.set()
    thread.join()
    assert found[0].finish_reason == "cancelled"
    assert engine.cancel() == 0


def test_no_tokens_wanted_computes_the_prompt_for_what_follows():
    engine, prompt = saying("hello", 20), (A, B) * 10
    completion = engine.generate(Request(prompt, GenerationOptions(0)))
    assert (completion.text, completion.finish_reason, completion.timings.ttft_s) == ("", "length", None)
    assert engine.backend.calls == [prompt]
    assert engine.generate(Request(prompt)).usage.kv_reused_tokens == 18


def test_streams_of_the_same_thread_may_be_open_together():
    engine = saying("hello")
    pairs = zip(engine.stream(Request((A, B))), engine.stream(Request((A, B))), strict=True)
    assert ["".join(pieces) for pieces in zip(*pairs, strict=True)] == ["hello", "hello"]


def test_slot_keeps_the_conversation():
    engine = scripted_engine([A, A], 6)
    first = (5,) * 6
    engine.generate(Request(first, slot=0))
    for other in range(3):
        engine.generate(Request((7 + other,) * 6))
    completion = engine.generate(Request((*first, A, A, EOS, B, B), slot=0))
    assert completion.usage.kv_reused_tokens == 8
    assert engine.slots.size_bytes > 0
    assert engine.slots.free(0)
    assert not engine.slots.free(0)


def test_slots_share_a_budget_and_the_last_one_stays():
    engine = saying("hi", 20)
    engine.cache.budget_bytes = 8 * 50
    for slot in range(4):
        engine.generate(Request((5 + slot,) * 20, slot=slot))
    assert [(name, slot.size_bytes > 0) for name, slot in engine.slots.items()] == [(2, True), (3, True)]
    engine.generate(Request((7,) * 20, slot=2))
    engine.generate(Request((9,) * 20, slot="new"))
    assert [name for name, slot in engine.slots.items() if slot.state] == [2, "new"]
    engine.cache.budget_bytes = 0
    engine.generate(Request((9,) * 20, slot="new"))
    assert [name for name, slot in engine.slots.items() if slot.state] == ["new"]


def test_slot_whose_conversation_changed_keeps_the_common_part():
    engine = scripted_engine([A, A], 6)
    engine.generate(Request((5,) * 6, slot="chat"))
    assert engine.generate(Request((5, 5, 5, 6, 6, 6), slot="chat")).usage.kv_reused_tokens == 3


def test_same_slot_of_one_thread_is_said_and_not_waited_for():
    engine = saying("hello")
    stream = engine.stream(Request((A, B), slot=0))
    next(stream)
    with pytest.raises(BackendError, match=r"slot 0 is still open"):
        engine.generate(Request((A, B), slot=0))
    with pytest.raises(BackendError, match=r"Slot 0 is in use"):
        engine.slots.free(0)
    assert engine.generate(Request((A, B), slot=1)).text == "hello"
    stream.close()
    assert engine.generate(Request((A, B), slot=0)).text == "hello"


def test_same_slot_of_two_threads_goes_one_after_the_other():
    engine = saying("hello")
    stream = engine.stream(Request((A, B), slot=0))
    next(stream)
    found = []
    thread = threading.Thread(target=lambda: found.append(engine.generate(Request((A, B), slot=0))))
    thread.start()
    thread.join(0.2)
    assert found == []
    assert "".join(stream) == "ello"
    thread.join()
    assert found[0].text == "hello"
    assert found[0].timings.queue_s > 0.1


def test_failed_run_does_not_block_its_slot():
    engine = saying("hello")
    original, engine.backend.forward = engine.backend.forward, None
    with pytest.raises(TypeError):
        engine.generate(Request((A, B), slot=0))
    engine.backend.forward = original
    assert engine.generate(Request((A, B), slot=0)).text == "hello"


def test_waiting_for_a_slot_can_be_cancelled():
    engine = saying("hello")
    stream = engine.stream(Request((A, B), slot=0))
    next(stream)
    found = []
    thread = threading.Thread(
        target=lambda: found.append(
            engine.generate(Request((A, B), GenerationOptions(timeout_s=0.01), slot=0))
        )
    )
    thread.start()
    thread.join()
    assert found[0].cancelled_by == "timeout"
    assert "".join(stream) == "ello"


@pytest.mark.parametrize(
    "options",
    [{"logprobs": 21}, {"logprobs": -1}, {"logprobs": 1.5}, {"timeout_s": -1}, {"timeout_s": "soon"},
     {"draft": 0.5}, {"draft": (3, 1)}, {"draft": (0, 2)}, {"max_tokens": -1}, {"max_tokens": 1.5},
     {"draft": (1, math.inf)}, {"draft": (1.0, 3.0)}, {"exact": "no"}, {"exact": 1}, {"exact": None},
     {"timeout_s": math.nan}],
    ids=str,
)  # fmt: skip
def test_options_that_cannot_be_used(options):
    with pytest.raises(OptionError):
        GenerationOptions(**options)


def test_options_may_be_numbers_of_numpy_and_larger_than_any_float():
    options = GenerationOptions(
        np.int32(3), draft=(np.int64(1), np.int64(4)), exact=np.True_, timeout_s=10**400, logprobs=np.int8(2)
    )
    assert saying("hello").generate(Request((A, B), options)).text == "hel"
    assert GenerationOptions(timeout_s=Fraction(10**400)).timeout_s == options.timeout_s
    assert type(options.exact) is bool and type(options.draft.maximum) is int


def test_result_of_a_finished_stream_is_made_once():
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    options = GenerationOptions(stop="1", constraint=Constraint.json_schema(schema))
    stream = saying('{"a": 1}').stream(Request((A, B), options))
    list(stream)
    assert stream.result is stream.result
    assert len(stream.result.notes) == 1 and "does not meet its constraint" in stream.result.notes[0]


def test_first_reason_of_a_cancel_stays():
    engine = saying("hello")
    stream = engine.stream(Request((A, B)))
    next(stream)
    engine.cancel()
    stream.close()
    assert stream.result.cancelled_by == "cancel"


def test_cancel_reaches_a_stream_that_has_not_begun():
    engine = saying("hello")
    stream = engine.stream(Request((A, B)))
    engine.cancel()
    assert "".join(stream) == "" and stream.result.cancelled_by == "cancel"
    assert engine.backend.calls == []
    assert engine.generate(Request((A, B))).text == "hello"


def test_streams_of_a_closed_engine_end_as_cancelled_and_keep_no_state():
    engine = saying("hello")
    begun, new = (engine.stream(Request((A, B), slot=slot)) for slot in (0, None))
    next(begun)
    engine.close()
    for stream in (begun, new):
        assert "".join(stream) == "" and stream.result.cancelled_by == "cancel"
    assert engine.cache.size_bytes == engine.slots.size_bytes == 0


def test_stream_read_by_two_threads_says_so():
    inside, go_on = threading.Event(), threading.Event()

    def script(seen):
        inside.set()
        go_on.wait(10)
        return EOS

    stream = Engine(ScriptedBackend(script, vocab_size=400), tokenizer(), [EOS], cache_bytes=0).stream(
        Request((A, B))
    )
    thread = threading.Thread(target=lambda: list(stream))
    thread.start()
    inside.wait(10)
    with pytest.raises(BackendError, match="Another thread is reading this stream"):
        next(stream)
    go_on.set()
    thread.join()
    assert stream.result.finish_reason == "stop"


def test_slot_that_is_freed_while_another_waits_is_made_anew():
    engine = saying("hello")
    first = engine.slots["chat"]

    class FreedOnce(dict):
        """A line whose slot is freed in the moment in which somebody joins."""

        def __setitem__(self, run, told):
            super().__setitem__(run, told)
            engine.slots._slots.pop("chat", None)
            told.ring()

    first.line = FreedOnce()
    assert engine.generate(Request((A, B), slot="chat")).text == "hello"
    assert first.state is None and engine.slots["chat"].state is not None


def test_slots_and_cache_share_one_budget_and_slots_come_first():
    engine = saying("hello")  # a prompt of two tokens and five said, of 8 bytes each
    engine.cache.budget_bytes = 3 * 56
    for first in (A, B):
        engine.generate(Request((first, A)))
    engine.generate(Request((A, B), slot="chat"))
    assert (engine.cache.size_bytes, engine.slots.size_bytes) == (2 * 56, 56)
    engine.generate(Request((B, B), slot="another"))
    assert engine.cache.take((A, A, *ids("hello"), A, A)).length < 7  # used longest ago
    assert (engine.cache.size_bytes, engine.slots.size_bytes) == (56, 2 * 56)
    engine.generate(Request((B, B), slot=passing_slot(1)))
    assert (engine.cache.size_bytes, engine.slots.size_bytes) == (0, 3 * 56)
    engine.generate(Request((A, A)))  # there is no room beside the slots
    assert (engine.cache.size_bytes, engine.slots.size_bytes) == (0, 3 * 56)
    engine.generate(Request((A, A), slot="third"))  # the slot of a single call goes first
    assert [name for name, _ in engine.slots.items()] == ["chat", "another", "third"]


def test_slots_without_room_are_forgotten():
    engine = saying("hello")
    engine.cache.budget_bytes = 200
    for number in range(9):
        engine.generate(Request((A, B), slot=number))
    assert len(engine.slots.items()) < 9 and engine.slots.size_bytes <= 200
    assert engine.slots[8].state is not None


def test_garbage_collector_may_close_a_stream_while_a_slot_is_made(monkeypatch):
    engine = saying("hello")
    streams = [engine.stream(Request((A, B), slot="old"))]
    next(streams[0])

    def collecting():
        streams.clear()  # what a collection in the middle of the dictionary's step does
        return Slot()

    monkeypatch.setattr(slots, "Slot", collecting)
    assert engine.generate(Request((A, B), slot="new")).text == "hello"


def test_listeners_hear_of_steps_with_tokens_alone():
    heard = []
    saying("hello").generate(Request((A, B), GenerationOptions(0)), on_verify=heard.append)
    assert heard == []
    saying("hello").generate(Request((A, B)), on_verify=heard.append)
    assert [len(event.tokens) for event in heard] == [1] * 5


def test_prompt_without_tokens_is_said():
    with pytest.raises(OptionError, match="no tokens"):
        saying("hello").generate(Request(()))
