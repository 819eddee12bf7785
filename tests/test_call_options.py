import inspect

import pytest

from tinykit import TinySession
from tinykit.call_options import CallOptions, generation_options
from tinykit.errors import OptionError
from tinykit.generation.constraint import Constraint
from tinykit.generation.request import Draft, GenerationOptions
from tinykit.generation.sampling import Sampling


def test_nothing_given_is_greedy_and_free():
    assert generation_options({}) == GenerationOptions()


def test_each_option_reaches_its_place():
    options = generation_options(
        {"max_tokens": 9, "stop": "x", "temperature": 0.5, "top_k": 3, "seed": 4, "regex": "a+", "draft": 5,
         "logprobs": 2, "timeout_s": 1.5, "exact": True, "tokens_per_step": 4, "logit_bias": {3: -1.0}}
    )  # fmt: skip
    assert options == GenerationOptions(
        9, ("x",), Sampling(temperature=0.5, top_k=3, seed=4, logit_bias={3: -1.0}), Constraint.regex("a+"),
        Draft(1, 5), 4, 2, 1.5, True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [("regex", "a", "regex"), ("choices", ["a", "b"], "choices"), ("schema", {"type": "null"}, "json"),
     ("lark", 'start: "a"', "lark"), ("gbnf", 'root ::= "a"', "gbnf")],
)  # fmt: skip
def test_constraints_by_name(name, value, kind):
    assert generation_options({name: value}).constraint.kind == kind


def test_unknown_option_names_the_nearest():
    with pytest.raises(OptionError, match="Unknown option 'temprature'") as caught:
        generation_options({"temprature": 1})
    assert caught.value.hint == "Did you mean temperature?"
    with pytest.raises(OptionError) as caught:
        generation_options({"temp": 1})  # "system" is nearer by its letters
    assert caught.value.hint == "Did you mean temperature?"
    with pytest.raises(OptionError) as caught:
        generation_options({"frobnicate": 1})
    assert "max_tokens" in caught.value.hint


def test_two_constraints_are_one_too_many():
    with pytest.raises(OptionError, match="one constraint, not regex and schema"):
        generation_options({"regex": "a", "schema": {}})


@pytest.mark.parametrize(
    ("name", "own"),
    [("complete", "prompt"), ("chat", "messages"), ("stream", "prompt"), ("complete_many", "prompts")],
)
def test_signatures_show_the_options_with_their_defaults(name, own):
    parameters = inspect.signature(getattr(TinySession, name)).parameters
    assert own in parameters
    assert set(CallOptions.__annotations__) <= set(parameters)
    assert parameters["max_tokens"].default == GenerationOptions().max_tokens
    assert parameters["temperature"].default == 0.0
    assert not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())


def test_every_option_is_described():
    for name in CallOptions.__annotations__:
        assert name in CallOptions.__doc__, name


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda session: TinySession(modle="x"), "model"),
        (lambda session: TinySession("smollm2-135m", dtpye="q8"), "dtype"),
        (lambda session: session.choose("a", ["b", "c"], calibrat=1), "calibrate"),
        (lambda session: session.yes_no("a?", contxt="b"), "context"),
        (lambda session: session.score("a?", ["b", "c"], level=1), "levels"),
        (lambda session: session.judge("a", question={}), "questions"),
        (lambda session: session.title("a", recip="x"), "recipe"),
        (lambda session: session.title_result("a", recip="x"), "recipe"),
        (lambda session: session.titles(["a"], batchsize=3), "batch_size"),
        (lambda session: session.title_results(["a"], exct=True), "exact"),
        (lambda session: session.save_state("a", slt=0), "slot"),
        (lambda session: session.restore_state("a", slt=0), "slot"),
        (lambda session: session.free_slot(slott=0), "slot"),
    ],
)
def test_misspelt_keyword_names_the_nearest(call, meant):
    session = TinySession(recipe="first-words", lazy=True)
    with pytest.raises(OptionError, match=r"Unknown option '\w+'\.\nDid you mean " + meant + r"\?"):
        call(session)


def test_keyword_like_no_other_lists_those_that_there_are():
    with pytest.raises(OptionError, match="Known are message, recipe"):
        TinySession(recipe="first-words", lazy=True).title("a", zzz=1)


def test_signatures_are_still_those_of_the_methods():
    assert list(inspect.signature(TinySession.choose).parameters)[:3] == ["self", "prompt", "options"]
    assert "model" in inspect.signature(TinySession).parameters
    assert TinySession.title.__doc__.startswith("A short title")
