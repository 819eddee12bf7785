import io
import sys
import types
from typing import ClassVar

import pytest

from tinykit import progress
from tinykit.progress import Progress, ProgressEvent, size_text


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves."""
    now = types.SimpleNamespace(s=100.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now.s)
    return now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def work(show, clock, *, steps, step_s, amount=10, total=None, unit="B", **options):
    with Progress(show).stage("thing", total=total, unit=unit, **options) as stage:
        for _ in range(steps):
            clock.s += step_s
            stage.advance(amount)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (92_871_040, "92.9 MB"),
        (999_960, "1.0 MB"),
        (4e9, "4.0 GB"),
    ],
)
def test_size_text(size, text):
    assert size_text(size) == text


def test_callback_gets_events_and_nothing_is_shown(clock, capsys):
    events = []
    work(events.append, clock, steps=4, step_s=1, amount=25, total=100, model="m", file="f.whl")
    assert [event.status for event in events] == ["initiate", "download", *["progress"] * 4, "done"]
    assert {(event.model, event.name, event.file, event.total_bytes) for event in events} == {
        ("m", "thing", "f.whl", 100)
    }
    assert [event.loaded_bytes for event in events] == [0, 0, 25, 50, 75, 100, 100]
    assert events[3].message == "thing: 50 % of 100 B"
    assert capsys.readouterr() == ("", "")


def test_callback_is_called_ten_times_a_second_at_most_and_at_the_end(clock):
    events = []
    work(events.append, clock, steps=1000, step_s=0.001, amount=1, total=1000)
    shown = [event.loaded_bytes for event in events if event.status == "progress"]
    assert len(shown) <= 11
    assert shown[-1] == 1000


def test_stage_without_bytes_has_no_byte_counts(clock):
    events = []
    work(events.append, clock, steps=2, step_s=1, amount=1, total=2, unit="tensors")
    assert [event.status for event in events] == ["initiate", "progress", "progress", "done"]
    assert all(event.loaded_bytes is None and event.total_bytes is None for event in events)
    assert events[-1].message == "thing: 2 tensors in 2.0 s"


def test_failed_stage_ends_with_an_error_event(clock):
    events = []
    with pytest.raises(OSError, match="gone"), Progress(events.append).stage("thing", total=1, unit="B"):
        raise OSError("gone")
    with pytest.raises(KeyboardInterrupt), Progress(events.append).stage("thing", total=1, unit="B"):
        raise KeyboardInterrupt
    errors = [event.message for event in events if event.status == "error"]
    assert errors == ["gone", "KeyboardInterrupt"]
    assert "done" not in [event.status for event in events]


def test_broken_callback_does_not_stop_the_work(clock, caplog):
    def callback(event):
        raise ValueError("callback is broken")

    done = []
    with Progress(callback).stage("thing", total=3, unit="B") as stage:
        for _ in range(3):
            stage.advance(1)
            done.append(1)
    Progress(callback).ready("m")
    assert len(done) == 3
    assert len([r for r in caplog.records if "of thing failed" in r.message]) == 1


@pytest.mark.parametrize("stream", [io.StringIO, Terminal], ids=["log", "terminal"])
def test_short_work_shows_nothing(clock, monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream())
    work(None, clock, steps=4, step_s=0.1, total=40)
    assert sys.stderr.getvalue() == ""


@pytest.mark.parametrize("total", [1000, None], ids=["total", "no total"])
@pytest.mark.parametrize("step_s", [0.1, 30])
def test_log_gets_at_most_ten_whole_lines(clock, monkeypatch, total, step_s):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    work(None, clock, steps=1000, step_s=step_s, amount=1, total=total)
    text = sys.stderr.getvalue()
    lines = text.splitlines()
    assert 3 <= len(lines) <= 10
    assert "\r" not in text and text.endswith("\n")
    assert lines[-1] == f"thing: 1.0 kB in {1000 * step_s:.1f} s"
    assert len(set(lines)) == len(lines)


def test_terminal_gets_a_bar_and_then_one_sentence(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    work(None, clock, steps=4, step_s=1, amount=25, total=100)
    text = sys.stderr.getvalue()
    assert "thing:" in text and "/100" in text
    assert text.rpartition("\r")[2] == "thing: 100 B in 4.0 s\n"


def test_terminal_survives_a_failed_stage(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pytest.raises(OSError), Progress().stage("thing", total=10, unit="B") as stage:
        clock.s += 1
        stage.advance(1)
        raise OSError
    assert "in 1.0 s" not in sys.stderr.getvalue()


@pytest.mark.parametrize(
    ("show", "setting", "is_shown"),
    [
        (None, "off", False),
        (None, "auto", True),
        (True, "off", True),
        (False, "auto", False),
        (None, "plain", True),
    ],
)
def test_argument_beats_the_setting(clock, monkeypatch, capsys, show, setting, is_shown):
    monkeypatch.setenv("TINYKIT_PROGRESS", setting)
    work(show, clock, steps=2, step_s=1)
    Progress(show).note("waiting for somebody")
    error = capsys.readouterr().err
    assert ("thing: 20 B in 2.0 s" in error) is is_shown
    assert ("waiting for somebody" in error) is is_shown


def test_note_reaches_a_callback():
    events = []
    Progress(events.append).note("waiting for process 7", model="m")
    assert [(event.status, event.model, event.message) for event in events] == [
        ("progress", "m", "waiting for process 7")
    ]


def test_ready_reaches_a_callback_only(capsys):
    events = []
    Progress(events.append).ready("m")
    Progress().ready("m")
    assert [(event.status, event.model) for event in events] == [("ready", "m")]
    assert capsys.readouterr().err == ""


class FakeHandle:
    def __init__(self, shown):
        self.shown = shown

    def update(self, content, raw):
        self.shown.append(("update", content))


@pytest.fixture
def notebook(monkeypatch):
    """A running kernel, as far as progress can tell; gives what was displayed."""
    shown = []

    def display(content, raw, display_id):
        assert raw and display_id
        shown.append(("display", content))
        return FakeHandle(shown)

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    monkeypatch.setenv("TINYKIT_STABLE", "0")  # although pytest runs it
    return shown


def test_notebook_that_has_to_be_stable_shows_nothing(clock, notebook, monkeypatch):
    monkeypatch.delenv("TINYKIT_STABLE")
    work(None, clock, steps=4, step_s=1, amount=25, total=100)
    assert notebook == []


def test_notebook_updates_one_line_of_plain_text(clock, notebook, capsys):
    work(None, clock, steps=4, step_s=1, amount=25, total=100)
    assert [step for step, _ in notebook] == ["display", *["update"] * 4]
    assert all(set(content) == {"text/plain"} for _, content in notebook)
    assert notebook[0][1]["text/plain"] == "thing: 25 % of 100 B"
    assert notebook[-1][1]["text/plain"] == "thing: 100 B in 4.0 s"
    assert capsys.readouterr().err == ""


def test_notebook_without_a_working_display_does_not_stop_the_work(clock, notebook, monkeypatch, caplog):
    monkeypatch.setattr(sys.modules["IPython.display"], "display", None)
    work(None, clock, steps=4, step_s=1, total=40)
    assert "the work goes on" in caplog.text


def test_shell_without_kernel_is_no_notebook(clock, notebook, monkeypatch, capsys):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: types.SimpleNamespace())
    work(None, clock, steps=2, step_s=1)
    assert notebook == []
    assert "thing: 20 B in 2.0 s" in capsys.readouterr().err


def test_resumed_and_restarted_work_is_told_apart(clock, capsys):
    with Progress().stage("thing", total=100, unit="B", initial=40) as stage:
        clock.s += 1
        stage.advance(60)
    assert capsys.readouterr().err.endswith("thing: 100 B (40 B of them from before) in 1.0 s\n")
    with Progress().stage("thing", total=100, unit="B", initial=40) as stage:
        clock.s += 1
        stage.restart()
        stage.advance(100)
    assert capsys.readouterr().err.endswith("thing: 100 B in 1.0 s\n")


class FakeWidget:
    made: ClassVar[list] = []

    def __init__(self, children=(), **facts):
        self.children = tuple(children)
        self.values = []
        self.is_closed = False
        self.made.append(self)

    def __setattr__(self, name, value):
        if name == "value":
            self.values.append(value)
        super().__setattr__(name, value)

    def _repr_mimebundle_(self):
        return {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "HBox(...)"}

    def close(self):
        self.is_closed = True


@pytest.fixture
def widgets(notebook, monkeypatch):
    """A stand-in for ipywidgets; gives what was displayed and the widgets made."""
    module = types.ModuleType("ipywidgets")
    module.FloatProgress = module.Label = module.HBox = FakeWidget
    monkeypatch.setattr(FakeWidget, "made", [])
    monkeypatch.setitem(sys.modules, "ipywidgets", module)
    return notebook, FakeWidget.made


def test_notebook_bar_moves_and_ends_as_one_sentence(clock, widgets):
    shown, made = widgets
    work(None, clock, steps=4, step_s=1, amount=25, total=100)
    (first, content), (last, sentence) = shown
    assert (first, last) == ("display", "update")
    assert content["text/plain"] == "thing: 25 % of 100 B"
    assert "application/vnd.jupyter.widget-view+json" in content
    assert sentence == {"text/plain": "thing: 100 B in 4.0 s"}
    assert [widget.values for widget in made[:2]] == [
        [0.25, 0.5, 0.75, 1.0],
        [f"thing: {percent} % of 100 B" for percent in (25, 50, 75, 100)],
    ]
    assert all(widget.is_closed for widget in made)


def test_notebook_bar_that_fails_leaves_a_sentence_and_no_widget(clock, widgets):
    shown, made = widgets
    with pytest.raises(OSError), Progress().stage("thing", total=100, unit="B") as stage:
        clock.s += 1
        stage.advance(40)
        raise OSError
    assert shown[-1] == ("update", {"text/plain": "thing: 40 % of 100 B (stopped)"})
    assert all(widget.is_closed for widget in made)


def test_widgets_that_do_not_work_become_a_line(clock, widgets, monkeypatch, caplog):
    def fail(*_, **options):
        raise RuntimeError("no front end")

    monkeypatch.setattr(sys.modules["ipywidgets"], "HBox", fail)
    caplog.set_level("INFO")
    work(None, clock, steps=2, step_s=1, amount=50, total=100)
    assert [content for _, content in widgets[0]] == [
        {"text/plain": "thing: 50 % of 100 B"},
        {"text/plain": "thing: 100 % of 100 B"},
        {"text/plain": "thing: 100 B in 2.0 s"},
    ]
    assert "no front end" in caplog.text


# several files in one stage


def files_of(events):
    return [(event.status, event.file, event.loaded_bytes) for event in events]


def test_files_count_for_themselves_and_for_the_whole(clock):
    events = []
    files = {"a": (0, 10), "b": (5, 10)}
    with Progress(events.append).stage(
        "repo", total=20, unit="B", model="m", initial=5, files=files
    ) as stage:
        for name in files:
            with stage.one_file(name) as counter:
                clock.s += 1
                counter.advance(5)
                if name == "a":
                    counter.advance(5)
    assert files_of(events) == [
        ("initiate", None, 5), ("download", None, 5),
        ("initiate", "a", 0), ("download", "a", 0),
        ("progress_total", None, 10), ("progress", "a", 5), ("progress", "a", 10), ("done", "a", 10),
        ("progress_total", None, 15),
        ("initiate", "b", 5), ("download", "b", 5),
        ("progress_total", None, 20), ("progress", "b", 10), ("done", "b", 10),
        ("progress_total", None, 20),
        ("done", None, 20),
    ]  # fmt: skip
    totals = [event for event in events if event.status == "progress_total"]
    assert totals[0].files == {"a": (5, 10), "b": (5, 10)}
    assert [event.percent for event in totals] == [50, 75, 100, 100]


def test_file_that_starts_over_takes_its_bytes_back(clock):
    with Progress(False).stage(
        "repo", total=20, unit="B", initial=8, files={"a": (8, 10), "b": (0, 10)}
    ) as stage:
        with stage.one_file("b") as counter:
            counter.advance(10)
        with stage.one_file("a") as counter:
            counter.restart()
            assert (stage.count, stage.initial, stage.files["a"]) == (10, 0, (0, 10))
            counter.advance(10)
        assert stage.count == stage.total


# listeners


@pytest.fixture
def heard():
    events = []
    unsubscribe = progress.subscribe(events.append)
    yield events
    unsubscribe()


def test_listener_hears_what_no_callback_was_given_for(clock, heard, capsys):
    work(False, clock, steps=1, step_s=1, total=10, model="m")
    Progress(False).ready("m", name="owner/name", task="text-classification")
    assert [event.status for event in heard] == ["initiate", "download", "progress", "done", "ready"]
    assert {event.model for event in heard} == {"m"}
    assert (heard[-1].name, heard[-1].task) == ("owner/name", "text-classification")
    assert capsys.readouterr() == ("", "")


def test_each_subscription_ends_by_itself(clock, heard):
    twice = []
    first, second = progress.subscribe(twice.append), progress.subscribe(twice.append)
    Progress().ready("m")
    first()
    first()
    Progress().ready("m")
    second()
    Progress().ready("m")
    assert (len(twice), len(heard)) == (3, 3)


def test_listener_that_fails_stops_neither_the_others_nor_the_work(clock, heard, caplog):
    def fail(event):
        raise ValueError

    unsubscribe = progress.subscribe(fail)
    later = []
    unsubscribe_later = progress.subscribe(later.append)
    work(False, clock, steps=1, step_s=1, total=10)
    unsubscribe()
    unsubscribe_later()
    assert len(later) == len(heard) == 4
    assert "the work goes on" in caplog.text


BUSY_CELL = """
import time
from tinykit.progress import Progress
with Progress().stage("thing", total=100, unit="B") as stage:
    for _ in range(10):
        time.sleep(0.1)
        stage.advance(10)
"""


@pytest.mark.filterwarnings("ignore")
def test_real_notebook_keeps_the_sentence_only(monkeypatch):
    monkeypatch.setenv("TINYKIT_STABLE", "0")
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(BUSY_CELL)])
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "display_data"
    assert list(output.data) == ["text/plain"]
    assert output.data["text/plain"].startswith("thing: 100 B in ")


def test_time_left_is_told_once_there_is_something_to_tell_it_by(clock):
    stage = progress.Stage("lab", total=100, unit="titles", initial=10)
    clock.s += 600  # until the first one: a model is loaded, a file is opened
    stage.advance(10)
    assert stage.state_text() == "lab: 20 % of 100 titles"
    clock.s += 4
    stage.advance(20)
    assert stage.state_text() == "lab: 40 % of 100 titles"  # it is too early
    clock.s += 6
    stage.advance(20)
    assert stage.state_text() == "lab: 60 % of 100 titles, about 10 s left"
    clock.s += 990
    assert stage.state_text() == "lab: 60 % of 100 titles, about 17 min left"


@pytest.mark.parametrize("first", ["initiate", "progress_total"], ids=["from the start", "come late"])
def test_work_of_another_process_is_shown_as_if_it_were_ours(clock, capsys, first):
    here = Progress(True)
    for status, loaded in ((first, 0), ("progress_total", 60), ("done", 100)):
        here.relay(ProgressEvent(status, name="thing", loaded_bytes=loaded, total_bytes=100))
        clock.s += 6
    here.relay(ProgressEvent("progress", name="other", file="a", loaded_bytes=1, total_bytes=2))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("thing: 60 % of 100 B") and lines[-1].startswith("thing: ") and len(lines) == 2
