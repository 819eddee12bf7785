"""Tell one version of a file from another without reading all of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from tinykit.errors import ModelFileError

_END_BYTES = 2**20


def file_marks(files: Iterable[Path]) -> list[str]:
    """What identifies each file: name, size, its two ends, and its time if that is not all of it.

    Raises:
        ModelFileError: a file cannot be read.
    """
    marks = []
    for file in files:
        try:
            stat = file.stat()
            with file.open("rb") as opened:
                ends = opened.read(_END_BYTES)
                opened.seek(max(0, stat.st_size - _END_BYTES))
                ends += opened.read()
        except OSError as error:
            raise ModelFileError(f"{file} cannot be read: {error.strerror or error}", path=file) from error
        marks.append(f"{file.name}|{stat.st_size}|{hashlib.sha256(ends).hexdigest()}")
        if stat.st_size > 2 * _END_BYTES:  # small files are hashed whole
            marks.append(str(stat.st_mtime_ns))
    return marks


def stat_marks(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Every file below a folder with its size and time: what tells whether it changed within a process."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    stats = ((path.relative_to(folder).as_posix(), path.stat()) for path in files)
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def digest(marks: Iterable[str]) -> str:
    """One name for many marks."""
    return hashlib.sha256("|".join(marks).encode()).hexdigest()
