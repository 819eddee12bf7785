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
