"""How titles, completions and sessions look in a notebook."""

import re
from dataclasses import replace

import pytest

from tests import tiny_models as tiny
from tinykit import TinySession
from tinykit.errors import PromptTooLongError
from tinykit.generation.result import Completion, Timings, Usage
from tinykit.many import failed_title
from tinykit.reasons import Reason, Step
from tinykit.recipes import RECIPES
from tinykit.titling import Title
from tinykit.views import completion_view, completions_table, short, title_view, titles_table

ANSWER = Completion(
    "A <b>blue</b> door", (5, 6, 7), "stop", Usage(11, 3, 0), Timings(0.0, 0.125, 0.25, 0.5, 0.75), seed=42
)
STEP = Step(Reason.QUOTES, '"A blue door"', "A blue door")
TITLE = Title("A blue door", '"A blue door"', (STEP,), "plain", ANSWER)


def test_completion_shows_its_text_and_keeps_times_in_the_metadata():
    data, metadata = ANSWER._repr_mimebundle_()
    assert data["text/plain"] == "A <b>blue</b> door"
    assert "&lt;b&gt;blue" in data["text/html"] and "<b>" not in data["text/html"]
    facts = metadata["tinykit"]
    assert (
        facts["timings"]["ttft_s"] == 0.25 and facts["usage"]["prompt_tokens"] == 11 and facts["seed"] == 42
    )
    assert not re.search(r"0\.\d", data["text/plain"] + re.sub("<[^>]*>", "", data["text/html"]))


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({}, ""),
        ({"finish_reason": "length"}, "(cut off after 3 tokens: no more were allowed)"),
        ({"finish_reason": "cancelled", "cancelled_by": "interrupt"}, "(stopped before its end)"),
        ({"finish_reason": "cancelled", "cancelled_by": "timeout"}, "(stopped: the time was up)"),
        ({"finish_reason": "error", "error": PromptTooLongError("It is long.")}, "(failed: It is long.)"),
    ],
    ids=str,
)
def test_answer_that_is_not_whole_says_so_in_both_twins(changes, note):
    completion = replace(ANSWER, **changes)
    data, _ = completion._repr_mimebundle_()
    assert completion.note == note
    assert data["text/plain"] == "\n".join(part for part in ("A <b>blue</b> door", note) if part)
    assert note in data["text/html"]


def test_stats_are_shown_on_request_in_both_twins():
    data, metadata = completion_view(ANSWER, stats=True, model="m")
    line = "11 + 3 tokens, first after 0.250 s, 0.750 s in all, 4 tokens/s, seed 42"
    assert line in data["text/plain"] and line in data["text/html"]
    assert metadata["tinykit"]["model"] == "m"


def test_title_shows_its_text_and_on_request_how_it_came_about():
    assert TITLE._repr_mimebundle_()[0]["text/plain"] == "A blue door"
    data, metadata = title_view(TITLE, why=True, stats=True)
    assert data["text/plain"].splitlines() == [
        "A blue door", "reply: '\"A blue door\"'", "1. quotes: '\"A blue door\"' became 'A blue door'.",
        f"recipe plain, {ANSWER.stats}",
    ]  # fmt: skip
    assert "quotes:" in data["text/html"] and "recipe plain" in data["text/html"]
    assert metadata["tinykit"]["why"] == ["quotes"]


def test_no_title_says_why():
    nothing = Title(None, "", (Step(Reason.NO_TASK),), "plain")
    assert nothing._repr_mimebundle_()[0]["text/plain"] == (
        "(no title)\nThe message is a greeting, thanks or a test, so no title was asked for."
    )
    failed = failed_title(PromptTooLongError("It is long."), RECIPES["plain"])
    assert failed._repr_mimebundle_()[0]["text/plain"] == "(no title)\n(failed: It is long.)"


def test_tables_of_many():
    stopped = failed_title(None, RECIPES["plain"])
    table = titles_table(
        ["one", [{"role": "user", "content": "two"}]], [TITLE, stopped], why=True, stats=True
    )
    assert table.caption == "1 of 2 messages has a title"
    assert table.rows == (
        ("one", "A blue door", "quotes", "0.750"),
        ("two", "(no title: cancelled)", "cancelled", "-"),
    )
    answers = completions_table(["p", "q"], [ANSWER, Completion.nothing(cancelled_by="cancel")], stats=True)
    assert answers.caption == "2 answers, 1 of them whole"
    assert answers.rows[1][1] == "(stopped before its end)"


def test_long_messages_are_shortened():
    assert short("word " * 50) == ("word " * 50)[:79] + "…"


def test_session_shows_what_is_the_same_everywhere(tmp_path):
    file = tiny.write_gguf(tmp_path / "tiny.gguf", "llama", tiny.random_weights("llama"), "F32")
    with TinySession(file, dtype="fp32", progress=False, lazy=True) as session:
        assert "not loaded" in session._repr_mimebundle_()[0]["text/plain"]
        session.load()
        data, metadata = session._repr_mimebundle_()
    assert re.findall(r"(\w+) +(\w+)$", data["text/plain"], re.M)[1:] == [
        ("model", "tiny"), ("state", "loaded"), ("precision", "fp32"), ("device", "cpu"), ("backend", "onnx"),
        ("by", "plain"),
    ]  # fmt: skip
    assert metadata["tinykit"]["load_s"] > 0 and metadata["tinykit"]["threads"] >= 1
    assert "<caption" in data["text/html"] and "fp32" in data["text/html"]
    assert "closed" in session._repr_mimebundle_()[0]["text/plain"]
