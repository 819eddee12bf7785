"""The official client of the API against our server: what it parses is what counts."""

import json
import threading

import openai
import pydantic
import pytest

from tests.serve.serving import (
    ANSWER,
    MODEL,
    alphabet_session,
    byte_ids,
    official_client,
    scripted_session,
    served,
)
from tinykit.backends.scripted import ScriptedBackend

HELLO = [{"role": "user", "content": "Say hello"}]


def ask(client, messages=HELLO, **options):
    return client.chat.completions.create(model=MODEL, messages=messages, **options)


def test_models(client):
    assert [one.id for one in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "tinykit"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-4'"):
        client.models.retrieve("gpt-4")


def test_answer(client):
    found = ask(client)
    choice = found.choices[0]
    assert (found.object, found.model, choice.index) == ("chat.completion", MODEL, 0)
    assert (choice.message.role, choice.message.content) == ("assistant", ANSWER)
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    assert found.usage.completion_tokens == len(ANSWER.encode())
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert found.usage.prompt_tokens > len("Say hello")


def test_answer_is_that_of_the_session(server, client):
    session = server.app._session
    whole = session.chat(HELLO, max_tokens=5)
    found = ask(client, max_completion_tokens=5)
    assert found.choices[0].message.content == whole.text
    assert found.choices[0].finish_reason == whole.finish_reason == "length"
    assert found.usage.completion_tokens == whole.usage.completion_tokens == 5
    assert found.usage.prompt_tokens == whole.usage.prompt_tokens


def test_stream_has_the_same_text(client):
    with ask(client, stream=True) as stream:
        pieces = list(stream)
    assert len({one.id for one in pieces}) == 1
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(one.choices[0].delta.content or "" for one in pieces) == ANSWER
    assert [one.choices[0].finish_reason for one in pieces[-2:]] == [None, "stop"]
    assert len(pieces) > 5 and all(one.usage is None for one in pieces)


def test_stream_with_usage(client):
    whole = ask(client)
    with ask(client, stream=True, stream_options={"include_usage": True}) as stream:
        pieces = list(stream)
    assert pieces[-1].choices == []
    assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert pieces[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert all(one.usage is None for one in pieces[:-1])


@pytest.mark.parametrize("stop", [",", ["never", ", w"]], ids=["text", "list"])
def test_stop(client, stop):
    found = ask(client, stop=stop)
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("Hello", "stop")
    with ask(client, stop=stop, stream=True) as stream:
        assert "".join(one.choices[0].delta.content or "" for one in stream) == "Hello"


def test_logprobs(client):
    found = ask(client, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert b"".join(bytes(one.bytes) for one in found).decode() == ANSWER
    assert [len(one.top_logprobs) for one in found] == [2] * len(found)
    assert all(one.top_logprobs[0].token == one.token and one.logprob < 0 for one in found)
    with ask(client, logprobs=True, top_logprobs=2, stream=True) as stream:
        streamed = [
            entry for one in stream if one.choices[0].logprobs for entry in one.choices[0].logprobs.content
        ]
    assert streamed == found
    assert [one.top_logprobs for one in ask(client, logprobs=True).choices[0].logprobs.content] == [
        [] for _ in found
    ]


def test_logit_bias_and_penalty_reach_the_sampler(client):
    first = byte_ids("H")[0]
    assert ask(client, logit_bias={str(first): -100}, max_tokens=1).choices[0].message.content != "H"
    # of "ll" the second is punished for the first
    assert ask(client, frequency_penalty=2, max_tokens=4).choices[0].message.content != "Hell"
    assert ask(client, frequency_penalty=0.5, max_tokens=4).choices[0].message.content == "Hell"


def test_temperature_seed_and_n():
    with alphabet_session() as session, served(session) as client:
        options = {"temperature": 1, "seed": 7, "max_tokens": 12}
        one, again = (ask(client, **options).choices[0].message.content for _ in range(2))
        three = ask(client, n=3, **options)
        with ask(client, n=3, stream=True, **options) as stream:
            texts = {0: "", 1: "", 2: ""}
            ended = []
            for piece in stream:
                texts[piece.choices[0].index] += piece.choices[0].delta.content or ""
                if piece.choices[0].finish_reason:
                    ended.append(piece.choices[0].index)
        narrow = ask(client, top_p=0, **options).choices[0].message.content
        expected = [str(one) for one in session.chat(HELLO, n=3, **options)]
    assert one == again == expected[0]
    assert [choice.message.content for choice in three.choices] == expected
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert len(set(expected)) == 3
    assert (list(texts.values()), ended) == (expected, [0, 1, 2])
    assert three.usage.completion_tokens == 36
    assert narrow != one


class Reply(pydantic.BaseModel):
    is_ready: bool
    count: int


def test_parsed_answers_fit_the_model():
    with alphabet_session() as session, served(session) as client:
        asked = {"model": MODEL, "messages": HELLO, "temperature": 1, "seed": 1, "max_tokens": 400}
        biased = {str(byte_ids("}")[0]): 20, str(byte_ids("1")[0]): 5}
        found = client.chat.completions.parse(**asked, logit_bias=biased, response_format=Reply)
        whole = ask(client, logit_bias=biased, response_format={"type": "json_object"}, max_tokens=9)
    assert isinstance(found.choices[0].message.parsed, Reply)
    assert found.choices[0].finish_reason == "stop"
    assert json.loads(whole.choices[0].message.content) == {}


def test_our_own_options_come_in_the_extra_body(client):
    found = ask(client, extra_body={"choices": ["yes", "no"], "repeat_penalty": 1.1})
    assert found.choices[0].message.content in ("yes", "no")
    found = ask(client, extra_body={"regex": "[0-9]{4}", "top_k": 3, "min_p": 0.1})
    assert found.choices[0].message.content.isdigit()


def test_what_came_back_can_be_sent_again(client):
    message = ask(client).choices[0].message
    history = [*HELLO, message.model_dump(), {"role": "user", "content": [{"type": "text", "text": "And"}]}]
    assert ask(client, messages=history).choices[0].message.content == ANSWER


@pytest.mark.parametrize(
    ("options", "error", "param", "code"),
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature", "invalid_value"),
        ({"max_tokens": 1.5}, openai.BadRequestError, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": -1}, openai.BadRequestError, "max_completion_tokens", "invalid_value"),
        ({"presence_penalty": 1}, openai.BadRequestError, "presence_penalty", "unsupported_parameter"),
        ({"tools": [{"type": "function"}]}, openai.BadRequestError, "tools", "unsupported_parameter"),
        ({"extra_body": {"temprature": 1}}, openai.BadRequestError, "temprature", "unknown_parameter"),
        ({"logit_bias": {"9999": 1}}, openai.BadRequestError, "logit_bias", "invalid_value"),
        ({"extra_body": {"regex": "["}}, openai.BadRequestError, "regex", "invalid_value"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 3}}}},
            openai.BadRequestError, "response_format", "invalid_value",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_bad_options_are_errors_of_the_client(client, options, error, param, code, stream):
    with pytest.raises(error) as caught:
        ask(client, stream=stream, **options)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.type == "invalid_request_error"


def test_prompt_that_is_too_long(client):
    with pytest.raises(openai.BadRequestError, match=r"context is 8,192") as caught:
        ask(client, messages=[{"role": "user", "content": "x" * 9000}])
    assert caught.value.code == "context_length_exceeded"


def test_wrong_token_and_wrong_model(server, client):
    refused = pytest.raises(openai.AuthenticationError, match="token is missing or wrong")
    with openai.OpenAI(base_url=server.url, api_key="wrong", max_retries=0) as stranger, refused:
        stranger.models.list()
    with pytest.raises(openai.NotFoundError, match=f"This server has '{MODEL}'"):
        client.chat.completions.create(model="gpt-4", messages=HELLO)


def test_several_clients_at_once(server):
    found, threads = [], []

    def work():
        with official_client(server) as client:
            found.append(ask(client).choices[0].message.content)

    for _ in range(8):
        threads.append(threading.Thread(target=work))
        threads[-1].start()
    for thread in threads:
        thread.join(120)
    assert found == [ANSWER] * 8


def test_error_in_the_middle_of_a_stream():
    def script(seen):
        if seen[-1] == byte_ids("A")[0]:
            raise RuntimeError("of the library")
        return byte_ids("A")[0]

    backend = ScriptedBackend(script, vocab_size=300)
    with scripted_session(backend=backend) as session, served(session) as client:
        with pytest.raises(openai.InternalServerError):
            ask(client)
        text = ""
        with pytest.raises(openai.APIError, match="fault of tinykit"), ask(client, stream=True) as stream:
            for piece in stream:
                text += piece.choices[0].delta.content or ""
    assert text == "A"


@pytest.mark.real
def test_real_model_answers_the_client(real_session):
    capital = [{"role": "user", "content": "What is the capital of Australia?"}]
    with served(real_session) as client:
        whole = ask(client, capital, max_tokens=20)
        with ask(client, capital, max_tokens=20, stream=True) as stream:
            text = "".join(one.choices[0].delta.content or "" for one in stream)
        year = ask(client, capital, extra_body={"regex": "[0-9]{4}"}, logprobs=True)
    expected = real_session.chat(capital, max_tokens=20)
    assert "Canberra" in text
    assert whole.choices[0].message.content == text == expected.text
    assert whole.usage.completion_tokens == expected.usage.completion_tokens
    found = year.choices[0]
    assert found.message.content.isdigit()
    assert b"".join(bytes(one.bytes) for one in found.logprobs.content).decode() == found.message.content
