"""A worker's log: what it and the libraries below it write, in a file that does not grow for ever."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 1_000_000
_TAIL_CHARS = 500


class LogFile(logging.Handler):
    """Writes records to standard error, which is the log, and begins a new file once it is long.

    The one before it is kept with the ending ``.1``. Nothing that goes wrong with the disk ends the worker.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        self._path = path
        self._max_bytes = max_bytes
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line."""
        with suppress(Exception):
            text = self.format(record)
            self._rotate()
            os.write(sys.stderr.fileno(), f"{text}\n".encode("utf-8", "backslashreplace"))

    def _rotate(self) -> None:
        rotate(self._path, self._max_bytes)
        if not _is_same(self._path, sys.stderr.fileno()):
            fresh = open_log(self._path)
            if fresh is not None:
                for stream in (sys.stdout, sys.stderr):
                    os.dup2(fresh, stream.fileno())
                os.close(fresh)


def rotate(path: Path, max_bytes: int = MAX_BYTES) -> None:
    """Put a long log aside."""
    with suppress(OSError):
        if path.stat().st_size > max_bytes:
            path.replace(path.with_name(path.name + ".1"))


def open_log(path: Path) -> int | None:
    """A descriptor that appends to the log; None if it cannot be written."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return None


def _is_same(path: Path, descriptor: int) -> bool:
    with suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def tail(path: Path, chars: int = _TAIL_CHARS) -> str:
    """The end of the log, without the line that says that it listens; empty if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 8 * chars))
            text = file.read(8 * chars).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
    lines = [line for line in text.splitlines() if "tinykit worker listens" not in line]
    return "\n".join(lines)[-chars:].strip()
