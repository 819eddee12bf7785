"""`tinykit serve --shared` on the embedded model: the official client gets what a session alone says."""

import json

import pytest

from tests.serve.serving import official_client, running
from tests.worker.conftest import in_thread, module_folder, worker_dir  # noqa: F401  # fixtures
from tinykit import TinySession
from tinykit.serve import SHARED_AT_ONCE

pytest.importorskip("openai")
pytestmark = pytest.mark.real
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the capital of France?"},
]
SCHEMA = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


def test_answers_streams_schemas_and_stops_are_those_of_this_process(worker_dir, use_real_home, in_thread):  # noqa: F811
    with TinySession("smollm2-135m", progress=False) as alone:
        whole = alone.chat(CHAT, max_tokens=12)
        stop = whole.text.split()[1]
        stopped = alone.chat(CHAT, max_tokens=12, stop=[stop])
        parsed = alone.chat(CHAT, max_tokens=24, schema=SCHEMA)
        drawn = alone.chat(CHAT, max_tokens=8, temperature=0.8, seed=3)
        other = alone.complete("Name a color.", max_tokens=12)
    with (
        TinySession("smollm2-135m", shared=True, progress=False) as shared,
        running(shared, at_once=SHARED_AT_ONCE) as server,
        official_client(server) as client,
    ):

        def ask(messages=CHAT, **options):
            return client.chat.completions.create(model="smollm2-135m", messages=messages, **options)

        found = ask(max_tokens=12)
        assert found.choices[0].message.content == whole.text
        assert found.choices[0].finish_reason == ("stop" if whole.finish_reason == "stop" else "length")
        assert found.usage.prompt_tokens == whole.usage.prompt_tokens
        assert found.usage.completion_tokens == whole.usage.completion_tokens
        with ask(max_tokens=12, stream=True) as stream:
            pieces = [one.choices[0].delta.content or "" for one in stream]
        assert "".join(pieces) == whole.text and len(pieces) > 3
        assert ask(max_tokens=12, stop=stop).choices[0].message.content == stopped.text != whole.text
        content = ask(max_tokens=24, response_format=FORMAT).choices[0].message.content
        assert content == parsed.text and json.loads(content) == parsed.parsed
        assert ask(max_tokens=8, temperature=0.8, seed=3).choices[0].message.content == drawn.text
        asked = [[{"role": "user", "content": "Name a color."}], CHAT]
        both = [in_thread(lambda messages=messages: ask(messages, max_tokens=12)) for messages in asked]
        assert [one.get().choices[0].message.content for one in both] == [other.text, whole.text]
        assert shared.worker.clients >= 1
