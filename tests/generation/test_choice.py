import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny_models as tiny
from tests.test_families import FIXTURES, PAIRS, SYSTEM
from tinykit.backends.onnx import OnnxBackend
from tinykit.backends.scripted import ScriptedBackend, ScriptedState
from tinykit.convert.gguf import GgufFile
from tinykit.convert.importer import import_model
from tinykit.convert.vocabulary import build_tokenizer
from tinykit.errors import BackendError, ForwardInterrupted, OptionError, PromptTooLongError
from tinykit.folders import open_folder
from tinykit.generation import choice as choice_module
from tinykit.generation.choice import (
    Continuations,
    chat_continuations,
    checked_normalize,
    score_continuations,
    scores_of,
)
from tinykit.generation.engine import Engine
from tinykit.tokenizer import Message, Tokenizer

EOS = 2
PROMPT = (5, 6, 7, 8)
CHAT = [Message("user", "which?")]


def tokenizer(template=tiny.TEMPLATE):
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tiny.VOCABULARY,
        "tokenizer.ggml.token_type": [3 if t in tiny.SPECIALS else 1 for t in tiny.VOCABULARY],
        "tokenizer.ggml.merges": tiny.MERGES,
    }
    return Tokenizer(build_tokenizer(metadata), {}, template)


def scripted(script, *, vocab_size=16, cache_bytes=1 << 20, **options):
    backend = ScriptedBackend(script, vocab_size=vocab_size, **options)
    return Engine(backend, tokenizer(), [EOS], cache_bytes=cache_bytes)


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def plain_scores(backend, prompt, continuations):
    """One token after the other, from the beginning for every continuation."""
    found = []
    for ids in continuations:
        state = backend.new_state()
        tokens = []
        for fed in [prompt, *([index] for index in ids[:-1])]:
            logits = backend.forward(list(fed), state)[-1]
            tokens.append(log_softmax(logits)[ids[len(tokens)]])
        found.append(tokens)
    return found


# ---- values by hand -----------------------------------------------------------------------------


def rising(seen):
    """The next token's number is the last one's and one: e to 1 against sixteen values in all."""
    return seen[-1] + 1


LIKELY, UNLIKELY = 1 - math.log(math.e + 15), -math.log(math.e + 15)


def test_scores_by_hand():
    engine = scripted(rising)
    assert score_continuations(engine, PROMPT, [[9, 10, 11], [9, 3], [1]]) == [
        pytest.approx([LIKELY, LIKELY, LIKELY]),
        pytest.approx([LIKELY, UNLIKELY]),
        pytest.approx([UNLIKELY]),
    ]


def test_prompt_is_computed_once_and_single_tokens_cost_nothing():
    engine = scripted(rising)
    score_continuations(engine, PROMPT, [[9], [10], [11, 12, 13], [14, 15]])
    assert engine.backend.calls == [PROMPT, (11, 12), (8, 14)]
    engine.backend.calls.clear()
    score_continuations(engine, PROMPT, [[9]])
    assert engine.backend.calls == [PROMPT[2:]]  # the rest was kept


def test_long_prompts_and_options_go_in_by_pieces(monkeypatch):
    monkeypatch.setattr(choice_module, "_LOGITS_BYTES", 4 * 16 * 3)  # three rows
    engine = scripted(lambda seen: (seen[-1] + 1) % 16, chunk_tokens=5)
    prompt, option = [n % 16 for n in range(13)], [n % 16 for n in range(13, 23)]
    (found,) = score_continuations(engine, prompt, [option])
    assert [len(call) for call in engine.backend.calls] == [5, 5, 3, 3, 3, 3]
    assert found == pytest.approx([LIKELY] * 10)


@pytest.mark.parametrize(
    ("normalize", "wanted"),
    [
        ("none", [3 * LIKELY, LIKELY + UNLIKELY]),
        ("tokens", [LIKELY, (LIKELY + UNLIKELY) / 2]),
        ("bytes", [3 * LIKELY / 4, (LIKELY + UNLIKELY) / 3]),
    ],
)
def test_normalization_by_hand(normalize, wanted):
    asked = Continuations(PROMPT, ((9, 10, 11), (9, 3)))
    scores, logprobs = scores_of(scripted(rising), asked, ["éab", "abc"], normalize=normalize)
    assert scores == pytest.approx(wanted)
    assert [len(tokens) for tokens in logprobs] == [3, 2]


def test_calibration_takes_away_what_a_prompt_without_content_gives():
    asked = Continuations(PROMPT, ((9, 10), (3, 4)))
    without = Continuations((2,), ((9, 10), (3, 4)))  # after 2 comes 3
    scores, _ = scores_of(scripted(rising), asked, ["a", "b"], normalize="none", calibration=without)
    assert scores == pytest.approx([LIKELY - UNLIKELY, UNLIKELY - LIKELY])


def test_unknown_normalization():
    assert checked_normalize("bytes") == "bytes"
    with pytest.raises(OptionError, match="tokens, none, bytes, not 'words'"):
        checked_normalize("words")


def test_what_does_not_fit_is_refused_before_anything_is_computed():
    engine = scripted(rising, context_length=8)
    assert score_continuations(engine, PROMPT, [[9, 10, 11, 12]])[0] == pytest.approx([LIKELY] * 4)
    engine.backend.calls.clear()
    with pytest.raises(
        PromptTooLongError, match="prompt has 4 tokens and the longest option 5.*context of 8"
    ):
        score_continuations(engine, PROMPT, [[9], [9, 10, 11, 12, 13]])
    assert engine.backend.calls == []


def test_option_longer_than_any_answer_is_refused_before_anything_is_computed():
    engine = scripted(rising)
    assert engine.backend.info.context_length > 1030
    with pytest.raises(OptionError, match="longest option has 1,025 tokens; 1,024 is the most") as caught:
        score_continuations(engine, PROMPT, [[9], [9] * 1025])
    assert "numbers" in caught.value.hint and engine.backend.calls == []
    assert len(score_continuations(engine, PROMPT, [[9], [9] * 1024])[1]) == 1024


def test_nothing_to_score_is_a_mistake_of_the_caller():
    for prompt, options in ((PROMPT, [[9], []]), ((), [[9], [3]])):
        with pytest.raises(ValueError, match="without tokens"):
            score_continuations(scripted(rising), prompt, options)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers(bad):
    with pytest.raises(BackendError, match="no numbers"):
        score_continuations(scripted(lambda seen: np.full(16, bad, np.float32)), PROMPT, [[9]])


# ---- the border between prompt and option -------------------------------------------------------


def spelled(ids):
    return "".join(tiny.VOCABULARY[index] for index in ids)


def test_options_follow_the_chat():
    asked = chat_continuations(tokenizer(), CHAT, ["yes", "the no"])
    assert asked.prompt_ids == tuple(tokenizer().encode_chat(CHAT))
    assert [spelled(ids) for ids in asked.answers] == ["yes", "theĠno"]
    assert len(asked.answers[1]) == 4  # "the" is one token


def test_option_that_merges_with_the_end_of_the_prompt_moves_the_border_for_all():
    chat_tokenizer = tokenizer(tiny.TEMPLATE.replace("assistant\n", "assistant"))
    asked = chat_continuations(chat_tokenizer, CHAT, ["he one", " two"])
    assert spelled(asked.prompt_ids).endswith("assistan")
    assert [spelled(ids) for ids in asked.answers] == ["theĠone", "tĠtwo"]
    alone = chat_continuations(chat_tokenizer, CHAT, [" one", " two"])
    assert spelled(alone.prompt_ids).endswith("assistant")


@pytest.mark.parametrize(
    ("texts", "is_ended"),
    [
        (["New", "New York"], True),
        (["New York", "old", "New"], True),
        (["a", "b", "ba", "c"], True),
        (["New York", "New Jersey"], False),
        (["t", "the"], False),  # "the" does not begin with the token of "t"
    ],
)
def test_option_that_begins_another_is_ended(texts, is_ended):
    asked = chat_continuations(tokenizer(), CHAT, texts, end_id=EOS)
    assert all((ids[-1] == EOS) == is_ended for ids in asked.answers)
    pairs = itertools.permutations(asked.answers, 2)
    assert not any(b[: len(a)] == a for a, b in pairs)


def test_options_of_equal_tokens_are_refused():
    with pytest.raises(OptionError, match="same tokens"):
        chat_continuations(tokenizer(), CHAT, ["x\ud800", "x?"])  # what cannot be encoded


def test_control_tokens_in_options_are_text():
    asked = chat_continuations(tokenizer(), CHAT, ["<|im_end|>", "b"], end_id=EOS)
    assert not {0, 1, 2} & {index for ids in asked.answers for index in ids}


# ---- against the plain way ----------------------------------------------------------------------

WEIGHTS = tiny.random_weights("llama")
tokens = st.integers(3, len(tiny.VOCABULARY) - 1)
options = st.lists(st.lists(tokens, min_size=1, max_size=6), min_size=2, max_size=5)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choice")
    file = GgufFile(tiny.write_gguf(folder / "m.gguf", "llama", WEIGHTS))
    return import_model(file, folder, dtype="fp32")


@pytest.fixture(scope="module", params=[True, False], ids=["shared_buffers", "plain_feeds"])
def backend(graph, request):
    return OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1, shared_kv=request.param)


@settings(deadline=None, max_examples=10)
@given(prompts=st.lists(st.lists(tokens, min_size=1, max_size=20), min_size=1, max_size=3), options=options)
def test_scores_are_those_of_the_textbook(backend, prompts, options):
    engine = Engine(backend, tokenizer(), [EOS], cache_bytes=1 << 20)
    for prompt in [*prompts, *prompts]:
        found = score_continuations(engine, prompt, options)
        for ids, tokens in zip(options, found, strict=True):
            rows = tiny.reference_logits(WEIGHTS, [*prompt, *ids])[len(prompt) - 1 : -1]
            wanted = [log_softmax(row)[index] for row, index in zip(rows, ids, strict=True)]
            np.testing.assert_allclose(tokens, wanted, atol=2e-5)


@settings(deadline=None, max_examples=10)
@given(prompt=st.lists(tokens, min_size=1, max_size=20), options=options, data=st.data())
def test_order_and_company_of_options_change_nothing(backend, prompt, options, data):
    order = data.draw(st.permutations(range(len(options))))

    def scores(ordered):
        engine = Engine(backend, tokenizer(), [EOS], cache_bytes=1 << 20)
        return score_continuations(engine, prompt, ordered)

    found = scores(options)
    assert scores([options[place] for place in order]) == [found[place] for place in order]
    assert scores(options[:1]) == found[:1]


def test_equal_calls_give_equal_numbers(backend):
    engine = Engine(backend, tokenizer(), [EOS], cache_bytes=1 << 20)
    first, second = ([list(range(3, 40)), [5, 6]] for _ in range(2))
    assert score_continuations(engine, PROMPT, first) == score_continuations(engine, PROMPT, second)


FAMILIES = ["hub/llama", "hub/lfm2", "hub/falcon_h1", "hub/gpt2", "genai/qwen3-int8"]
TITLES = [f"<title>{title}</title>" for _, title in PAIRS]


@pytest.fixture(scope="module", params=FAMILIES)
def trained(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYKIT_HOME", str(tmp_path_factory.mktemp("home")))
        model = open_folder(FIXTURES / request.param, "auto", key="trained", threads=1)
    yield model
    model.backend.close()


def asked(model, message, texts=TITLES):
    turns = [Message("system", SYSTEM), Message("user", message)]
    return chat_continuations(model.tokenizer, turns, texts)


def test_trained_models_choose_what_they_were_trained_on(trained):
    engine = Engine(trained.backend, trained.tokenizer, trained.eos_ids, cache_bytes=1 << 24)
    for message, title in PAIRS * 2:
        scores, _ = scores_of(engine, asked(trained, message), TITLES)
        assert TITLES[int(np.argmax(scores))] == f"<title>{title}</title>"


def test_scores_are_those_of_one_forward(trained):
    # graphs that give only the last row of logits compute several by single steps, with other last bits; where
    # activations are quantized a whole tensor at a time they differ with the cut into forwards as well
    info = trained.backend.info
    atol = 0.05 if trained.backend._is_last_only or info.dtype == "q8" else 1e-3
    engine = Engine(trained.backend, trained.tokenizer, trained.eos_ids, cache_bytes=1 << 24)
    question = asked(trained, PAIRS[0][0], [*TITLES[:2], "no", "a b", "<title>Plan"])
    for _ in range(2):
        found = score_continuations(engine, question.prompt_ids, question.answers)
        for ids, tokens in zip(question.answers, found, strict=True):
            whole = [*question.prompt_ids, *ids[:-1]]
            rows = trained.backend.forward(whole, trained.backend.new_state(), rows=len(ids))
            wanted = [log_softmax(row)[index] for row, index in zip(rows, ids, strict=True)]
            np.testing.assert_allclose(tokens, wanted, atol=atol)


def test_recurrent_and_growing_states_are_as_the_plain_way_has_them(trained):
    engine = Engine(trained.backend, trained.tokenizer, trained.eos_ids, cache_bytes=1 << 24)
    question = asked(trained, PAIRS[0][0], [*TITLES[:2], "no", "<title>Plan"])
    plain = plain_scores(trained.backend, question.prompt_ids, question.answers)
    for _ in range(2):
        found = score_continuations(engine, question.prompt_ids, question.answers)
        for one, other in zip(found, plain, strict=True):
            np.testing.assert_allclose(np.exp(one), np.exp(other), atol=0.05)  # int8 differs by shape
    assert engine.cache.size_bytes > 0


# ---- what goes wrong half-way -------------------------------------------------------------------


class Stubborn(ScriptedState):
    """A state that cannot be rolled back."""

    can_truncate = False

    def truncate(self, length):
        raise AssertionError("a recurrent state was rolled back")

    def copy(self, length=None):
        return Stubborn(self.token_ids[:length])


@pytest.mark.parametrize("kind", [ScriptedState, Stubborn], ids=["growing", "recurrent"])
@pytest.mark.parametrize("fails_at", range(5))
def test_failure_half_way_leaves_a_state_that_serves(kind, fails_at, monkeypatch):
    calls = []

    def failing(seen):
        calls.append(seen)
        if len(calls) == fails_at + 1:
            raise BackendError("it failed")
        return rising(seen)

    engine = scripted(failing, chunk_tokens=2)
    monkeypatch.setattr(engine.backend, "new_state", kind)
    with pytest.raises(BackendError, match="it failed"):
        score_continuations(engine, PROMPT, [[9, 10, 11], [9, 3]])
    assert score_continuations(engine, PROMPT, [[9, 10, 11], [9, 3]]) == [
        pytest.approx([LIKELY, LIKELY, LIKELY]),
        pytest.approx([LIKELY, UNLIKELY]),
    ]
    engine.backend.calls.clear()
    score_continuations(engine, PROMPT, [[9]])
    assert engine.backend.calls == [PROMPT[2:] if kind is ScriptedState else PROMPT[3:]]


def test_cancel_ends_a_choice_and_the_next_one_works():
    engine = scripted(lambda seen: engine.cancel() * 0 + rising(seen) if is_cancelling else rising(seen))
    is_cancelling = True
    with pytest.raises(ForwardInterrupted, match="cancelled"):
        score_continuations(engine, PROMPT, [[9, 10], [3, 4]])
    is_cancelling = False
    assert score_continuations(engine, PROMPT, [[9]])[0] == pytest.approx([LIKELY])


class Watcher:
    """Who waits for a choice until told otherwise."""

    cancelled_by = None

    def hear(self, chunk):
        raise AssertionError("a choice has no pieces")


def test_cancel_counts_a_choice_and_stops_the_forward_that_runs():
    counts = []
    engine = scripted(lambda seen: counts.append(engine.cancel()) or rising(seen))
    with pytest.raises(ForwardInterrupted, match="cancelled"):
        score_continuations(engine, PROMPT, [[9, 10], [3, 4]])
    assert counts == [1] and len(engine.backend.calls) == 1
    assert engine.cancel() == 0


def test_watcher_ends_its_own_choice_alone():
    mine, other = Watcher(), Watcher()

    def script(seen):
        if len(engine.backend.calls) == 1:
            engine.interrupt(other)  # whose work this is not
        if len(engine.backend.calls) == 2:
            mine.cancelled_by = "cancel"
            engine.interrupt(mine)
        return rising(seen)

    engine = scripted(script)
    with pytest.raises(ForwardInterrupted):
        score_continuations(engine, PROMPT, [[9, 10], [3, 4], [5, 6]], watcher=mine)
    assert len(engine.backend.calls) == 2
    assert score_continuations(engine, PROMPT, [[9, 10]], watcher=other)[0] == pytest.approx([LIKELY] * 2)
