from pathlib import Path

import pytest

from tinykit.call_options import generation_options
from tinykit.errors import OptionError
from tinykit.serve.options import PARAMETERS, chat_request, table

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def options_of(**fields):
    return chat_request({**BODY, **fields}).options


def test_plain_request():
    request = chat_request(BODY)
    assert (request.model, request.messages, request.n) == ("m", BODY["messages"], 1)
    assert request.options == {"max_tokens": 1024}
    assert not request.stream and not request.include_usage


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"max_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"stop": "x"}, {"stop": "x"}),
        ({"stop": ["x", "y"]}, {"stop": ["x", "y"]}),
        ({"temperature": 0.5, "top_p": 0.9, "seed": 3}, {"temperature": 0.5, "top_p": 0.9, "seed": 3}),
        ({"frequency_penalty": 1}, {"frequency_penalty": 1}),
        ({"logit_bias": {"7": -100, "8": 1.5}}, {"logit_bias": {7: -100, 8: 1.5}}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 4}, {"logprobs": 4}),
        ({"logprobs": False}, {}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"schema": {"type": "object"}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
            {"schema": SCHEMA},
        ),
        ({"top_k": 4, "min_p": 0.1, "repeat_penalty": 1.1}, {"top_k": 4, "min_p": 0.1, "repeat_penalty": 1.1}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"choices": ["a", "b"]}, {"choices": ["a", "b"]}),
        ({"user": "ada", "safety_identifier": "x", "prompt_cache_key": "y"}, {}),
    ],
    ids=lambda value: ",".join(value) or "nothing",
)  # fmt: skip
def test_parameter_becomes_an_option(fields, options):
    assert options_of(**fields) == {"max_tokens": 1024, **options}


@pytest.mark.parametrize("name", PARAMETERS)
def test_null_is_not_given(name):
    if name in BODY:
        with pytest.raises(OptionError) as caught:
            chat_request({**BODY, name: None})
        assert caught.value.name == name
    else:
        assert options_of(**{name: None}) == {"max_tokens": 1024}


@pytest.mark.parametrize("name", [one.name for one in PARAMETERS.values() if one.neutral is not None])
def test_what_is_not_supported_may_ask_for_nothing(name):
    for value in PARAMETERS[name].neutral:
        assert options_of(**{name: value}) == {"max_tokens": 1024}
    for value in ("something", 1, ["x"]):
        with pytest.raises(OptionError, match=f"{name} is not supported, so it cannot be") as caught:
            options_of(**{name: value})
        assert (caught.value.name, caught.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize("name", [one.name for one in PARAMETERS.values() if one.option])
def test_options_of_the_table_are_ours(name):
    with pytest.raises(OptionError, match="must be|must have|must map") as caught:
        options_of(**{name: {"no": "way"}}, logprobs=True)
    assert caught.value.name == name


def test_number_is_no_switch():
    with pytest.raises(OptionError, match="store is not supported"):
        options_of(store=0)
    with pytest.raises(OptionError, match="presence_penalty is not supported"):
        options_of(presence_penalty=False)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"model": 3}, "model", "must be the name of a model, not 3"),
        ({"messages": []}, "messages", "must be a list of role and content"),
        ({"messages": "hi"}, "messages", "must be a list of role and content, not 'hi'"),
        ({"messages": ["hi"]}, "messages", r"messages\[0\] must have a role and content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", r"role of messages\[0\] must be one of"),
        ({"messages": [{"role": [], "content": "x"}]}, "messages", r"role of messages\[0\] must be one of"),
        ({"messages": [{"role": "user"}]}, "messages", "must be text, not None"),
        ({"messages": [{"role": "user", "content": []}]}, "messages", r"must be text, not \[\]"),
        ({"messages": [{"role": "user", "content": "x", "name": "Ada"}]}, "messages", "'name', which is not"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages", "has a part that is not text: 'image_url'",
        ),
        ({"n": 0}, "n", "from 1 to 16, not 0"),
        ({"n": 17}, "n", "from 1 to 16, not 17"),
        ({"n": True}, "n", "not True"),
        ({"stream": 1}, "stream", "must be true or false"),
        ({"stream_options": {}}, "stream_options", "needs stream"),
        ({"stream": True, "stream_options": []}, "stream_options", "must be an object"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options", "has no 'x'"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options", "must be true or false"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options", "include_obfuscation is not supported",
        ),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens", "only one of them"),
        ({"max_completion_tokens": True}, "max_completion_tokens", "must be a whole number"),
        ({"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs", "must be a number"),
        ({"logprobs": 3}, "logprobs", "must be true or false"),
        ({"logit_bias": {"a": 1}}, "logit_bias", "must map token ids"),
        ({"logit_bias": {"٣": 1}}, "logit_bias", "must map token ids"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "must map token ids"),
        ({"logit_bias": {"1": "x"}}, "logit_bias", "must map token ids"),
        ({"response_format": {"type": "xml"}}, "response_format", "must have the type"),
        ({"response_format": {"type": ["text"]}}, "response_format", "must have the type"),
        ({"response_format": {"type": "text", "x": 1}}, "response_format", "has no 'x'"),
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format", "has no 'schema'"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "needs a json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}}, "response_format", "needs a"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "x": 1}}},
            "response_format", "json_schema has no 'x'",
        ),
        ({"regex": "a", "choices": ["b"]}, "choices", "can have one constraint"),
        ({"temprature": 1}, "temprature", "Unknown parameter 'temprature'"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(fields, param, message):
    with pytest.raises(OptionError, match=message) as caught:
        options_of(**fields)
    assert caught.value.name == param


@pytest.mark.parametrize("body", [None, [], "x", 3, True], ids=repr)
def test_body_that_is_no_object(body):
    with pytest.raises(OptionError, match="must be a JSON object"):
        chat_request(body)


def test_roles_and_parts():
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "annotations": []},
        {"role": "user", "content": ""},
    ]
    assert chat_request({**BODY, "messages": messages}).messages == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": ""},
    ]


def test_seed_counts_up_from_choice_to_choice():
    request = chat_request({**BODY, "n": 3, "seed": 5})
    assert [request.of_choice(index)["seed"] for index in range(3)] == [5, 6, 7]
    assert "seed" not in chat_request({**BODY, "n": 3}).of_choice(2)
    generation_options(request.of_choice(2))


def test_documentation_has_the_table():
    text = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    assert table() in text
