"""The rating view, driven by its widgets' traits as a front end does, without a browser."""

import re
import sys

import pytest

from tests.widgets.conftest import click_in_front_end, from_front_end, plain
from tinykit.errors import MissingPackageError
from tinykit.recipes import Recipe
from tinykit.widgets import RatingView
from tinykit.widgets.view import LINE

WIDGET = "application/vnd.jupyter.widget-view+json"


class Question:
    def __init__(self, number):
        self.message = f"message <{number}>\nof two lines"
        self.left, self.right = f"left <b>{number}", f"right \x1b{number}"


class Questions:
    """A rating of three questions that notes its keys: nothing of the lab is needed."""

    def __init__(self):
        self.keys = []

    @property
    def question(self):
        return Question(len(self.keys)) if len(self.keys) < 3 else None

    @property
    def status(self):
        return f"{len(self.keys)} of 3 rated; can stop: no"

    def press(self, key):
        if key not in "120xsu" or self.question is None:
            return False
        self.keys.append(key)
        return True

    def text(self):
        return self.status


@pytest.fixture
def view():
    found = RatingView(Questions())
    found.box
    yield found
    found.close()


def test_a_key_in_the_field_is_an_answer_and_the_field_is_empty_again(view):
    from_front_end(view.keys, value="1")
    assert view._rating.keys == ["1"] and view.keys.value == ""
    assert "1 of 3 rated" in plain(view.status.value) and "left <b>1" in plain(view.pair.value)
    from_front_end(view.keys, value="X")
    assert view._rating.keys == ["1", "x"]


def test_of_several_keys_that_come_at_once_the_last_one_counts(view):
    from_front_end(view.keys, value="12")
    assert view._rating.keys == ["2"]
    for odd in (" ", "é", "#"):
        from_front_end(view.keys, value=odd)
        assert view._rating.keys == ["2"] and view.keys.value == ""


def test_each_button_answers_and_gives_the_focus_back_to_the_field(view, monkeypatch):
    focused = []
    monkeypatch.setattr(type(view.keys), "focus", lambda self: focused.append(self))
    for key in "1u0":
        click_in_front_end(view.buttons[key])
    assert view._rating.keys == ["1", "u", "0"] and focused == [view.keys] * 3
    assert "Nothing is left to rate." in view.pair.value
    click_in_front_end(view.buttons["2"])
    assert len(view._rating.keys) == 3


def test_every_control_says_what_it_does(view):
    for key, button in view.buttons.items():
        assert button.description.startswith(key) and button.tooltip and not button.disabled
    assert view.keys.description == "Keys" and 'aria-label="Title 1"' in view.pair.value
    assert (
        'role="status" aria-live="polite"' in view.status.value and 'aria-label="Message"' in view.pair.value
    )


def test_what_is_rated_is_shown_as_text_and_without_colors(view):
    page = view.pair.value
    assert (
        "<b>" not in page and "&lt;b&gt;0" in page and "\x1b" not in page and "message &lt;0&gt;\nof" in page
    )
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgba?\(|background", page) and LINE in page


def test_lab_ratings_fit_and_no_name_goes_to_the_front_end(view, traffic, tmp_path, monkeypatch):
    from tinykit import lab
    from tinykit.lab import rating as module

    monkeypatch.setattr(module, "GUARD_S", 0)
    monkeypatch.setenv("TINYKIT_HOME", str(tmp_path))
    recipes = [
        Recipe(name, method="first-words", max_chars=chars)
        for name, chars in (("secret-a", 10), ("secret-b", 80))
    ]
    cases = [f"please paint the {at} doors of my house" for at in range(4)]
    run = lab.run(cases, recipes, out=tmp_path / "run", baseline=False)
    view = RatingView(lab.rate(run, "secret-a", "secret-b"))
    view.box
    while view._rating.question is not None:
        from_front_end(view.keys, value="0")
    assert "all is rated" in view.status.value and "secret" not in str(traffic)
    assert view._rating.results()["secret-a", "secret-b"].tied == 4


def test_notebook_gets_widget_and_text_a_terminal_text_alone(view, monkeypatch):
    assert view._repr_mimebundle_() == {"text/plain": "0 of 3 rated; can stop: no"}
    from tinykit.widgets import view as module

    monkeypatch.setattr(module, "is_notebook", lambda: True)
    monkeypatch.setenv("TINYKIT_STABLE", "0")
    assert set(view._repr_mimebundle_()) == {"text/plain", WIDGET}
    monkeypatch.setenv("TINYKIT_STABLE", "1")
    assert set(view._repr_mimebundle_()) == {"text/plain"}


def test_without_ipywidgets_it_says_how_to_install_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(MissingPackageError, match="the rating view"):
        RatingView(Questions()).box


def test_close_leaves_nothing_behind(traffic):
    found = RatingView(Questions())
    found.box
    found.close()
    kinds = [kind for kind, _ in traffic]
    assert kinds.count("comm_close") == kinds.count("comm_open") > 10
