"""The embedded model in a worker: what it says is what it says in this process."""

import json

import pytest

from tinykit import TinySession

pytestmark = pytest.mark.real
MESSAGES = [
    "why does my docker container exit with code 137",
    "plan a three-day trip to Lisbon with two small kids",
    "raspberry pi 4 keeps rebooting with under-voltage warnings",
    "hi there!",
    "write a SQL query that joins orders and customers by month",
    "the login test is flaky on slow CI runners, can you fix it?",
]


def test_titles_choices_and_answers_are_those_of_this_process(worker_dir, use_real_home, in_thread):
    with TinySession(progress=False) as alone, TinySession(shared=True, progress=False) as shared:
        expected = [alone.title_result(message) for message in MESSAGES]
        calls = [in_thread(lambda message=message: shared.title_result(message)) for message in MESSAGES]
        for mine, call in zip(expected, calls, strict=True):
            found = call.get()
            assert (found.text, found.raw, found.why) == (mine.text, mine.raw, mine.why)
        assert shared.titles(MESSAGES) == [title.text for title in expected]
        question = "The parcel came late. The customer is", ["happy", "angry"]
        assert shared.choose(*question) == alone.choose(*question)
        schema = {"type": "object", "properties": {"year": {"type": "integer"}}, "required": ["year"]}
        asked = {"schema": schema, "max_tokens": 24}
        ours, theirs = (
            shared.complete("When did the Berlin Wall fall?", **asked),
            alone.complete("When did the Berlin Wall fall?", **asked),
        )
        assert ours == theirs and ours.parsed == theirs.parsed == json.loads(ours.text)
