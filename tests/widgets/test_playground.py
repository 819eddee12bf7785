import threading
from typing import ClassVar

import pytest

from tests.widgets.conftest import click_in_front_end, from_front_end, plain
from tests.widgets.typist import TYPED, WAIT_S, typing_session
from tinykit import TinySession
from tinykit.errors import BackendError, DeviceError, OptionError
from tinykit.recipes import Recipe
from tinykit.widgets import TitlePlayground, playground, title_runs
from tinykit.widgets.title_form import card_html
from tinykit.widgets.title_runs import Choice, Sessions, TitleRow

MESSAGE = "the login test is flaky on slow CI runners, can you fix it?"
OFFERED = (TYPED, "plain", "first-words")
TITLE = "Flaky login test on slow CI runners"


@pytest.fixture
def typed():
    session, _ = typing_session(TITLE)
    played = TitlePlayground(session, recipes=OFFERED, message=MESSAGE)
    played.box
    yield played
    played.close()


def test_click_makes_titles_side_by_side_and_says_how(typed):
    form = typed.form
    assert form.ticked == ["typed", "first-words"]
    form.run_button.click()
    assert typed.wait(WAIT_S)
    assert [(row.recipe, row.state, row.shown) for row in typed.rows] == [
        ("typed", "done", TITLE),
        ("first-words", "done", "The login test is flaky on slow"),
    ]
    titles, words = (plain(html) for html in form.card_texts.values())
    assert TITLE in titles and "tokens/s" in titles and "first token" in titles
    assert "Why" in titles and "The reply was a title as it stood." in titles
    assert "The login test is flaky on slow" in words and "first token" not in words
    assert typed.status.startswith("2 of 2 titles in ")
    assert typed.status in plain(form.status.value)


def test_text_says_what_the_cards_say(typed):
    assert "typed, plain, first-words with smollm2-135m-titles" in typed.text()
    typed.form.run_button.click()
    assert typed.wait(WAIT_S)
    text = str(typed)
    for row in typed.rows:
        assert row.shown in text
        assert row.why in text
        assert all(fact in text for fact in row.facts)


def test_front_end_can_type_tick_and_press(traffic):
    session, _ = typing_session("Sourdough starter that does not rise")
    typed = TitlePlayground(session, recipes=OFFERED)
    typed.box
    from_front_end(typed.form.message, value="why does my sourdough starter not rise in the winter")
    from_front_end(typed.form.ticks["first-words"], value=False)
    click_in_front_end(typed.form.run_button)
    assert typed.wait(WAIT_S)
    assert [row.shown for row in typed.rows] == ["Sourdough starter that does not rise"]
    updates = [data["state"] for kind, data in traffic if kind == "comm_msg" and data["method"] == "update"]
    assert any("Sourdough starter that does not rise" in str(state.get("value")) for state in updates)
    typed.close()


def test_kernel_is_free_while_titles_are_written_and_stop_ends_them(typed):
    session, typist = typing_session(TITLE, hold_at=5)
    typed = TitlePlayground(session, recipes=OFFERED, message=MESSAGE)
    typed.box
    typed.form.run_button.click()  # comes back at once, although the typist waits
    assert typist.begun.wait(WAIT_S)
    assert not typed.wait(0)
    typed.form.stop_button.click()
    typist.go_on.set()
    assert typed.wait(WAIT_S)
    first, second = typed.rows
    assert (first.state, second.state) == ("stopped", "stopped")
    assert first.shown.endswith("(stopped)") and TITLE.startswith(first.draft) and first.draft
    assert typed.status == "Stopped."
    assert "(stopped)" in plain(typed.form.card_texts["typed"])
    typed.form.run_button.click()  # and the session can be used again
    assert typed.wait(WAIT_S)
    assert typed.rows[0].shown == TITLE
    typed.close()


def test_stop_with_nothing_to_stop_says_so(typed):
    typed.form.stop_button.click()
    assert typed.status == "Nothing is running."


def test_new_run_ends_the_old_one_and_takes_its_place(typed):
    session, typist = typing_session(TITLE, hold_at=3)
    typed = TitlePlayground(session, recipes=OFFERED, message=MESSAGE)
    typed.box
    old = typed.start()
    assert typist.begun.wait(WAIT_S)
    new = typed.start(recipes=["first-words"])
    assert old.is_stopped and typed.status.startswith("Waiting for the run before")
    typist.go_on.set()
    assert new.wait(WAIT_S) and not old.is_running
    assert [row.recipe for row in typed.rows] == ["first-words"]
    assert list(typed.form.card_texts) == ["first-words"]
    assert typed.status.startswith("1 of 1 title ")
    typed.close()


def test_title_is_shown_while_it_is_written_but_not_more_often_than_asked(standing_clock, monkeypatch):
    session, typist = typing_session(TITLE, hold_at=7)
    typed = TitlePlayground(session, recipes=OFFERED, message=MESSAGE)
    typed.box
    shown = []
    show_row = typed.form.show_row
    monkeypatch.setattr(typed.form, "show_row", lambda row: (shown.append(row), show_row(row)))
    typed.start(recipes=["typed"])
    assert typist.begun.wait(WAIT_S)
    assert [(row.state, row.draft) for row in shown] == [("running", "")]
    (timer,) = standing_clock
    timer.fire()  # a tenth of a second later
    assert [row.draft for row in shown][1:] == ["Flaky l"]
    assert "Flaky l" in plain(typed.form.card_texts["typed"])
    typist.go_on.set()
    assert typed.wait(WAIT_S)
    assert [row.state for row in shown] == ["running", "running", "done"]
    assert all(timer.is_over for timer in standing_clock)
    typed.close()


def test_error_is_text_in_its_place_and_the_others_go_on(typed, monkeypatch):
    title_result = TinySession.title_result

    def fail(self, message, *, recipe, on_chunk):
        if recipe.name == "typed":
            raise BackendError("The model <b>broke</b>.", hint="Restart it.")
        return title_result(self, message, recipe=recipe, on_chunk=on_chunk)

    monkeypatch.setattr(TinySession, "title_result", fail)
    typed.form.run_button.click()
    assert typed.wait(WAIT_S)
    assert [row.state for row in typed.rows] == ["failed", "done"]
    html = typed.form.card_texts["typed"]
    assert "(failed: The model &lt;b&gt;broke&lt;/b&gt;. Restart it.)" in html
    assert typed.status.startswith("1 of 2 titles")


@pytest.mark.parametrize(
    ("message", "ticked", "said"),
    [("  ", True, "Write a message to title."), (MESSAGE, False, "Tick at least one recipe.")],
    ids=["no_message", "no_recipe"],
)
def test_what_is_missing_is_said_in_the_status_line(typed, message, ticked, said):
    typed.form.message.value = message
    for tick in typed.form.ticks.values():
        tick.value = ticked
    typed.form.run_button.click()
    assert typed.status == said
    assert typed.rows == ()
    with pytest.raises(OptionError, match=said):
        typed.start()


def test_model_that_cannot_be_had_is_an_error_in_the_status_line():
    typed = TitlePlayground(message=MESSAGE)
    typed.box
    typed.start(choice=Choice("no-such-model"))
    assert typed.wait(WAIT_S)
    assert typed.status.startswith("There is no model 'no-such-model'") or "no-such-model" in typed.status
    assert {row.state for row in typed.rows} == {"stopped"}
    typed.close()


def test_first_words_alone_load_no_model():
    typed = TitlePlayground(message=MESSAGE)
    typed.start(recipes=["first-words"])
    assert typed.wait(WAIT_S)
    assert typed.rows[0].shown == "The login test is flaky on slow"
    assert typed._sessions._made[1]._loaded == {}
    typed.close()


def test_hostile_text_is_escaped():
    row = TitleRow("<i>r</i>", "m", "running", draft="<script>alert(1)</script>")
    html = card_html(row)
    assert "<script" not in html and "<i>" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_cards_of_an_earlier_run_are_closed(traffic):
    session, _ = typing_session(TITLE)
    typed = TitlePlayground(session, recipes=OFFERED, message=MESSAGE)
    typed.box
    for _ in range(2):
        typed.start()
        assert typed.wait(WAIT_S)
    opened = sum(kind == "comm_open" for kind, _ in traffic)
    typed.close()
    assert sum(kind == "comm_close" for kind, _ in traffic) == opened


def test_pickers_offer_what_there_is(typed):
    form = typed.form
    models = [value for _, value in form.model.options]
    assert models[0] == "smollm2-135m-titles" and "lfm2.5-230m" in models and "julia-1" not in models
    assert [value for _, value in form.device.options][:4] == ["", "cpu", "auto", "gpu"]
    assert [value for _, value in form.dtype.options] == ["", "auto", "fp32", "q8", "w8a8", "q4"]
    form.model.value = "lfm2.5-230m"
    assert "q4f16" in [value for _, value in form.dtype.options]
    assert form.choice == Choice("lfm2.5-230m")
    form.device.value = "cpu"
    assert form.choice == Choice("lfm2.5-230m", "cpu")


def test_everything_that_can_be_used_has_words(typed):
    form = typed.form
    for widget in (form.message, form.model, form.device, form.dtype, *form.ticks.values()):
        assert widget.description and widget.tooltip
    for pressed in (form.run_button, form.stop_button):
        assert pressed.description and pressed.tooltip and not pressed.disabled


def test_recipes_may_be_ones_own():
    mine = Recipe(name="mine", system="Say it.", max_tokens=4)
    typed = TitlePlayground(recipes=["plain", mine])
    assert list(typed.recipes) == ["plain", "mine"]
    with pytest.raises(OptionError, match="No recipe 'titles' here; there are plain, mine"):
        typed.start(recipes=["titles"])
    with pytest.raises(OptionError, match="at least one recipe"):
        TitlePlayground(recipes=[])


# sessions by choice


class FakeSession:
    made: ClassVar = []

    def __init__(self, model, **options):
        self.model, self.options, self.is_closed = model, options, False
        self.made.append(self)

    def load(self, *, progress):
        if self.options["device"] == "cuda":
            raise DeviceError("m does not run on cuda: no GPU", asked="cuda", failures=())

    def close(self):
        self.is_closed = True


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(title_runs, "TinySession", FakeSession)
    monkeypatch.setattr(FakeSession, "made", [])
    return FakeSession.made


def job():
    return playground.Job(lambda job: None)


def test_session_is_kept_until_another_is_chosen(made):
    sessions = Sessions(None)
    first = sessions.get(Choice("smollm2-135m"))
    assert sessions.get(Choice("smollm2-135m")) is first
    other = sessions.get(Choice("smollm2-135m", dtype="q4"))
    assert first.is_closed and other.options["dtype"] == "q4"
    sessions.close()
    assert other.is_closed


def test_device_that_does_not_work_is_told_and_the_cpu_used(made):
    session, note = Sessions(None).loaded(Choice("smollm2-135m", "cuda"), job(), print)
    assert note == "m does not run on cuda: no GPU It runs on the CPU."
    assert [one.options["device"] for one in made] == ["cuda", "cpu"]
    assert made[0].options["fallback"] is False
    assert session is made[1]


def test_own_session_is_used_and_never_closed():
    own, _ = typing_session(TITLE)
    sessions = Sessions(own)
    assert sessions.get(Choice(own.spec.key)) is own
    sessions.close()
    assert own.title(MESSAGE) == TITLE


def test_session_with_a_folder_and_an_adapter_can_be_had_on_another_device(made, tmp_path):
    class Own:
        class spec:
            key, adapter, sources = "smollm2-135m+mine", tmp_path / "mine", ()

    session = Sessions(Own).get(Choice("smollm2-135m+mine", "cpu"))
    assert (session.model, session.options["adapter"]) == ("smollm2-135m", tmp_path / "mine")


def test_threads_are_gone_after_close(typed):
    typed.form.run_button.click()
    typed.close()
    assert not [one for one in threading.enumerate() if one.name == "tinykit job" and typed._job.is_running]
