"""One line, and what to do, for what a benchmark cannot use; a traceback only for faults."""

import argparse
import sys
from collections.abc import Callable

from tinykit import TinykitError


def positive(text: str) -> int:
    """A number of an option that must be 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, got {text!r}")
    return int(text)


def run(main: Callable[[], None]) -> None:
    """Run a benchmark; our own errors end it with exit code 1."""
    try:
        main()
    except TinykitError as error:
        sys.exit(f"{error}\n{error.hint}" if error.hint else str(error))
