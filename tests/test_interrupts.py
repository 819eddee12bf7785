"""What a Ctrl-C leaves, and how IPython shows it."""

import gc
import weakref
from dataclasses import replace

import pytest

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
