import math

import numpy as np
import pytest

from tests import tiny_models as tiny
from tests.generation.test_engine import EOS, A, B, tokenizer
from tinykit.backends.onnx import OnnxBackend
from tinykit.backends.scripted import ScriptedBackend
from tinykit.convert.gguf import GgufFile
from tinykit.convert.importer import import_model
from tinykit.errors import PromptTooLongError
from tinykit.generation.alternatives import answers, can_branch
from tinykit.generation.engine import Engine
from tinykit.generation.request import GenerationOptions, Request

PROMPT = (A, B, A, B)
C, D, E = (tiny.VOCABULARY.index(letter) for letter in "CDE")


class Table(ScriptedBackend):
    """Says how likely each next token is after what was said; anything else has no chance."""

    def __init__(self, table):
        super().__init__(lambda seen: EOS, vocab_size=len(tiny.VOCABULARY))
        self.table = table

    def forward(self, token_ids, state):
        logits = super().forward(token_ids, state)
        logits[:] = -50
        for token, chance in self.table[tuple(state.token_ids[len(PROMPT) :])].items():
            logits[token] = math.log(chance)
        return logits


TABLE = {
    (): {C: 0.6, D: 0.3, E: 0.1},
    (C,): {C: 0.9, EOS: 0.1},
    (C, C): {EOS: 0.55, D: 0.45},
    (C, C, D): {EOS: 1.0},
    (D,): {E: 1.0},
    (D, E): {EOS: 1.0},
}


def make_engine(table=TABLE):
    return Engine(Table(table), tokenizer(), [EOS], cache_bytes=1 << 20)


def ask(engine, prompt=PROMPT, branches=5, max_gap=1.0, prefix=None, **options):
    request = Request(prompt, GenerationOptions(**options), prefix_tokens=prefix)
    return answers(engine, request, branches=branches, max_gap=max_gap)


def texts(found):
    return [answer.completion.text for answer in found]


def test_first_answer_is_greedy_and_the_likeliest_branch_comes_next():
    found = ask(make_engine())
    assert texts(found) == ["CC", "CCD", "DE"]
    chances = [0.6 * 0.9 * 0.55, 0.6 * 0.9 * 0.45, 0.3]
    assert [math.exp(answer.logprob) for answer in found] == pytest.approx(chances)
    assert [answer.completion.finish_reason for answer in found] == ["stop"] * 3


def test_number_and_likelihood_of_branches_are_limited():
    assert texts(ask(make_engine(), branches=1)) == ["CC", "CCD"]
    assert texts(ask(make_engine(), branches=0)) == ["CC"]
    assert texts(ask(make_engine(), max_gap=0.5)) == ["CC", "CCD"]
    assert texts(ask(make_engine(), max_gap=0.1)) == ["CC"]


def test_prompt_is_computed_once_and_a_branch_only_where_it_differs():
    engine = make_engine()
    found = ask(engine)
    assert engine.backend.calls == [PROMPT, (C,), (C,), (D,), (D,), (E,)]
    usages = [answer.completion.usage for answer in found]
    assert [usage.completion_tokens for usage in usages] == [2, 1, 2]
    assert {usage.prompt_tokens for usage in usages} == {len(PROMPT)}


def test_state_of_the_prefix_is_kept():
    engine = make_engine()
    ask(engine, prefix=2)
    assert engine.cache.size_bytes == 8 * 2
    engine.backend.calls.clear()
    again = ask(engine, prefix=2)
    assert engine.backend.calls[0] == PROMPT[2:]
    assert again[0].completion.usage.kv_reused_tokens == 2
    assert texts(again) == ["CC", "CCD", "DE"]


def test_without_a_prefix_the_state_of_the_prompt_is_kept():
    engine = make_engine()
    ask(engine)
    assert engine.cache.size_bytes == 8 * len(PROMPT)


def test_stop_string_ends_every_answer():
    table = {
        (): {C: 0.5, D: 0.4},
        (C,): {A: 1.0},
        (C, A): {B: 1.0},
        (D,): {A: 1.0},
        (D, A): {B: 1.0},
    }
    found = ask(make_engine(table), stop=("AB",))
    assert texts(found) == ["C", "D"]
    assert found[0].completion.token_ids == (C, A, B)


def test_budget_ends_every_answer():
    found = ask(make_engine(), max_tokens=1)
    assert texts(found) == ["C", "D"]
    assert {answer.completion.finish_reason for answer in found} == {"length"}


def test_banned_first_token_is_not_said():
    assert texts(ask(make_engine(), branches=0, banned_first=frozenset({C}))) == ["DE"]


def test_too_long_a_prompt_is_an_error():
    with pytest.raises(PromptTooLongError):
        ask(make_engine(), prompt=(A,) * 9000)


def test_same_as_the_engine_and_as_teacher_forcing_on_a_real_graph(tmp_path):
    gguf = tiny.write_gguf(tmp_path / "tiny.gguf", "llama", tiny.random_weights("llama"))
    graph = import_model(GgufFile(gguf), tmp_path, dtype="fp32")
    backend = OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1)
    engine = Engine(backend, tokenizer(), [EOS], cache_bytes=1 << 20)
    assert can_branch(engine)
    prompt = (1, 40, 41, 200, 7, 60, 61, 99, 12)
    found = ask(engine, prompt=prompt, branches=3, max_gap=9.0, max_tokens=6)
    plain = engine.generate(Request(prompt, GenerationOptions(6)))
    assert found[0].completion.token_ids == plain.token_ids
    assert len(found) == 4
    for answer in found:
        total, seen = 0.0, list(prompt)
        for token in answer.completion.token_ids:
            logits = backend.forward(seen, backend.new_state()).astype(float)
            total += logits[token] - np.logaddexp.reduce(logits)
            seen.append(token)
        assert answer.logprob == pytest.approx(total, abs=1e-3)
