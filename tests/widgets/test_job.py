import threading

import pytest

from tests.widgets.typist import WAIT_S
from tinykit.progress import Progress, ProgressEvent
from tinykit.widgets.job import Job, Stopped


def test_job_runs_beside_its_maker_and_ends():
    go_on, ended = threading.Event(), []
    job = Job(lambda job: go_on.wait(WAIT_S), on_end=ended.append)
    assert job.is_running
    assert not job.wait(0)
    go_on.set()
    assert job.wait(WAIT_S)
    assert (job.is_running, job.error, ended) == (False, None, [job])


def test_error_is_kept_and_the_end_is_told():
    def fail(job):
        raise OSError("no")

    told = []
    job = Job(fail, on_end=lambda job: told.append(str(job.error)))
    assert job.wait(WAIT_S)
    assert told == ["no"]


def test_stop_calls_what_can_be_cancelled_and_ends_at_the_next_check():
    inside, cancelled = threading.Event(), threading.Event()
    passed = []

    def work(job):
        with job.stoppable(cancelled.set):
            inside.set()
            assert cancelled.wait(WAIT_S)
        job.check()
        passed.append(True)

    job = Job(work)
    assert inside.wait(WAIT_S)
    job.stop()
    assert job.wait(WAIT_S)
    assert (job.is_stopped, job.error, passed) == (True, None, [])


def test_what_was_stopped_before_begins_nothing():
    first_may_end = threading.Event()
    begun = []
    first = Job(lambda job: first_may_end.wait(WAIT_S))
    second = Job(lambda job: begun.append(job), after=first)
    second.stop()
    assert second.is_running
    first_may_end.set()
    assert second.wait(WAIT_S)
    assert begun == []


def test_stoppable_part_is_not_entered_after_stop():
    job = Job(lambda job: None)
    job.wait(WAIT_S)
    job.stop()
    cancels = []
    with pytest.raises(Stopped), job.stoppable(lambda: cancels.append(1)):
        pytest.fail("it was entered")
    assert job._cancels == []


def test_stop_ends_slow_work_from_inside_its_progress():
    """The progress logs and swallows errors of a callback, so a stop must be none."""
    half, stopped = threading.Event(), threading.Event()
    seen, reached = [], []

    def work(job):
        with Progress(job.listening(seen.append)).stage("thing", total=100, unit="B") as stage:
            half.set()
            assert stopped.wait(WAIT_S)
            stage.advance(100)
            reached.append(True)

    job = Job(work)
    assert half.wait(WAIT_S)
    job.stop()
    stopped.set()
    assert job.wait(WAIT_S)
    assert reached == []
    assert [event.status for event in seen][-1] == "error"
    assert all(isinstance(event, ProgressEvent) for event in seen)
