"""Ctrl-C anywhere in a run: the folder stays good and free, and the same call makes what is missing."""

import contextlib
from functools import partial
from pathlib import Path

import tinykit
from tests.interrupting import interrupted
from tinykit import lab

WATCHED = (str(Path(tinykit.__file__).parent / "lab"), contextlib.__file__)
MESSAGES = ["please fix the red door", "hello"]


def titles(run):
    return [(row.cell, row.title, row.status) for row in run.rows]


def test_interrupted_run_goes_on(tmp_path, monkeypatch):
    # what comes while an object is cleared away is never heard of, here or anywhere
    monkeypatch.setattr("filelock.BaseFileLock.__del__", lambda _: None)

    def run(name, found):
        found.append(lab.run(MESSAGES, "first-words", out=tmp_path / name, progress=False))
        return found[0]

    wanted, at, kept = titles(run("whole", [])), 0, None
    while True:
        at += 7
        found = []
        come, error = interrupted(at, partial(run, str(at), found), WATCHED)
        if not come:
            break
        place = f"place {at}, in {come[0]}"
        assert isinstance(error, KeyboardInterrupt) or found[0].was_interrupted, place
        whole = run(str(at), [])
        assert (titles(whole), whole.is_complete, whole.notes) == (wanted, True, ()), place
        kept = error or kept  # as a notebook keeps it, with its frames
    assert at > 400 and kept is not None
