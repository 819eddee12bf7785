import json
import math

import numpy as np
import pytest

from tinykit.errors import OptionError, TinykitError
from tinykit.generation.request import GenerationOptions, checked_max_tokens
from tinykit.generation.result import Completion, Timings, Usage
from tinykit.generation.sampling import TokenLogprob


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (1, 1),
        (256, 256),
        (5.0, 5),
        (1025, 1024),
        (10**400, 1024),
        (math.inf, 1024),
        (np.int64(3), 3),
        (np.uint8(7), 7),
        (np.float32(5), 5),
    ],
    ids=repr,
)
def test_max_tokens_is_clamped_from_above(value, expected):
    tokens = checked_max_tokens(value)
    assert (tokens, type(tokens)) == (expected, int)


@pytest.mark.parametrize(
    "value", [-1, math.nan, -math.inf, 1.5, "12", None, True, np.bool_(True), np.float32(1.5)], ids=repr
)
def test_max_tokens_that_make_no_sense_are_named(value):
    with pytest.raises(OptionError, match="max_tokens must be a whole number from 0 ") as caught:
        GenerationOptions(max_tokens=value)
    assert caught.value.name == "max_tokens"


def test_one_stop_string_counts_as_one():
    assert GenerationOptions(stop="END").stop == ("END",)
    assert GenerationOptions(stop=["a", "b"]).stop == ("a", "b")


@pytest.mark.parametrize("stop", ["", [""], [3], 5, None, 1.5, b"END", [b"END"]], ids=repr)
def test_bad_stop_strings_are_named(stop):
    with pytest.raises(OptionError, match="stop must be texts") as caught:
        GenerationOptions(stop=stop)
    assert (caught.value.name, caught.value.value) == ("stop", stop)


def test_completion_is_its_text():
    completion = Completion("a title", (1, 2, 3), "stop", Usage(5, 3, 0), Timings(0.0, 0.1, 0.1, 0.5, 0.6))
    assert str(completion) == f"{completion}" == "a title"
    assert f"{completion:>9}" == "  a title"
    assert len(completion) == 7
    assert "title" in completion
    assert completion == "a title"
    assert {completion: 1}["a title"] == 1
    assert "%s" % completion == completion.text  # noqa: UP031
    assert completion.decode_tokens_per_s == 4.0


def test_completion_goes_through_json_and_back():
    logprobs = (TokenLogprob(1, -0.5, ((1, -0.5), (2, -1.5))),)
    completion = Completion(
        "a title", (1,), "stop", Usage(5, 3, 0), Timings(0.0, 0.1, None, 0.5, 0.6), seed=7, logprobs=logprobs,
        notes=("no draft",),
    )  # fmt: skip
    again = Completion.from_dict(json.loads(json.dumps(completion.to_dict())))
    assert vars(again) == vars(completion)
    failed = Completion.nothing(error=TinykitError("it fell over"), prompt_tokens=3)
    again = Completion.from_dict(json.loads(json.dumps(failed.to_dict())))
    assert (str(again.error), again.finish_reason, again.usage) == ("it fell over", "error", failed.usage)
    with pytest.raises(KeyError):
        Completion.from_dict({"text": "a title"})
