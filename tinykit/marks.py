"""Tell one version of a file from another without reading all of it."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from pathlib import Path

from tinykit.errors import ModelFileError

_END_BYTES = 2**20
# lines of /proc/cpuinfo that are the same for all processors of a kind
_OF_A_KIND = ("vendor_id", "model", "flags", "CPU impl", "CPU part", "CPU variant", "Features", "isa")


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


def stat_marks(folder: Path, *, but: str = "") -> tuple[tuple[str, int, int], ...]:
    """Every file below a folder with its size and time: what tells whether it changed within a process.

    The folder `but` in it does not count.
    """
    left = folder / but
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and (not but or left not in path.parents)
    )
    stats = ((path.relative_to(folder).as_posix(), path.stat()) for path in files)
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


def processor() -> str:
    """What tells this kind of processor from others, for which libraries may round otherwise."""
    facts = [platform.machine()]
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            lines = file.read(4096).split("\n\n")[0].splitlines()  # of the first one
        facts += [line for line in lines if line.startswith(_OF_A_KIND)]
    except OSError:  # not Linux
        facts.append(platform.processor())
    return digest(facts)[:16]


def digest(marks: Iterable[str]) -> str:
    """One name for many marks."""
    return hashlib.sha256("|".join(marks).encode()).hexdigest()
