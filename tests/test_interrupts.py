"""What a Ctrl-C leaves, and how IPython shows it."""

import gc
import os
import signal
import subprocess
import sys
import weakref
from dataclasses import replace

import pytest

from tests import tiny_models as tiny
from tinykit.generation.result import Completion
from tinykit.interrupts import keep_partial, shorten
from tinykit.many import failed_completion


class Held:
    """Something that a frame holds."""


def interrupted(found, **options):
    """The error of a call that a Ctrl-C has ended."""
    try:
        held = Held()  # noqa: F841
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        keep_partial(error, found, **options)
        return error


def said(text):
    return replace(Completion.nothing(cancelled_by="interrupt"), text=text)


def test_lines_name_the_users_frames_and_what_there_is():
    lines = interrupted(said("Once upon"))._render_traceback_()
    assert any(line == f"File {__file__}, line {interrupted.__code__.co_firstlineno + 6}" for line in lines)
    assert "----> keep_partial(error, found, **options)" in lines
    assert not any("interrupts.py, line" in line and "/tinykit/" in line for line in lines)
    assert lines[-3] == "KeyboardInterrupt: stopped by Interrupt or Ctrl-C."
    assert "sys.last_value.partial" in lines[-2] and lines[-1] == "Once upon"


@pytest.mark.parametrize(
    ("found", "options", "end"),
    [
        ([said("a"), failed_completion(None), None], {}, "has 0 of 3 results."),
        (["a title", None], {}, "has 1 of 2 results."),
        (said(""), {}, "There is nothing so far."),
        (said("told before"), {"is_told": True}, "has what there is."),
        (said("a\x1b[2Jb\nc"), {}, "a\N{REPLACEMENT CHARACTER}[2Jb\nc"),
    ],
    ids=["answers", "titles", "nothing", "told", "terminal codes"],
)
def test_last_line_says_what_there_is(found, options, end):
    error = interrupted(found, **options)
    assert error.partial is found
    assert error._render_traceback_()[-1].endswith(end)


def test_call_without_a_partial_is_shown_with_its_frames_alone():
    error = KeyboardInterrupt()
    shorten(error)
    assert error._render_traceback_()[-1] == "KeyboardInterrupt: stopped by Interrupt or Ctrl-C."
    assert not hasattr(error, "partial")


def test_error_keeps_nothing_alive_once_it_is_dropped():
    gc.disable()
    try:
        error = interrupted(said("x"))
        frames = weakref.ref(error.__traceback__.tb_frame.f_locals["held"])
        assert frames() is not None
        del error
        assert frames() is None  # without a collection: there is no cycle
    finally:
        gc.enable()


SCRIPT = """
import signal, sys
from tinykit import TinySession

session = TinySession(sys.argv[1], dtype="fp32", progress=False)

def heard(chunk):
    signal.raise_signal(signal.SIGINT)

def caught():
    try:
        session.complete("Name a color", max_tokens=50, on_chunk=heard)
    except KeyboardInterrupt as error:
        print(len(error.partial.token_ids))

def main(what):
    if what == "other":
        caught()
        return {}["nowhere"]
    backend = session.load().engine.backend
    if what == "model":
        backend.new_state = lambda: heard(None)
    session.complete("Name a color", max_tokens=50, on_chunk=heard)

main(sys.argv[2])
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """Runs the script above: what it printed, and the lines of its traceback."""
    folder = tmp_path_factory.mktemp("script")
    file = tiny.write_gguf(folder / "tiny.gguf", "llama", tiny.random_weights("llama"), "F32")
    (folder / "mine.py").write_text(SCRIPT, encoding="utf-8")
    env = {**os.environ, "TINYKIT_HOME": str(folder / "home")}

    def run(what):
        command = [sys.executable, str(folder / "mine.py"), str(file), what]
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
        return done.returncode, done.stdout, done.stderr.splitlines()

    return run


@pytest.mark.parametrize("what", ["callback", "model"])
def test_script_that_is_interrupted_shows_its_own_lines_alone(script, what):
    code, _, lines = script(what)
    places = [line for line in lines if line.startswith("  File ")]
    assert places and all("mine.py" in line for line in places), lines
    assert [line.rpartition(" ")[2] for line in places][:2] == ["<module>", "main"]
    assert places[-1].endswith("in heard")  # which our own frames have called
    assert (lines[0], lines[-1]) == ("Traceback (most recent call last):", "KeyboardInterrupt")
    assert code in (-signal.SIGINT, 130, 0xC000013A)


def test_other_errors_are_shown_as_python_shows_them(script):
    code, out, lines = script("other")
    assert (code, out.strip().isdigit(), lines[-1]) == (1, True, "KeyError: 'nowhere'")


def test_hook_of_the_programs_own_is_left_alone(monkeypatch):
    def own(*details):
        raise AssertionError(details)

    monkeypatch.setattr(sys, "excepthook", own)
    shorten(KeyboardInterrupt())
    assert sys.excepthook is own
