"""The import of the embedded model against what other engines say (tests/reference/record.py)."""

import json
from pathlib import Path

import numpy as np
import pytest

from tinykit import TinySession
from tinykit.tokenizer import Message

pytestmark = pytest.mark.real
REFERENCE = json.loads((Path(__file__).parent / "reference/smollm2-135m.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", REFERENCE["texts"], ids=lambda case: repr(case["text"][:20]))
def test_token_ids_equal_those_of_llama_cpp(real_session, case):
    tokenizer = real_session.load().engine.tokenizer
    assert tokenizer.encode(case["text"]) == case["ids"]
    assert tokenizer.decode(case["ids"]) == case["text"]


@pytest.mark.parametrize("case", REFERENCE["prompts"], ids=lambda case: case["prompt"][:24])
def test_chat_prompts_equal_those_of_llama_cpp(real_session, case):
    tokenizer = real_session.load().engine.tokenizer
    assert tokenizer.encode_chat([Message("user", case["prompt"])]) == case["ids"]


def compare(backend):
    """Feed each reference answer; returns our token ids by prompt and our log-probabilities' errors."""
    answers, errors = [], []
    for case in REFERENCE["prompts"]:
        state = backend.new_state()
        logits = backend.forward(case["ids"], state)[0]
        answer = []
        for token_id, best in zip(case["greedy_ids"], case["best"], strict=True):
            logprobs = logits - np.log(np.exp(logits.astype(np.float64)).sum())
            answer.append(int(logits.argmax()))
            errors += [abs(float(logprobs[i]) - expected) for i, expected in best]
            logits = backend.forward([token_id], state)[0]
        answers.append(answer)
    return answers, np.array(errors)


def test_float_build_gives_the_greedy_answers_of_transformers(use_real_home):
    with TinySession("smollm2-135m", dtype="fp32", progress=False) as session:
        answers, errors = compare(session.load().engine.backend)
    assert answers == [case["greedy_ids"] for case in REFERENCE["prompts"]]
    assert errors.max() < 2e-4  # the reference is rounded to 1e-4


def agreement(answers):
    """The share of steps with the reference's most likely token."""
    expected = [case["greedy_ids"] for case in REFERENCE["prompts"]]
    return np.mean(
        [a == b for x, y in zip(answers, expected, strict=True) for a, b in zip(x, y, strict=True)]
    )


def test_default_build_stays_near_the_float_weights(real_session):
    engine = real_session.load().engine
    answers, errors = compare(engine.backend)
    assert engine.rows_are_exact
    assert agreement(answers) >= 0.92  # 94.8 % when this was written
    assert errors.mean() < 0.3  # 0.23 when this was written


def test_build_with_blocks_of_eight_bits_stays_near_the_float_weights(use_real_home):
    with TinySession("smollm2-135m", dtype="q8", progress=False) as session:
        answers, errors = compare(session.load().engine.backend)
    assert agreement(answers) >= 0.95  # 97.6 % when this was written
    assert errors.mean() < 0.2  # 0.13 when this was written
