"""Titles and completions by the dozen, through a session on a tiny random model."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests import tiny_models as tiny
from tinykit import TinySession
from tinykit.errors import OptionError, PromptTooLongError
from tinykit.progress import Progress
from tinykit.reasons import Reason
from tinykit.recipes import RECIPES
from tinykit.titling import Title

MESSAGES = [
    "fix the flaky login test on slow CI runners",
    "hi",
    "plan a trip to Lisbon in May with two kids",
    "",
    [{"role": "user", "content": "translate this letter to German please"}],
]


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    file = tiny.write_gguf(folder / "tiny.gguf", "llama", tiny.random_weights("llama"), "F32")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYKIT_HOME", str(folder / "home"))
        with TinySession(file, dtype="fp32", recipe="titles", progress=False) as session:
            yield session


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_titles_keep_their_order_and_equal_single_ones(session, batch_size):
    alone = [session.title_result(message) for message in MESSAGES]
    together = session.title_results(MESSAGES, batch_size=batch_size)
    assert [(one.text, one.raw, one.why) for one in together] == [
        (one.text, one.raw, one.why) for one in alone
    ]
    assert session.titles(MESSAGES) == [one.text for one in alone]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_titles_as_done_come_one_by_one_and_take_a_message_when_its_turn_comes(session, batch_size):
    taken = []
    found, most = {}, 0
    for index, title in session.titles_as_done(
        (taken.append(m) or m for m in MESSAGES), batch_size=batch_size
    ):
        found[index] = title
        most = max(most, len(taken) - len(found))
    assert [found[index].text for index in range(len(MESSAGES))] == session.titles(MESSAGES)
    assert most <= batch_size


def test_failed_title_says_why_and_loses_no_other(session):
    found = session.title_results([MESSAGES[0], 7, MESSAGES[2]])
    assert isinstance(found[1].error, OptionError)
    assert [step.reason for step in found[1].why] == [Reason.FAILED]
    assert found[0].error is found[2].error is None
    with pytest.warns(
        UserWarning, match=r"1 of 2 titles failed; title_results\(\) tells why. The first: The message"
    ):
        assert session.titles([7, "hi"]) == [None, None]


def test_single_chat_is_no_list_of_chats(session):
    chat = [{"role": "user", "content": "fix the login"}, {"role": "assistant", "content": "How?"}]
    for call in (session.titles, session.complete_many):
        with pytest.raises(OptionError, match="this is a single chat"):
            call(chat)


def test_titles_without_a_model_load_none(tmp_path):
    with TinySession(recipe="first-words", lazy=True, offline=True) as session:
        assert session.titles(["can you plan a trip to Lisbon?", "hi"]) == ["Plan a trip to Lisbon", None]
        assert session._loaded == {}


def test_nothing_to_do_is_done_at_once(session):
    assert session.titles([]) == []
    assert session.complete_many([]) == []


@pytest.mark.parametrize("messages", ["one text", b"bytes", 5, None, {"role": "user"}], ids=str)
def test_something_that_is_no_list_is_said(session, messages):
    with pytest.raises(OptionError, match="must be a list"):
        session.titles(messages)
    with pytest.raises(OptionError, match="must be a list"):
        session.complete_many(messages)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "8", 5000], ids=repr)
def test_batch_size_out_of_range_is_said(session, size):
    with pytest.raises(OptionError, match="batch_size must be a whole number from 1 to 1,024"):
        session.titles(MESSAGES, batch_size=size)


def test_completions_keep_their_order_and_failures_are_data(session):
    long = "word " * 5000
    prompts = ["Name a color", "", long, [{"role": "user", "content": "Name a fruit"}]]
    found = session.complete_many(prompts, max_tokens=6, batch_size=2)
    assert [one.finish_reason for one in found[1:3]] == ["error", "error"]
    assert isinstance(found[1].error, OptionError)
    assert isinstance(found[2].error, PromptTooLongError)
    assert found[0] == session.complete("Name a color", max_tokens=6)
    assert found[3] == session.complete("Name a fruit", max_tokens=6)


def test_mistake_in_the_options_is_no_failure_of_each_prompt(session):
    with pytest.raises(OptionError, match="temperature"):
        session.complete_many(["Name a color"], temperature=-1)


def test_interrupted_batch_gives_what_is_done(session, monkeypatch):
    done = []
    original = session.load().engine.generate

    def generate(request, **options):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(original(request, **options))
        return done[-1]

    monkeypatch.setattr(session.load().engine, "generate", generate)
    with pytest.raises(KeyboardInterrupt) as caught:
        session.complete_many(["a b", "c d", "e f", "g h"], max_tokens=3, batch_size=1)
    assert caught.value.partial == [*done, None, None]


@pytest.fixture
def press(session, monkeypatch):
    """Presses Ctrl-C at the given forward of a prompt from now on; rows of a batch do not count."""
    backend, left = session.load().engine.backend, [0]
    forward = backend.forward

    def pressed(token_ids, state, *, rows=1):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        return forward(token_ids, state, rows=rows)

    monkeypatch.setattr(backend, "forward", pressed)
    return lambda at: left.__setitem__(0, at)


@pytest.mark.parametrize("call", ["title", "title_result"])
def test_interrupted_title_gives_what_there_is(session, press, call):
    whole = session.title_result(MESSAGES[0])
    press(4)
    with pytest.raises(KeyboardInterrupt) as caught:
        getattr(session, call)(MESSAGES[0])
    partial = caught.value.partial
    assert isinstance(partial, Title) and partial.text is None
    assert partial.why[-1].reason is Reason.CANCELLED
    assert (partial.completion.finish_reason, partial.completion.cancelled_by) == ("cancelled", "interrupt")
    assert len(partial.completion.token_ids) == 3
    assert session.title_result(MESSAGES[0]).raw == whole.raw


@pytest.mark.parametrize("call", ["titles", "title_results"])
@pytest.mark.parametrize("batch_size", [1, 2])
def test_interrupted_titles_give_what_there_is(session, press, call, batch_size):
    messages = [7, "hi", MESSAGES[0], MESSAGES[2], MESSAGES[0], MESSAGES[2]]
    press(2)
    with pytest.raises(KeyboardInterrupt) as caught:
        getattr(session, call)(messages, batch_size=batch_size)
    failed, greeting, first, *others = caught.value.partial
    assert isinstance(failed.error, OptionError) and failed.why[-1].reason is Reason.FAILED
    assert greeting.why[-1].reason is Reason.NO_TASK
    assert first.completion.cancelled_by == "interrupt"
    if batch_size == 2:  # the second came as far as its prompt
        assert others.pop(0).completion.cancelled_by == "interrupt"
    assert others == [None] * len(others)


def test_progress_counts_what_is_done(session, monkeypatch):
    events = []
    monkeypatch.setattr(session, "_progress", Progress(events.append))
    session.titles(MESSAGES)
    assert [event.status for event in events][:1] == ["initiate"]
    assert events[-1].status == "done"
    assert events[-1].message.startswith("titles")


@pytest.mark.parametrize("kind", [np.int64, np.uint8])
def test_numbers_may_be_those_of_numpy(session, kind):
    plain = session.complete_many(["Name a color"], max_tokens=3, batch_size=4)
    assert session.complete_many(np.array(["Name a color"]), max_tokens=kind(3), batch_size=kind(4)) == plain
    assert len(session.complete("Name a color", n=kind(2), temperature=1.0, max_tokens=3, slot=kind(5))) == 2
    assert session.free_slot(5)


def test_tables_are_no_lists(session):
    table = np.array([["Name a color", "Name a fruit"]])
    for call in (session.complete_many, session.titles):
        with pytest.raises(OptionError, match="must be a list, not a table") as caught:
            call(table)
        assert caught.value.hint == "Give one column of it."


@pytest.mark.parametrize(
    "odd", [None, 3, b"bytes", [None], [3], [[]], [["user"]], {"role": "user"}], ids=repr
)
def test_odd_items_fail_alone(session, odd):
    good, bad = session.complete_many(["Name a color", odd], max_tokens=2)
    assert (good.error, type(bad.error), bad.finish_reason) == (None, OptionError, "error")
    title, failed = session.title_results(["plan a trip to Lisbon in May", odd])
    assert title.text and isinstance(failed.error, OptionError)


@pytest.mark.parametrize(
    "options",
    [{"system": 3}, {"system": b"short"}, {"reuse": "no"}, {"on_chunk": "print"}, {"on_verify": 1},
     {"n": 2, "on_chunk": print}, {"n": 2, "on_verify": print}, {"temperature": 10**400},
     {"logit_bias": {10**30: 1}}],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_done_is_an_error_of_the_option(session, options):
    with pytest.raises(OptionError) as caught:
        session.complete("Name a color", **options)
    assert caught.value.name in {*options, "token id"}


def test_deadline_is_that_of_the_whole_call(session, monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr("tinykit.answers.time.perf_counter", lambda: 100.0 * next(clock))
    found = session.complete_many(["Name a color"] * 4, max_tokens=2, timeout_s=250, batch_size=1)
    assert found[-1].cancelled_by == "timeout" and found[-1].text == ""


@pytest.fixture
def late_after(session, monkeypatch):
    """Lets a day go by with the given prompt from now on; what computes a row of a batch does not count."""
    backend, left, now_s = session.load().engine.backend, [-1], [0.0]
    forward = backend.forward

    def ticked(token_ids, state, *, rows=1):
        left[0] -= 1
        if left[0] == 0:
            now_s[0] += 86_400
        return forward(token_ids, state, rows=rows)

    monkeypatch.setattr(backend, "forward", ticked)
    monkeypatch.setattr("time.perf_counter", lambda: now_s[0])
    return lambda count: left.__setitem__(0, count)


LATE = dataclasses.replace(RECIPES["titles"], fallback="none", branches=0, name="late")


def test_titles_that_are_not_begun_in_time_are_rows_with_that_reason(session, late_after):
    messages = [MESSAGES[0], "hi", MESSAGES[2], MESSAGES[0], 7, MESSAGES[2]]
    late_after(2)
    found = session.title_results(messages, recipe=LATE, batch_size=2, timeout_s=3600)
    why = [[step.reason for step in one.why] for one in found]
    late = [Reason.TIMEOUT]
    assert why == [late, [Reason.NO_TASK], late, late, [Reason.FAILED], late]
    assert [one.completion is None for one in found] == [False, True, False, True, True, True]
    assert found[0].completion.cancelled_by == "timeout"
    late_after(-1)
    whole = session.title_results(messages, recipe=LATE, batch_size=2, timeout_s=3600)
    assert not any(step.reason is Reason.TIMEOUT for one in whole for step in one.why)
    assert [one.text for one in whole] == [
        one.text for one in session.title_results(messages, recipe=LATE, batch_size=2)
    ]


def test_titles_as_done_go_on_to_the_last_message_when_their_time_is_up(session, late_after):
    late_after(1)
    found = dict(session.titles_as_done([MESSAGES[0], "hi", MESSAGES[2]], recipe=LATE, timeout_s=60))
    assert {at: one.why[-1].reason for at, one in found.items()} == {
        0: Reason.TIMEOUT,
        1: Reason.NO_TASK,
        2: Reason.TIMEOUT,
    }


def test_title_without_time_is_the_recipes_fallback(session):
    words = session.title(MESSAGES[2], recipe="first-words")
    assert session.title(MESSAGES[2], timeout_s=0) == words
    assert session.titles([MESSAGES[2], "hi"], timeout_s=0) == [words, None]
    assert session.title_result(MESSAGES[2], timeout_s=0).completion is None


@pytest.mark.parametrize("timeout_s", [-1, "soon", True, float("nan")], ids=repr)
@pytest.mark.parametrize("call", ["title", "titles", "title_results", "titles_as_done"])
def test_deadline_that_is_none_is_said(session, call, timeout_s):
    with pytest.raises(OptionError, match="timeout_s must be a number of seconds"):
        list(getattr(session, call)(MESSAGES[:1], timeout_s=timeout_s))


@pytest.mark.parametrize("call", ["complete", "chat"])
def test_several_answers_without_chance_are_told_to_be_alike(session, call):
    given = "Name a color" if call == "complete" else [{"role": "user", "content": "Name a color"}]
    ask = getattr(session, call)
    with pytest.warns(UserWarning, match=r"all 3 are the same\. For different ones: temperature=") as caught:
        first, *others = ask(given, n=3, max_tokens=3)
    assert others == [first, first]
    assert caught[0].filename == __file__
    assert len(ask(given, n=1, max_tokens=3)) == 1  # no warning: it would be an error here
    assert len(ask(given, n=2, temperature=1.0, max_tokens=3)) == 2
