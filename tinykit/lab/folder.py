"""A run on disk: a folder with `header.json`, `cases.jsonl` and `rows.jsonl`.

Rows are appended, each with one write, and handed to the system before the next one is begun: a process that
is killed loses what was under way and nothing else. `rows.jsonl` opens in pandas with
``read_json(path, lines=True)``; a line that was cut off by a crash is left out, and removed when the run goes
on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from filelock import FileLock, Timeout

from tinykit.errors import OptionError
from tinykit.lab import datasets
from tinykit.lab.cases import json_bytes, write_cases
from tinykit.lab.keys import FORMAT
from tinykit.lab.plan import Plan
from tinykit.lab.rows import Row

T = TypeVar("T")
HEADER, CASES, ROWS, LOCK = "header.json", "cases.jsonl", "rows.jsonl", "rows.lock"


class RunFolder:
    """The files of a run."""

    def __init__(self, path: str | Path) -> None:
        self.path = checked_path(path, "out")

    def is_run(self) -> bool:
        """Whether a run was begun here."""
        return (self.path / HEADER).is_file()

    def header(self) -> dict[str, Any]:
        """What the run knows of itself.

        Raises:
            OptionError: there is no run, or one of a later version.
        """
        path = self.path / HEADER
        try:
            header = json.loads(path.read_text(encoding="utf-8"))
            number = header["format"]
            if number == FORMAT and not all(isinstance(header[name], dict) for name in ("plan", "targets")):
                raise TypeError("its plan or its targets are none")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise OptionError(
                f"{self.path} holds no run.", hint="lab.run(cases, out=...) makes one.", name="path",
                value=str(self.path),
            ) from error  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _damaged(path, error) from error
        if number != FORMAT:
            raise OptionError(
                f"{path} is of format {number}; this tinykit reads format {FORMAT}.",
                hint="Update tinykit.",
                name="format",
                value=number,
            )
        return dict(header)

    def plan(self) -> Plan:
        """What the run is to do.

        Raises:
            OptionError: the header or the cases are damaged.
        """
        header = self.header()
        try:
            return Plan.from_dict(header["plan"], datasets.load(self.path / CASES))
        except OptionError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            path = self.path / (CASES if isinstance(error, OSError | UnicodeError) else HEADER)
            raise _damaged(path, error) from error

    def has_cases(self) -> bool:
        """Whether the cases are there, and whole."""
        try:
            return bool(datasets.load(self.path / CASES))
        except (OSError, ValueError, OptionError):
            return False

    def write_plan(self, header: dict[str, Any], plan: Plan) -> None:
        """Begin a run, or give it another plan."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError(
                f"No folder for a run can be made at {self.path}: {error.strerror or error}.",
                hint="Choose another folder: out=...",
                name="out",
                value=str(self.path),
            ) from error
        write_cases(plan.cases, self.path / f"{CASES}.new")
        (self.path / f"{CASES}.new").replace(self.path / CASES)
        self.write_header({**header, "plan": plan.to_dict()})

    def write_header(self, header: dict[str, Any]) -> None:
        """Write the header whole, or not at all."""
        fresh = self.path / f"{HEADER}.new"
        fresh.write_bytes(json_bytes(header, indent=1))
        fresh.replace(self.path / HEADER)

    def rows(self) -> tuple[list[Row], list[str]]:
        """All rows, also those of earlier plans, and notes about lines that are none."""
        rows: list[Row] = []
        notes: list[str] = []
        try:
            data = (self.path / ROWS).read_bytes()
        except FileNotFoundError:
            return rows, notes
        except OSError as error:
            raise _damaged(self.path / ROWS, error) from error
        for number, line in enumerate(data.split(b"\n"), start=1):
            if line.strip():
                try:
                    rows.append(Row.from_dict(json.loads(line)))
                except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                    notes.append(f"{ROWS}, line {number}: not a row, left out (cut off by a crash?)")
        return rows, notes

    def write(self, act: Callable[[RowWriter], T]) -> T:
        """What `act` returns, called with the only writer of this run.

        It is no context manager: an interrupt may leave one of those before its end, and the run locked.

        Raises:
            OptionError: another process is writing.
        """
        lock = FileLock(self.path / LOCK)
        try:
            self._acquire(lock)
            with (self.path / ROWS).open("ab+") as file:
                _mend(file)
                return act(RowWriter(file))
        finally:
            try:
                lock.release()
            finally:  # an interrupt may have come before it
                lock.release()

    def _acquire(self, lock: FileLock) -> None:
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise OptionError(
                f"Another process is at work on the run {self.path}.",
                hint="Wait for it, or choose another folder: out=...",
                name="out",
                value=str(self.path),
            ) from error


class RowWriter:
    """Appends rows; a row that it took survives the death of the process."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def append(self, row: Row) -> None:
        """Write a row."""
        self._file.write(row_line(row))
        self._file.flush()


def _damaged(path: Path, error: Exception) -> OptionError:
    return OptionError(
        f"{path} cannot be read: {error!s:.300}.",
        hint="Delete this file and make the run again with the same folder: the titles that it has count.",
        name="path",
        value=str(path),
    )


def checked_path(path: object, name: str, what: str = "a folder") -> Path:
    """A path that may name something, such as a folder.

    Raises:
        OptionError: it does not.
    """
    try:
        found = Path(path).expanduser()  # type: ignore[arg-type]
        if not str(path).strip():
            raise ValueError("it is empty")
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: the home of nobody
        raise OptionError(
            f"{name} must be the path of {what}, not {path!r:.80}: {error}.",
            hint='For example: "runs/first"' if what == "a folder" else 'For example: "report.html"',
            name=name,
            value=path,
        ) from error
    return found


def row_line(row: Row) -> bytes:
    """A row as a line of JSON."""
    return json_bytes(row.to_dict())


def _mend(file: BinaryIO) -> None:
    """Make the file end with a whole line: what a crash has cut off is completed or removed."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return
    file.seek(0)
    last = file.read().rpartition(b"\n")[2]
    if not last:
        return
    try:
        Row.from_dict(json.loads(last))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        file.truncate(size - len(last))
        file.seek(0, os.SEEK_END)
    else:
        file.write(b"\n")  # only the end of the line was missing
        file.flush()
