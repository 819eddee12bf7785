"""What holds for all widgets: a text for where they cannot be drawn, no colors, nothing left behind."""

import re
import subprocess
import sys

import pytest

from tests.widgets.typist import TYPED, WAIT_S, typing_session
from tinykit.errors import MissingPackageError
from tinykit.widgets import LatencyView, ModelManager, ProgressBar, TitlePlayground
from tinykit.widgets.view import error_text, table_html

WIDGET = "application/vnd.jupyter.widget-view+json"
TITLE = "Flaky login test on slow CI runners"


def make(kind):
    session, _ = typing_session(TITLE)
    return {
        "bar": ProgressBar,
        "playground": lambda: TitlePlayground(session, recipes=[TYPED, "first-words"]),
        "manager": ModelManager,
        "latency": lambda: LatencyView(session, runs=2),
    }[kind]()


KINDS = ("bar", "playground", "manager", "latency")


@pytest.fixture(params=KINDS)
def made(request):
    found = make(request.param)
    yield found
    found.close()


def test_terminal_gets_text_and_makes_no_widget(made):
    assert made._repr_mimebundle_() == {"text/plain": made.text()} == {"text/plain": str(made)}
    assert made.text()
    assert made._box is None


def test_notebook_gets_the_widget_and_the_same_text(made, in_notebook):
    bundle = made._repr_mimebundle_()
    assert bundle[WIDGET]["model_id"] == made.box.model_id
    assert bundle["text/plain"] == made.text()
    assert "model_id" not in bundle["text/plain"]


def test_notebook_that_is_compared_gets_the_text_alone(made, in_notebook, monkeypatch):
    monkeypatch.setenv("TINYKIT_STABLE", "1")
    assert made._repr_mimebundle_() == {"text/plain": made.text()}


def test_notebook_without_ipywidgets_gets_the_text_and_how_to_install(made, in_notebook, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    bundle = made._repr_mimebundle_()
    assert list(bundle) == ["text/plain"]
    assert bundle["text/plain"].startswith(made.text())
    assert "pip install 'tinykit[notebook]'" in bundle["text/plain"]
    with pytest.raises(MissingPackageError):
        made.box


def test_two_views_with_the_same_facts_have_the_same_text(request):
    for kind in ("bar", "playground", "latency"):  # so that a notebook can be compared with itself
        first, second = make(kind), make(kind)
        assert first.text() == second.text()


def widgets_of(widget):
    yield widget
    for child in getattr(widget, "children", ()):
        yield from widgets_of(child)


def test_nothing_has_a_color_of_its_own(made):
    if hasattr(made, "start"):
        made.box
        assert made.start().wait(WAIT_S)
    shown = str([widget.get_state() for widget in widgets_of(made.box)])
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgba?\(|hsla?\(|background", shown)
    assert not [widget for widget in widgets_of(made.box) if type(widget).__name__ == "Output"]


def test_close_leaves_no_widget_behind(traffic):
    for kind in KINDS:
        found = make(kind)
        found.box
        found.close()
    kinds = [kind for kind, _ in traffic]
    assert kinds.count("comm_close") == kinds.count("comm_open") > 20


def test_import_loads_no_widgets():
    code = "import sys, tinykit.widgets; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not {"ipywidgets", "IPython", "onnxruntime", "pandas"} & set(loaded.split())


def test_tables_say_what_their_cells_are():
    html = table_html("Of <things>", ("a", "b"), [("<x>", "1")], numbers=(1,))
    assert "<caption" in html and "Of &lt;things&gt;</caption>" in html
    assert html.count('scope="col"') == 2 and html.count('scope="row"') == 1
    assert "&lt;x&gt;" in html and html.count("text-align: right") == 2


def test_error_is_one_line_for_people():
    assert error_text(MissingPackageError("No a.", hint="Get b.")) == "No a. Get b."
    assert error_text(ValueError("x")) == "ValueError: x"
    assert error_text(ValueError()) == "ValueError"
