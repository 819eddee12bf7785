"""Drafting and constraints in a run: the same text in fewer steps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny_models as tiny
from tests.generation.test_engine import EOS, A, B, Recurrent, scripted_engine, tokenizer
from tests.generation.test_streaming import ids
from tinykit.backends.scripted import ScriptedBackend
from tinykit.errors import OptionError
from tinykit.generation.constraint import Constraint
from tinykit.generation.engine import Engine
from tinykit.generation.request import GenerationOptions, Request
from tinykit.generation.sampling import Sampling


def copying_engine(period, length):
    """An engine whose model repeats itself every `period` tokens, `length` tokens in all."""

    def script(seen):
        return 10 + len(seen) % period if len(seen) < length else EOS

    backend = ScriptedBackend(script, vocab_size=len(tiny.VOCABULARY))
    return Engine(backend, tokenizer(), [EOS], cache_bytes=1 << 20)


@settings(deadline=None, max_examples=60)
@given(
    period=st.integers(1, 9), length=st.integers(3, 60), minimum=st.integers(1, 3), more=st.integers(0, 6),
    per_step=st.integers(1, 12), budget=st.integers(1, 40),
)  # fmt: skip
def test_drafted_equals_plain(period, length, minimum, more, per_step, budget):
    prompt = (10, 11, 12)
    plain = copying_engine(period, length).generate(Request(prompt, GenerationOptions(budget)))
    engine = copying_engine(period, length)
    options = GenerationOptions(budget, draft=(minimum, minimum + more), tokens_per_step=per_step)
    stream = engine.stream(Request(prompt, options))
    pieces = list(stream)
    drafted = stream.result
    assert (drafted, drafted.finish_reason) == (plain, plain.finish_reason)
    assert all(len(piece.token_ids) <= per_step for piece in pieces)
    usage = drafted.usage
    assert usage.drafted_tokens >= usage.accepted_tokens >= 0
    assert usage.decode_steps + usage.accepted_tokens >= len(drafted.token_ids) - 1
    assert sum(piece.drafted_tokens for piece in pieces) == usage.drafted_tokens
    assert sum(piece.accepted_tokens for piece in pieces) == usage.accepted_tokens
    # what is kept for the next turn is what was said
    kept, state = engine.cache.last
    assert list(kept) == state.token_ids == [*prompt, *drafted.token_ids][: state.length]


def test_drafting_takes_fewer_steps():
    plain = copying_engine(4, 60).generate(Request((10, 11, 12)))
    drafted = copying_engine(4, 60).generate(Request((10, 11, 12), GenerationOptions(draft=(1, 8))))
    assert drafted == plain
    assert drafted.usage.decode_steps < plain.usage.decode_steps / 3
    assert drafted.usage.acceptance_rate > 0.5
    assert plain.usage.acceptance_rate is None


def test_listeners_hear_what_became_of_each_draft():
    events = []
    engine = copying_engine(4, 60)
    completion = engine.generate(
        Request((10, 11, 12), GenerationOptions(draft=(1, 5), logprobs=0)), on_verify=events.append
    )
    tokens = [token for event in events for token in event.tokens]
    assert [(token.index, token.token_id) for token in tokens] == list(enumerate(completion.token_ids))
    assert sum(event.drafted for event in events) == completion.usage.drafted_tokens
    assert sum(event.accepted for event in events) == completion.usage.accepted_tokens > 0
    assert {event.kind for event in events} == {"accept", "reject"}
    assert events[0].ttft_s == completion.timings.ttft_s
    assert all(event.is_valid and event.ttft_s is None for event in events[1:])
    [rejected] = [event for event in events if event.kind == "reject"]
    assert rejected.correction_token_id == EOS


def test_sampled_draft_draws_what_plain_draws():
    def engine():
        backend = ScriptedBackend(lambda seen: 10 + len(seen) % 4, vocab_size=len(tiny.VOCABULARY))
        return Engine(backend, tokenizer(), [EOS], cache_bytes=1 << 20)

    sampling = Sampling(temperature=0.2, top_k=5, seed=7)
    plain = engine().generate(Request((10, 11, 12, 13), GenerationOptions(40, sampling=sampling)))
    options = GenerationOptions(40, sampling=sampling, draft=True)
    drafted = engine().generate(Request((10, 11, 12, 13), options))
    assert drafted == plain
    assert drafted.seed == 7


def test_recurrent_states_switch_drafting_off_with_the_reason(monkeypatch):
    engine = copying_engine(4, 60)
    monkeypatch.setattr(engine.backend, "new_state", Recurrent)
    completion = engine.generate(Request((10, 11, 12), GenerationOptions(30, draft=True)))
    assert completion.usage.drafted_tokens == 0
    assert completion.notes == (
        "Drafting is off: this model has recurrent states, which cannot take a wrong guess back.",
    )


def test_exact_mode_switches_drafting_off_where_shapes_matter():
    engine = copying_engine(4, 60)
    request = Request((10, 11, 12), GenerationOptions(30, draft=True, exact=True))
    assert engine.generate(request).usage.drafted_tokens > 0
    object.__setattr__(engine.backend.info, "is_shape_invariant", False)
    completion = engine.generate(request)
    assert completion.usage.drafted_tokens == 0
    assert "exact" in completion.notes[0]


def constrained(constraint, preferred="zzzzzzzzzzzzzzzz", **options):
    engine = scripted_engine(ids(preferred), 2)
    options = GenerationOptions(60, constraint=constraint, **options)
    return engine.generate(Request((A, B), options))


def test_constraint_wins_over_what_the_model_wants():
    completion = constrained(Constraint.regex("[0-9]{3}-[ab]"), "12345")
    assert completion.text.startswith("123-")
    assert completion.finish_reason == "stop"


def test_forced_tokens_cost_no_step():
    completion = constrained(Constraint.choices(["yes, certainly"]))
    assert completion.text == "yes, certainly"
    assert completion.usage.forced_tokens == len(completion.token_ids) - 1  # the prompt gave logits for one
    assert completion.usage.decode_steps == 0
    assert constrained(Constraint.choices(["yes, certainly"]), logprobs=0).usage.forced_tokens == 0


def test_json_is_parsed():
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    completion = constrained(Constraint.json_schema(schema))
    assert completion.parsed in ({"ok": True}, {"ok": False})


def test_cut_off_json_is_not_parsed():
    constraint = Constraint.choices(["a long answer that does not fit"])
    completion = scripted_engine([], 2).generate(Request((A, B), GenerationOptions(3, constraint=constraint)))
    assert (completion.finish_reason, completion.parsed) == ("length", None)


def test_constraint_with_drafts_says_the_same():
    for pattern in ("(ab){4,9}", "[abc ]{5,30}", "a[0-9]b{2,5}c"):
        plain = constrained(Constraint.regex(pattern), "abab abab abab abab")
        assert constrained(Constraint.regex(pattern), "abab abab abab abab", draft=True) == plain


def test_grammar_that_is_none_is_refused_before_anything_is_computed():
    engine = scripted_engine([A], 2)
    with pytest.raises(OptionError):
        engine.generate(Request((A, B), GenerationOptions(constraint=Constraint.regex("("))))
    assert engine.backend.calls == []
