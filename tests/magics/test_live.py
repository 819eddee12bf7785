"""One display for each stream, calm, and only one message where outputs have to be stable (details 3 and 4)."""

import itertools
import json

import pytest

from tinykit.displays import is_stable
from tinykit.generation.stream import Stream
from tinykit.magics.live import LiveText
from tinykit.markup import block, bundle


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def stream(ip, words, seconds, **options):
    """Show a text that grows by a word each so many seconds; returns the messages."""
    from IPython.core.displaypub import CapturingDisplayPublisher

    publisher = ip.display_pub = CapturingDisplayPublisher()
    clock = Clock()
    live = LiveText(clock=clock, **options)
    text = ""
    for _ in range(words):
        clock.now += seconds
        text += "word "
        live.update(text)
    live.finish(bundle(text, block(text), {"total_s": 1.0}))
    return publisher.outputs


def test_200_tokens_in_a_second_are_at_most_12_messages(shell):
    messages = stream(shell.ip, 200, 1 / 200)
    assert 8 <= len(messages) <= 12
    assert messages[-1]["data"]["text/plain"] == "word " * 200
    assert messages[-1]["metadata"] == {"tinykit": {"total_s": 1.0}}
    assert [one["update"] for one in messages] == [False, *[True] * (len(messages) - 1)]
    assert len({one["transient"]["display_id"] for one in messages}) == 1


def test_slow_tokens_are_all_shown(shell):
    assert len(stream(shell.ip, 5, 1.0)) == 6


def test_silent_stream_shows_nothing(shell):
    assert stream(shell.ip, 5, 1.0, is_silent=True) == []


def test_markup_of_a_model_is_text(notebook):
    (*_, last) = stream(notebook.ip, 1, 1.0)
    assert last["data"]["text/html"] == block("word ")


def test_stable_stream_is_one_message(shell, monkeypatch):
    monkeypatch.setenv("TINYKIT_STABLE", "1")
    (message,) = stream(shell.ip, 50, 1.0)
    assert not message["update"] and message["data"]["text/plain"] == "word " * 50


def test_pytest_in_the_environment_makes_outputs_stable(monkeypatch):
    assert is_stable()
    monkeypatch.setenv("TINYKIT_STABLE", "0")
    assert not is_stable()
    monkeypatch.delenv("TINYKIT_STABLE")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    assert not is_stable()


def test_streamed_answer_is_shown_once_and_assigned(notebook):
    ran = notebook.run("%tiny --max-tokens 4 Name a color.")
    assert ran.shown and ran.shown[-1]["data"]["text/plain"].startswith(ran.value.text)
    assert ran.value.text not in ran.printed  # where the cell's value would be
    data, _ = notebook.bundle("_")
    assert data["text/plain"].startswith(ran.value.text)
    ran = notebook.run("x = %tiny --max-tokens 4 Name a color.")
    assert ran.shown and notebook.names["x"].text == data["text/plain"].splitlines()[0]


@pytest.mark.parametrize(
    "code", ["%tiny --max-tokens 4 Name a color.;", "%tiny -o x --max-tokens 4 Name a color."]
)
def test_silenced_or_assigned_answer_shows_nothing(notebook, code):
    ran = notebook.run(code)
    assert (ran.value, ran.shown, ran.error) == (None, [], None)


def test_metadata_says_which_model_answered(notebook):
    (*_, last) = notebook.run("%tiny --max-tokens 2 hi you").shown
    facts = last["metadata"]["tinykit"]
    assert facts["model"] == "tiny" and facts["usage"]["completion_tokens"] == 2
    json.dumps(facts)


def test_interrupted_stream_shows_and_keeps_what_there_is(notebook, monkeypatch):
    pieces = Stream.__iter__

    def interrupted(self):
        yield from itertools.islice(pieces(self), 3)
        raise KeyboardInterrupt

    monkeypatch.setattr(Stream, "__iter__", interrupted)
    ran = notebook.run("%tiny -o x --show --max-tokens 40 Name a color.")
    assert type(ran.error) is KeyboardInterrupt and "Interrupted." in ran.printed
    assert "Traceback" not in ran.printed
    kept = notebook.names["x"]
    assert (kept.cancelled_by, kept.usage.completion_tokens) == ("interrupt", 3)
    assert ran.texts[-1] == f"{kept.text}\n(stopped before its end)"


def test_interrupted_batch_shows_and_keeps_what_there_is(notebook, monkeypatch):
    notebook.names["messages"] = ["plan a trip to Lisbon", "plan a trip to Rome", "plan a trip to Oslo"]
    from tinykit.session import TinySession

    session = notebook.run("%tiny load").value
    done = session.title_results(notebook.names["messages"], recipe="first-words")

    def interrupted(self, messages, **options):
        error = KeyboardInterrupt()
        error.partial = [done[0], None, None]
        raise error

    monkeypatch.setattr(TinySession, "title_results", interrupted)
    ran = notebook.run("%title -o x --show {{messages}}")
    assert type(ran.error) is KeyboardInterrupt
    assert "1 of 3 messages has a title" in ran.texts[-1] and "(no title: cancelled)" in ran.texts[-1]
    assert notebook.names["x"].texts == ["Plan a trip to Lisbon", None, None]


def test_failed_batch_item_is_data(notebook):
    notebook.names["prompts"] = ["Name a color.", ""]
    ran = notebook.run("%tiny --max-tokens 2 {{prompts}}")
    assert ran.error is None and "(failed: " in ran.texts[-1]


def test_batch_is_one_display_that_ends_as_its_table(notebook):
    notebook.names["messages"] = ["plan a trip to Lisbon", "hi"]
    for code in ("%title {{messages}}", "%%tiny_eval -r first-words\nplan a trip to Lisbon\nhi"):
        ran = notebook.run(code)
        assert "Plan a trip to Lisbon" in ran.texts[-1] and ran.printed.count("Lisbon") == 0
        assert len({one["transient"]["display_id"] for one in ran.shown}) == 1
    assert notebook.run("%title {{messages}};").shown == []
