import threading

from tests.widgets.conftest import plain
from tests.widgets.typist import WAIT_S
from tinykit.progress import Progress
from tinykit.widgets import ProgressBar
from tinykit.widgets.job import Job


def work(show, *, steps=4, amount=25, total=100, unit="B"):
    with Progress(show).stage("thing", total=total, unit=unit) as stage:
        for _ in range(steps):
            stage.advance(amount)


def test_bar_is_a_progress_callback_and_ends_with_a_sentence():
    bar = ProgressBar()
    bar.box
    work(bar)
    assert bar.bar.value == 100
    assert plain(bar.label.value).startswith("thing: 100 B in 0.")
    assert bar.text() == plain(bar.label.value)
    assert 'role="status"' in bar.label.value


def test_bar_shows_no_more_often_than_ten_times_a_second(standing_clock, monkeypatch):
    bar = ProgressBar()
    bar.box
    values = []
    bar.bar.observe(lambda change: values.append(change["new"]), names="value")
    monkeypatch.setattr("tinykit.displays._EVENT_INTERVAL_S", 0)
    work(bar, steps=100, amount=1)
    assert values == [1.0, 100.0]
    values.clear()
    with Progress(bar).stage("other", total=100, unit="B") as stage:
        for _ in range(40):
            stage.advance(1)
        assert values == []  # the bar was drawn just now
        standing_clock[-1].fire()  # a tenth of a second later
        assert values == [40.0]


def test_bar_without_a_total_shows_no_share(monkeypatch):
    monkeypatch.setattr("tinykit.displays._EVENT_INTERVAL_S", 0)
    bar = ProgressBar()
    bar.box
    with Progress(bar).stage("thing", total=None, unit="tensors") as stage:
        stage.advance(3)
        assert bar.bar.layout.display == "none"
        assert "thing: 3 tensors" in bar.label.value


def test_bar_can_be_moved_by_any_thread(traffic):
    bar = ProgressBar()
    bar.box
    barrier = threading.Barrier(4)

    def both(job):
        barrier.wait(WAIT_S)
        work(bar)

    jobs = [Job(both) for _ in range(4)]
    assert all(job.wait(WAIT_S) and job.error is None for job in jobs)
    shown = [data["state"]["value"] for kind, data in traffic if "value" in data.get("state", {})]
    assert shown and bar.bar.value == 100


def test_failure_is_said_and_the_bar_can_be_cleared():
    bar = ProgressBar()
    bar.box
    try:
        with Progress(bar).stage("<b>", total=10, unit="B"):
            raise OSError("no <i>room</i>")
    except OSError:
        pass
    assert plain(bar.label.value) == "<b>: stopped (no <i>room</i>)"
    assert "<i>" not in bar.label.value
    bar.clear()
    assert (bar.label.value, bar.bar.layout.display) == ("", "none")


def test_bar_is_heard_before_it_is_drawn_and_without_widgets():
    bar = ProgressBar()
    work(bar)
    assert bar.text().startswith("thing: 100 B in")
    bar.box
    assert bar.bar.value == 100
