"""One line, and what to do, for what a benchmark cannot use; a traceback only for faults."""

import sys
from collections.abc import Callable

from tinykit import TinykitError


def run(main: Callable[[], None]) -> None:
    """Run a benchmark; our own errors end it with exit code 1."""
    try:
        main()
    except TinykitError as error:
        sys.exit(f"{error}\n{error.hint}" if error.hint else str(error))
