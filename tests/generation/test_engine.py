import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny_models as tiny
from tinykit.backends.onnx import OnnxBackend
from tinykit.backends.scripted import ScriptedBackend, ScriptedState
from tinykit.convert.gguf import GgufFile
from tinykit.convert.importer import import_model
from tinykit.convert.vocabulary import build_tokenizer
from tinykit.errors import BackendError, PromptTooLongError
from tinykit.generation.cache import PrefixCache, shared_prefix
from tinykit.generation.engine import Engine
from tinykit.generation.request import GenerationOptions, Request
from tinykit.tokenizer import Tokenizer

EOS = 2
A, B = tiny.VOCABULARY.index("A"), tiny.VOCABULARY.index("B")


def tokenizer():
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tiny.VOCABULARY,
        "tokenizer.ggml.token_type": [3 if t in tiny.SPECIALS else 1 for t in tiny.VOCABULARY],
        "tokenizer.ggml.merges": tiny.MERGES,
    }
    return Tokenizer(build_tokenizer(metadata), {}, tiny.TEMPLATE)


def byte_ids(text):
    return [3 + byte for byte in text.encode()]  # after three control tokens come the 256 bytes


def scripted_engine(answer, prompt_length, **options):
    """An engine whose model says `answer` (token ids), then the end token, whatever the prompt."""

    def script(seen):
        at = len(seen) - prompt_length
        return answer[max(0, at)] if at < len(answer) else EOS

    backend = ScriptedBackend(script, vocab_size=len(tiny.VOCABULARY), **options)
    return Engine(backend, tokenizer(), [EOS], cache_bytes=1 << 20)


def say(text, stop=(), max_tokens=256, prompt=(A, B)):
    alphabet = tiny.byte_alphabet()
    ids = [tiny.VOCABULARY.index(alphabet[byte]) for byte in text.encode()]
    engine = scripted_engine(ids, len(prompt))
    return engine.generate(Request(tuple(prompt), GenerationOptions(max_tokens, stop)))


def test_end_token_ends_and_is_not_text():
    completion = say("hello")
    assert (completion.text, completion.finish_reason) == ("hello", "stop")
    assert completion.usage.completion_tokens == 5


def test_budget_ends_with_length():
    completion = say("hello", max_tokens=3)
    assert (completion.text, completion.finish_reason) == ("hel", "length")


def test_stop_string_across_tokens_is_cut():
    completion = say("A title</title>junk", stop="</title>")
    assert (completion.text, completion.finish_reason) == ("A title", "stop")


def test_stop_string_at_the_end_of_the_budget_counts_as_stop():
    assert say("ab|", stop="|", max_tokens=3).finish_reason == "stop"


def test_stop_string_in_the_prompt_stops_nothing():
    prompt = [tiny.VOCABULARY.index(c) for c in "x</title>"]
    assert say("fine", stop="</title>", prompt=prompt).text == "fine"


def test_unfinished_beginning_of_a_stop_string_is_kept():
    assert say("a </titl", stop="</title>").text == "a </titl"


@pytest.mark.parametrize("text", ["héllo wörld", "你好，世界", "😀 👩‍👩‍👧", "mixed é 漢 😀 end"])
def test_stream_never_shows_half_a_character(text):
    alphabet = tiny.byte_alphabet()
    ids = [tiny.VOCABULARY.index(alphabet[byte]) for byte in text.encode()]
    chunks = list(scripted_engine(ids, 1).stream(Request((A,))))
    assert "".join(chunk for chunk in chunks) == text
    assert not any("\ufffd" in chunk for chunk in chunks)
    assert [i for chunk in chunks for i in chunk.token_ids] == ids


def test_character_that_never_becomes_whole_is_marked():
    alphabet = tiny.byte_alphabet()
    half = tiny.VOCABULARY.index(alphabet["é".encode()[0]])
    assert scripted_engine([A, half], 1).generate(Request((B,))).text == "A\ufffd"


def test_prompt_without_room_is_refused_before_the_backend_sees_it():
    engine = scripted_engine([A], 1, context_length=16)
    with pytest.raises(PromptTooLongError, match="16 tokens.*context is 16") as caught:
        engine.generate(Request((A,) * 16))
    assert (caught.value.prompt_tokens, caught.value.context_length) == (16, 16)
    assert engine.backend.calls == []


def test_generation_ends_where_the_context_does():
    engine = scripted_engine([A] * 100, 10, context_length=16)
    completion = engine.generate(Request((B,) * 10))
    assert (completion.usage.completion_tokens, completion.finish_reason) == (6, "length")


def test_long_prompt_goes_in_by_pieces():
    engine = scripted_engine([A], 300)
    engine.generate(Request((B,) * 300))
    assert [len(call) for call in engine.backend.calls] == [100, 100, 100, 1]


def test_recipes_prefix_is_computed_once():
    engine = scripted_engine([A], 20)
    for last in (A, B):
        engine.generate(Request((5,) * 12 + (last,) * 8, prefix_tokens=12))
    assert [len(call) for call in engine.backend.calls if len(call) > 1] == [20, 8]
    assert engine.cache.size_bytes == 8 * 12


class Recurrent(ScriptedState):
    """A state that cannot be rolled back."""

    @property
    def can_truncate(self):
        return False

    def truncate(self, length):
        raise BackendError("recurrent")

    def copy(self, length=None):
        assert length in (None, self.length)
        return Recurrent(self.token_ids)


def recurrent_engine(monkeypatch, answer, prompt_length):
    engine = scripted_engine(answer, prompt_length)
    monkeypatch.setattr(engine.backend, "new_state", Recurrent)
    return engine


def test_recipes_prefix_is_computed_once_by_recurrent_models(monkeypatch):
    engine = recurrent_engine(monkeypatch, [A], 20)
    for last, reused in ((A, 0), (B, 12), (A, 12)):
        completion = engine.generate(Request((5,) * 12 + (last,) * 8, prefix_tokens=12))
        assert completion.usage.kv_reused_tokens == reused
    assert [len(call) for call in engine.backend.calls if len(call) > 1] == [12, 8, 8, 8]
    assert engine.cache.size_bytes == 8 * 12


def test_prefix_as_long_as_the_prompt_is_harmless_to_recurrent_models(monkeypatch):
    engine = recurrent_engine(monkeypatch, [A], 12)
    for _ in range(2):
        assert engine.generate(Request((5,) * 12, prefix_tokens=12)).text == "A"


def test_next_turn_of_a_chat_extends_a_recurrent_state(monkeypatch):
    engine = recurrent_engine(monkeypatch, [A, A], 6)
    engine.generate(Request((5,) * 6))
    completion = engine.generate(Request((*(5,) * 6, A, A, EOS, B, B)))
    assert completion.usage.kv_reused_tokens == 8
    assert engine.generate(Request((*(5,) * 6, B, B))).usage.kv_reused_tokens == 0


def test_next_turn_of_a_chat_extends_the_last_one():
    engine = scripted_engine([A, A], 6)
    first = (5,) * 6
    engine.generate(Request(first))
    completion = engine.generate(Request((*first, A, A, EOS, B, B)))
    assert completion.usage.kv_reused_tokens == 8


class Interrupting(ScriptedBackend):
    """Raises at the n-th call, as Ctrl-C does."""

    def __init__(self, at, error):
        super().__init__(lambda seen: A if len(seen) < 600 else EOS, vocab_size=len(tiny.VOCABULARY))
        self.at, self.error = at, error

    def forward(self, token_ids, state, *, rows=1):
        logits = super().forward(token_ids, state, rows=rows)
        if len(self.calls) == self.at:
            raise self.error
        return logits


@pytest.mark.parametrize("at", [1, 2, 3, 5])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), BackendError("broken")], ids=["ctrl_c", "failure"])
def test_interrupted_engine_answers_the_next_request_like_a_fresh_one(at, error):
    request = Request((B,) * 290, GenerationOptions(5))
    engine = Engine(Interrupting(at, error), tokenizer(), [EOS], cache_bytes=1 << 20)
    with pytest.raises(type(error)):
        engine.generate(request)
    again = engine.generate(request)
    fresh = Engine(Interrupting(0, error), tokenizer(), [EOS], cache_bytes=1 << 20).generate(request)
    assert again == fresh
    assert again.usage.kv_reused_tokens > 0 or at == 1


def test_threads_take_turns(tmp_path):
    engine = tiny_engine(tmp_path)
    requests = [Request(tuple(range(3 + i, 20 + i)), GenerationOptions(8)) for i in range(6)]
    alone = [engine.generate(request).token_ids for request in requests]
    together: dict[int, tuple[int, ...]] = {}

    def work(number):
        together[number] = engine.generate(requests[number]).token_ids

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[n] for n in range(6)] == alone


def tiny_engine(folder, cache_bytes=1 << 26):
    file = GgufFile(tiny.write_gguf(folder / "m.gguf", "llama", tiny.random_weights("llama")))
    graph = import_model(file, folder, dtype="fp32")
    backend = OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1)
    return Engine(backend, tokenizer(), [EOS], cache_bytes=cache_bytes)


@pytest.fixture(scope="module")
def cached_and_fresh(tmp_path_factory):
    folder = tmp_path_factory.mktemp("engine")
    cached = tiny_engine(folder)
    return cached, Engine(cached.backend, cached.tokenizer, [EOS], cache_bytes=0)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(st.sampled_from([3, 4, 5]), min_size=1, max_size=24), min_size=1, max_size=6), st.data()
)
def test_cached_answers_equal_fresh_ones(cached_and_fresh, prompts, data):
    cached, fresh = cached_and_fresh
    for prompt in prompts:
        prefix = data.draw(st.none() | st.integers(0, len(prompt)))
        request = Request(tuple(prompt), GenerationOptions(4), prefix_tokens=prefix)
        assert cached.generate(request) == fresh.generate(request)


def test_cache_drops_the_least_recently_used():
    backend = ScriptedBackend(lambda seen: A, vocab_size=len(tiny.VOCABULARY))
    cache = PrefixCache(backend, budget_bytes=8 * 25)
    for first in (5, 6, 7):
        state = backend.new_state()
        backend.forward([first] * 10, state)
        cache.keep([first] * 10, state)
    assert cache.size_bytes == 8 * 20
    assert cache.take([5] * 10 + [A, B]).length == 0
    assert cache.take([7] * 10 + [A, B]).length == 10


def test_sequence_larger_than_the_budget_drives_out_nothing():
    backend = ScriptedBackend(lambda seen: A, vocab_size=len(tiny.VOCABULARY))
    cache = PrefixCache(backend, budget_bytes=8 * 25)
    for first, length in ((5, 10), (6, 40)):
        state = backend.new_state()
        backend.forward([first] * length, state)
        cache.keep([first] * length, state)
    assert cache.take([5] * 10 + [A, B]).length == 10


def test_cache_leaves_a_longer_sequence_in_place_and_copies_its_beginning():
    backend = ScriptedBackend(lambda seen: A, vocab_size=len(tiny.VOCABULARY))
    cache = PrefixCache(backend, budget_bytes=1 << 20)
    state = backend.new_state()
    backend.forward([5] * 10 + [6] * 10, state)
    cache.keep([5] * 10 + [6] * 10, state)
    assert cache.take([5] * 10 + [7] * 3).length == 10
    assert cache.take([5] * 10 + [6] * 10 + [7, 8]).length == 20


def test_shared_prefix():
    assert shared_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert shared_prefix([1, 2], [1, 2, 3]) == 2
    assert shared_prefix([], [1]) == 0


@pytest.mark.parametrize("slot", [None, 0])
@pytest.mark.parametrize("options", [{}, {"exact": True}, {"draft": True}], ids=str)
def test_only_what_a_prefill_computes_is_kept_of_a_real_graph(tmp_path, slot, options):
    """Decode steps leave other last bits, which must not change a later answer."""
    engine, prompt = tiny_engine(tmp_path), tuple(range(3, 40))
    completion = engine.generate(Request(prompt, GenerationOptions(8, **options), slot=slot))
    kept = engine.cache.last[0] if slot is None else engine.slots[slot].token_ids
    assert kept == prompt
    following = Request((*prompt, *completion.token_ids, 7, 8, 9), GenerationOptions(8), slot=slot)
    fresh = tiny_engine(tmp_path).generate(following)
    assert engine.generate(following) == fresh
