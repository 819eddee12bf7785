"""Streams, cancels, deadlines, slots and several requests at once, on a model that follows a script."""

import threading

import pytest

from tests import tiny_models as tiny
from tests.generation.test_engine import EOS, A, B, scripted_engine, tokenizer
from tinykit.backends.scripted import ScriptedBackend
from tinykit.errors import BackendError, OptionError
from tinykit.generation.engine import Engine
from tinykit.generation.request import GenerationOptions, Request
from tinykit.generation.result import Chunk


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


class Endless(ScriptedBackend):
    """Says A for ever, and can be interrupted in the middle of a forward."""

    def __init__(self):
        super().__init__(lambda seen: A, vocab_size=len(tiny.VOCABULARY), context_length=100_000)
        self.is_running = threading.Event()

    def forward(self, token_ids, state, *, rows=1):
        self.is_running.set()
        return super().forward(token_ids, state, rows=rows)


def test_cancel_from_another_thread():
    engine = Engine(Endless(), tokenizer(), [EOS], cache_bytes=1 << 20)
    found = []
    thread = threading.Thread(
        target=lambda: found.append(engine.generate(Request((B,) * 9, GenerationOptions(1024))))
    )
    thread.start()
    engine.backend.is_running.wait()
    while not engine.cancel():
        pass
    thread.join()
    assert found[0].finish_reason in ("cancelled", "length")
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
    assert [slot.size_bytes > 0 for _, slot in engine.slots.items()] == [False, False, True, True]
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
     {"draft": 0.5}, {"draft": (3, 1)}, {"draft": (0, 2)}, {"max_tokens": -1}, {"max_tokens": 1.5}],
    ids=str,
)  # fmt: skip
def test_options_that_cannot_be_used(options):
    with pytest.raises(OptionError):
        GenerationOptions(**options)
