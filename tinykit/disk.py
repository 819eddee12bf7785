"""What the disk says to our caches: whether there is room, and its errors as our own."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinykit import settings
from tinykit.errors import CacheError, DiskSpaceError
from tinykit.progress import size_text

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NO_FLOCK = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


def home_problem() -> str | None:
    """Why the store cannot be used, if that can be seen without writing anything; None if it can."""
    folder: Path = settings.get("home")
    there = next((part for part in (folder, *folder.parents) if os.path.lexists(part)), None)
    if there is None or not there.is_dir():
        return f"{there} is not a folder"
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written"


def require_space(path: Path, needed_bytes: int) -> None:
    """Raise DiskSpaceError if the disk that holds this path has less room than this."""
    if needed_bytes > _free_bytes(path):
        raise space_error(path, needed_bytes)


@contextmanager
def as_space_error(path: Path, needed_bytes: int) -> Iterator[None]:
    """Turn what the system says about a full disk into DiskSpaceError."""
    try:
        yield
    except OSError as exc:
        if exc.errno not in _NO_SPACE:
            raise
        raise space_error(path, needed_bytes) from exc


@contextmanager
def as_cache_error(path: Path) -> Iterator[None]:
    """Turn what the system says about files here into CacheError and DiskSpaceError."""
    try:
        with as_space_error(path, 0):
            yield
    except (CacheError, DiskSpaceError):
        raise
    except OSError as exc:
        if has_no_flock(exc):
            raise
        raise CacheError(
            f"The cache folder {path.parent} cannot be used: {exc.strerror or exc}",
            hint=f"Set {_variable(path)} to a folder that you can write to.",
            path=path,
        ) from exc


def _free_bytes(path: Path) -> int:
    existing = next((parent for parent in (path, *path.parents) if parent.exists()), Path())
    return shutil.disk_usage(existing).free


def _variable(path: Path) -> str:
    """The variable that moves the cache which holds this path."""
    return "TINYKIT_HOME" if path.is_relative_to(settings.get("home")) else "HF_HOME"


def space_error(path: Path, needed_bytes: int) -> DiskSpaceError:
    """The error for a disk without room for this path, with what is needed and what is free."""
    free_bytes = _free_bytes(path)
    needed = f"{size_text(needed_bytes)} needed, " if needed_bytes else ""
    return DiskSpaceError(
        f"No room on the disk for {path}: {needed}{size_text(free_bytes)} free",
        hint=f"Free some space, or set {_variable(path)} to a folder on another disk.",
        needed_bytes=needed_bytes,
        free_bytes=free_bytes,
        path=path,
    )


def has_no_flock(exc: Exception) -> bool:
    """True if the file system has no locks."""
    return isinstance(exc, NotImplementedError) or getattr(exc, "errno", None) in _NO_FLOCK
