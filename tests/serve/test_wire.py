import json
import math

import pytest

from tests.serve.serving import tokenizer
from tinykit.generation.result import Completion, Timings, Usage
from tinykit.generation.sampling import TokenLogprob
from tinykit.serve.wire import Tokens, Wire, as_json, event, usage


def completion(text="hi", *, prompt=10, said=2, reused=0):
    timings = Timings(0.0, 0.0, None, 0.0, 0.0)
    return Completion(text, (), "stop", Usage(prompt, said, reused), timings)


@pytest.mark.parametrize("text", ["naïve 名前 👍", "a\ud800b", 'quote " and \\', "line\nbreak\u2028", "\x00"])
def test_json_is_one_line_and_gives_the_text_back(text):
    data = as_json({"text": text})
    assert b"\n" not in data
    assert json.loads(data.decode("utf-8")) == {"text": text}
    assert event({"text": text}) == b"data: " + data + b"\n\n"


def test_json_has_no_infinity():
    with pytest.raises(ValueError, match="JSON"):
        as_json(math.inf)


def test_usage_counts_the_prompt_once():
    found = usage([completion(reused=4), completion(said=5, reused=10)])
    assert found == {
        "prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17,
        "prompt_tokens_details": {"cached_tokens": 4},
    }  # fmt: skip


def test_logprobs_of_half_a_character_a_control_token_and_the_impossible():
    ids = {"half": 3 + 0xC3, "control": 2, "beyond": 100_000}
    found = [TokenLogprob(ids["half"], -0.5, ((ids["control"], -1.0), (ids["beyond"], -math.inf)))]
    (entry,) = Tokens(tokenizer()).logprobs(found)["content"]
    assert (entry["token"], entry["bytes"], entry["logprob"]) == ("\ufffd", [0xC3], -0.5)
    assert entry["top_logprobs"] == [
        {"token": "", "logprob": -1.0, "bytes": None},
        {"token": "", "logprob": -9999.0, "bytes": None},
    ]


def test_ids_differ_from_answer_to_answer():
    ids = {Wire("m", None).whole([completion()])["id"] for _ in range(10)}
    assert len(ids) == 10 and all(one.startswith("chatcmpl-") for one in ids)
