"""The command ``tinykit``.

Exit codes: 0 done · 1 no title was found · 2 wrong use or input · 3 unknown model, recipe or worker · 4 files
cannot be had · 5 a model file cannot be used · 6 another failure while running · 130 interrupted · 141 the
reader of the output left.

What costs time to import is imported inside `main`, so that Ctrl-C is clean from the first moment.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TextIO

from tinykit.errors import (
    DeviceFallbackWarning,
    ModelFileError,
    OptionError,
    PromptTooLongError,
    SourceError,
    TinykitError,
    UnknownModelError,
    UnknownRecipeError,
    UnknownWorkerError,
)

_EXIT_CODES: tuple[tuple[type[TinykitError], int], ...] = (
    (OptionError, 2),
    (PromptTooLongError, 2),
    (UnknownModelError, 3),
    (UnknownRecipeError, 3),
    (UnknownWorkerError, 3),
    (SourceError, 4),
    (ModelFileError, 5),
    (TinykitError, 6),
)
_FAILED = 6
_INTERRUPTED = 130
_READER_LEFT = 141  # what a shell reports of a program that SIGPIPE ended


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its code."""
    try:
        try:
            _accept_all_text()
            code = _run(arguments)
        except (Exception, KeyboardInterrupt) as error:
            code = _told(error, arguments)
        _flush()
    except KeyboardInterrupt:  # Ctrl-C again, or while the last of the output waits for its reader
        code = _INTERRUPTED
    sys.exit(code)


def _told(error: BaseException, arguments: list[str] | None) -> int:
    """Say what ended the command; returns the exit code."""
    if _is_interrupt(error):
        return _failure("Interrupted.", _INTERRUPTED)
    if isinstance(error, TinykitError):
        if _wants_json(arguments):
            _json_error(error, arguments)
            return exit_code(error)
        message, hint = _in_shell_words(error, arguments)
        return _failure(f"Error: {message}" + (f"\n{hint}" if hint else ""), exit_code(error))
    if isinstance(error, OSError):
        where = error.filename or "Reading or writing failed"
        return _failure(f"Error: {where}: {error.strerror or error}", _FAILED)
    if isinstance(error, MemoryError):
        return _failure("Error: There is not enough memory.", _FAILED)
    import traceback

    fault = "This is a fault of tinykit. Please report it, with what 'tinykit doctor' says."
    return _failure(f"{''.join(traceback.format_exception(error))}{fault}", _FAILED)


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether it is a Ctrl-C, also one that Python 3.11 made a RuntimeError of, as where a class is made."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__
    return False


def run_and_end() -> NoReturn:
    """`main` as what a process does; it ends at once, without taking the interpreter and ONNX Runtime apart.

    That would take a tenth of a command's time. What was registered with `atexit` is done; where threads have
    to be waited for, Python does it as usual.
    """
    try:
        main()
    except SystemExit as end:
        code = end.code
    others = (thread for thread in threading.enumerate() if thread is not threading.main_thread())
    if all(thread.daemon for thread in others):
        with suppress(BaseException):
            atexit._run_exitfuncs()
        os._exit(code if isinstance(code, int) else _FAILED)
    sys.exit(code)


def exit_code(error: TinykitError) -> int:
    """The exit code for an error."""
    return next(number for kind, number in _EXIT_CODES if isinstance(error, kind))


def __getattr__(name: str) -> Any:
    """The group of commands as `tinykit.cli.cli`, for what looks into it."""
    if name != "cli":
        raise AttributeError(f"module 'tinykit.cli' has no attribute {name!r}")
    from tinykit.cli.commands import cli

    return cli


def _run(arguments: list[str] | None) -> int:
    import click

    from tinykit.cli.commands import cli

    try:
        with _plain_warnings():
            code = cli.main(arguments, prog_name="tinykit", standalone_mode=False)
    except click.ClickException as error:
        if _wants_json(arguments):
            _json_error(error, arguments)
        else:
            error.show()
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except SystemExit:  # click's way out when the output's reader has left; its code means "no title"
        return _READER_LEFT
    return code if isinstance(code, int) else 0


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Say on one line that another device is used; a line of tinykit's code beside it helps nobody."""
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if issubclass(category, DeviceFallbackWarning):
                _say(f"Warning: {message}")
            else:
                usual(message, category, filename, lineno, file, line)

        warnings.showwarning = show
        warnings.simplefilter("default", DeviceFallbackWarning)
        yield


def _in_shell_words(error: TinykitError, arguments: list[str] | None) -> tuple[str, str | None]:
    """Message and hint of an error, with options in place of arguments."""
    from tinykit.cli.commands import cli
    from tinykit.cli.wording import command_of, in_shell_words

    return in_shell_words(error, *command_of(_given(arguments), cli))


def _given(arguments: list[str] | None) -> list[str]:
    return sys.argv[1:] if arguments is None else arguments


def _wants_json(arguments: list[str] | None) -> bool:
    """Whether --json is among the options; after -- it is text."""
    given = _given(arguments)
    return "--json" in given[: given.index("--") if "--" in given else None]


def _json_error(error: Exception, arguments: list[str] | None) -> None:
    """The error as a line of JSON, where a program looks for the result."""
    import json

    from tinykit.cli.results import error_fields

    said = _in_shell_words(error, arguments) if isinstance(error, TinykitError) else None
    with suppress(OSError, ValueError):
        sys.stdout.write(json.dumps({"error": error_fields(error, said)}, ensure_ascii=False) + "\n")


def _accept_all_text() -> None:
    """Show as an escape what an output's encoding does not have, rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _failure(message: str, code: int) -> int:
    """Say what went wrong; returns the exit code."""
    _say(message)
    return code


def _say(message: str) -> None:
    """Write to stderr; that nobody can be told is no failure."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None:
            sys.stderr.write(f"{message}\n")
            sys.stderr.flush()


def _flush() -> None:
    """Leave nothing in the streams that cannot be written: Python would end with its own code for that."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
