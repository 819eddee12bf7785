"""Whatever a client with the token sends: an answer or an error in the API's form, and the server goes on."""

import json

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serve.serving import ANSWER, MODEL, TOKEN
from tinykit.serve.options import PARAMETERS

GOOD = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**30, max_value=10**31)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=8)  # surrogates among them
    | st.sampled_from(["user", "system", "text", "json_schema", "json_object", MODEL, "\ud800", "("])
)
KEYS = st.text(max_size=5) | st.sampled_from(
    ["role", "content", "type", "text", "json_schema", "schema", "include_usage", "1", "999999", *PARAMETERS]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
FIELDS = st.dictionaries(st.sampled_from(list(PARAMETERS)) | st.text(max_size=6), VALUES, max_size=3)


@pytest.fixture(scope="module")
def post(server):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=120) as client:
        yield lambda content: client.post("/chat/completions", content=content)


def check(response, post):
    """An answer, or a 4xx in the API's form; then an ordinary request is answered."""
    if response.status_code == 200:
        assert response.headers["content-type"].startswith(("application/json", "text/event-stream"))
        assert b'"error"' not in response.content
    else:
        assert 400 <= response.status_code < 500, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error" and error["message"] and error["code"]
        assert len(error["message"]) <= 1000
    good = post(json.dumps(GOOD).encode())
    assert good.json()["choices"][0]["message"]["content"] == ANSWER[:3]


usual = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@usual
@given(fields=FIELDS)
def test_good_body_with_something_odd_in_it(post, fields):
    check(post(json.dumps({**GOOD, **fields}).encode()), post)


@usual
@given(body=VALUES)
def test_json_of_any_kind(post, body):
    check(post(json.dumps(body).encode()), post)


@usual
@given(data=st.binary(max_size=60), at=st.integers(0, 90))
def test_bytes_of_any_kind(post, data, at):
    good = json.dumps(GOOD).encode()
    check(post(good[:at] + data + good[at + len(data) :]), post)


@pytest.mark.parametrize("depth", [50, 400, 900, 5000])
@pytest.mark.parametrize(
    "name", ["temperature", "messages", "response_format", "stop", "logit_bias", "user", "x"]
)
def test_deep_nesting(post, name, depth):
    for left, right in (("[", "]"), ('{"a":', "}")):
        nested = left * depth + "1" + right * depth
        body = json.dumps(GOOD)[:-1] + f', "{name}": {nested}' + "}"
        response = post(body.encode())
        assert response.status_code == 400
        check(response, post)


@pytest.mark.parametrize("depth", [50, 400, 900])
def test_deep_schema(post, depth):
    schema = '{"type":"array","items":' * depth + "{}" + "}" * depth
    wrapped = f'{{"type": "json_schema", "json_schema": {{"name": "x", "schema": {schema}}}}}'
    check(post((json.dumps(GOOD)[:-1] + f', "response_format": {wrapped}}}').encode()), post)
