"""The cache on disk: one folder per finished thing, below the settings' home.

A folder is built beside its place under a lock, gets its marker `complete.json` last, and is then renamed
into place. So whatever stands in its place with a marker is whole, and what a dead process left behind is
swept away by the next one that builds the same thing. Nothing outside the home is written or removed.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinykit import settings
from tinykit.disk import as_cache_error as as_cache_error
from tinykit.disk import as_space_error, has_no_flock
from tinykit.disk import require_space as require_space
from tinykit.disk import space_error as space_error
from tinykit.errors import CacheError, ChecksumError, OptionError

if TYPE_CHECKING:
    from filelock import BaseFileLock

MARKER = "complete.json"

_TEMPORARY = ".tmp-"
_LOCK_TIMEOUT_S = 1800.0
_LOCK_POLL_S = 0.2
_MAX_NAME_CHARS = 100
# What each thread holds, or held when a Ctrl-C came between the lock and the block that it is for: whoever
# keeps that error keeps the lock, until the same thread asks for it again.
_locks: dict[tuple[Path, int], BaseFileLock] = {}


@dataclass(frozen=True)
class Entry:
    """A folder of the store, finished or not yet there."""

    path: Path

    def is_complete(self) -> bool:
        """True if the marker and all files that it lists are there, and no check found them damaged."""
        return self._is_whole() and not self.is_damaged

    @property
    def is_damaged(self) -> bool:
        """True if a check found a changed file; the entry is then made again when it is needed next."""
        try:
            return bool(self._marker().get("damaged", False))
        except (OSError, ValueError, AttributeError):
            return False

    def mark(self, *, damaged: bool) -> None:
        """Note that a check found this entry damaged, or intact after all.

        Raises:
            CacheError: The marker cannot be written.
        """
        with as_cache_error(self.path):
            fresh = self.path / f"{MARKER}{_TEMPORARY}{os.getpid()}"
            fresh.write_text(json.dumps({**self._marker(), "damaged": damaged}, indent=1), encoding="utf-8")
            fresh.replace(self.path / MARKER)

    def info(self) -> dict[str, Any]:
        """What the builder noted about this entry; empty if it is not there with all its files."""
        info = self._marker().get("info") if self._is_whole() else None
        return info if isinstance(info, dict) else {}

    def verify(self) -> None:
        """Read every file and compare it with its hash.

        Raises:
            ChecksumError: A file has changed or is missing.
        """
        try:
            files = self._marker()["files"]
        except (OSError, ValueError, KeyError) as exc:
            raise CacheError(f"{self.path} is not complete", path=self.path) from exc
        for name, facts in files.items():
            path = self.path / name
            actual = sha256(path) if path.is_file() else "no such file"
            if actual != facts["sha256"]:
                raise ChecksumError(
                    f"{path} has changed: its sha256 is {actual}, expected {facts['sha256']}",
                    hint="It is made again when the model is used next.",
                    expected=facts["sha256"],
                    actual=actual,
                    path=path,
                )

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def remove(self) -> None:
        """Delete the folder, if it is there. Refused outside the store."""
        if self.path == home() or not self.path.is_relative_to(home()) or ".." in self.path.parts:
            raise CacheError(f"{self.path} is not in the store {home()} and is not removed", path=self.path)
        if self.path.exists():
            with locked(self), as_cache_error(self.path):
                _discard(self.path)

    def _is_whole(self) -> bool:
        try:
            files = self._marker()["files"].items()
            return all((self.path / name).stat().st_size == facts["size_bytes"] for name, facts in files)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False

    def _marker(self) -> dict[str, Any]:
        marker: dict[str, Any] = json.loads((self.path / MARKER).read_text(encoding="utf-8"))
        return marker


def home() -> Path:
    """The folder that holds the store; it need not exist yet."""
    path: Path = settings.get("home")
    return path


def downloads() -> Path:
    """The folder for files that have not arrived completely; made if it is not there.

    Raises:
        CacheError: It cannot be made.
    """
    folder = home() / "downloads"
    with as_cache_error(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def entry(*parts: str) -> Entry:
    """The entry with these names, one folder level each; the names are made safe for every file system."""
    if not parts:
        raise OptionError("An entry of the store needs a name", name="parts", value=parts)
    return Entry(home().joinpath(*map(safe_name, parts)))


def safe_name(name: str) -> str:
    """A file name from any text: ASCII letters, digits, dot, underscore, hyphen.

    Where something had to be replaced, a few digits of a hash follow, so different names stay different.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    safe = re.sub(r"^\.+|\.+$", "_", safe)[:_MAX_NAME_CHARS]
    if safe == name and _TEMPORARY not in name and name:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe.replace(_TEMPORARY, '_')}-{digest}"


def entries(*, damaged: bool = False) -> list[Entry]:
    """All complete entries, in the order of their paths; with `damaged` also those marked as such."""
    found = (Entry(path.parent) for path in home().rglob(MARKER))
    return sorted(
        (
            e
            for e in found
            if _TEMPORARY not in str(e.path.relative_to(home()))
            and (e.is_complete() or (damaged and e.is_damaged))
        ),
        key=lambda e: e.path,
    )


@contextmanager
def building(
    entry: Entry,
    *,
    needed_bytes: int = 0,
    info: dict[str, Any] | None = None,
    timeout_s: float = _LOCK_TIMEOUT_S,
    on_wait: Callable[[str], None] | None = None,
) -> Iterator[Path | None]:
    """Build an entry: a fresh folder to fill, or None if it turns out to be complete.

    When the block ends the folder is sealed and moved into place; when it raises, the folder is removed.
    A second process that wants the same entry waits and then gets None.

    Args:
        entry: What to build.
        needed_bytes: Room that must be free before the work starts.
        info: What to note in the marker. It may still be changed inside the block.
        timeout_s: How long to wait for another process.
        on_wait: Called once with a sentence if there is somebody to wait for.

    Raises:
        CacheError: The store cannot be written, or the other process took too long.
        DiskSpaceError: There is no room, before or during the work.
    """
    with locked(entry, timeout_s=timeout_s, on_wait=on_wait):
        if entry.is_complete():
            yield None
            return
        with as_cache_error(entry.path):
            _sweep(entry)
            require_space(entry.path, needed_bytes)
            folder = _new_folder(entry)
        try:
            with as_space_error(entry.path, needed_bytes):
                yield folder
            with as_cache_error(entry.path):
                _seal(folder, info or {})
                _discard(entry.path)
                folder.rename(entry.path)
                _sync_folder(entry.path.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def named_owner(entry: Entry) -> Iterator[None]:
    """While we hold the lock of something that is not built in a folder, let waiters see who holds it."""
    name = _temporary_path(entry)
    with as_cache_error(entry.path):
        _sweep(entry)
        name.touch()
    try:
        yield
    finally:
        name.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(
    entry: Entry,
    *,
    timeout_s: float = _LOCK_TIMEOUT_S,
    on_wait: Callable[[str], None] | None = None,
    what: str | None = None,
) -> Iterator[None]:
    """Keep other processes from working on this entry; a process that dies lets go of it.

    Args:
        entry: What is worked on.
        timeout_s: How long to wait for another process.
        on_wait: Called once with a sentence if there is somebody to wait for.
        what: The name of the work in that sentence; by default that of the entry.

    Raises:
        CacheError: The lock cannot be made, or the other process took too long.
    """
    import filelock

    path = entry.path.with_name(entry.path.name + ".lock")
    mine = path, threading.get_ident()
    with as_cache_error(path):
        if (left := _locks.pop(mine, None)) is not None:
            left.release(force=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock: BaseFileLock = filelock.FileLock(path)
        _locks[mine] = lock
        try:
            _acquire(lock, entry, timeout_s, on_wait, what)
        except (OSError, NotImplementedError) as exc:
            if not has_no_flock(exc):
                raise
            warnings.warn(
                f"{path.parent} has no file locks ({exc}); a plain lock file is used instead", stacklevel=4
            )
            lock = _locks[mine] = filelock.SoftFileLock(path.with_suffix(".softlock"))
            _acquire(lock, entry, timeout_s, on_wait, what)
    try:
        yield
    finally:
        lock.release()
        if _locks.get(mine) is lock:
            del _locks[mine]


def _acquire(
    lock: BaseFileLock,
    entry: Entry,
    timeout_s: float,
    on_wait: Callable[[str], None] | None,
    what: str | None,
) -> None:
    import filelock

    deadline_s = time.monotonic() + timeout_s
    try:
        lock.acquire(timeout=min(1.0, timeout_s), poll_interval=_LOCK_POLL_S)
        return
    except filelock.Timeout:
        if on_wait is not None:
            on_wait(f"waiting for {_owner(entry)} to finish {what or entry.path.name}")
    try:
        lock.acquire(timeout=max(0.0, deadline_s - time.monotonic()), poll_interval=_LOCK_POLL_S)
    except filelock.Timeout as exc:
        raise CacheError(
            f"{_owner(entry)} still works on {entry.path} after {timeout_s:.0f} s",
            hint="Wait for it or end it, then try again.",
            path=entry.path,
        ) from exc


def _new_folder(entry: Entry) -> Path:
    folder = _temporary_path(entry)
    folder.mkdir()
    return folder


def _temporary_path(entry: Entry) -> Path:
    # only one is made at a time, so the process is name enough; it tells waiters whom they wait for
    return entry.path.with_name(f"{entry.path.name}{_TEMPORARY}{os.getpid()}")


def _temporary_pattern(entry: Entry) -> str:
    return glob.escape(f"{entry.path.name}{_TEMPORARY}") + "*"


def _owner(entry: Entry) -> str:
    """Who builds this entry, read from the name of its temporary folder."""
    for folder in entry.path.parent.glob(_temporary_pattern(entry)):
        return f"process {folder.name.rpartition(_TEMPORARY)[2]}"
    return "another process"


def _sweep(entry: Entry) -> None:
    # we hold the lock, so whoever made these is dead
    for folder in entry.path.parent.glob(_temporary_pattern(entry)):
        _discard(folder)


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _seal(folder: Path, info: dict[str, Any]) -> None:
    """Write sizes and hashes of all files into the marker, with everything on the disk before it."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / MARKER):
        with path.open("rb+" if os.name == "nt" else "rb") as file:  # Windows syncs only what it may write
            os.fsync(file.fileno())
        name = path.relative_to(folder).as_posix()
        files[name] = {"size_bytes": path.stat().st_size, "sha256": sha256(path)}
    with (folder / MARKER).open("w", encoding="utf-8") as file:
        json.dump({"files": files, "info": info}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    # Windows cannot open folders, some network disks cannot sync them
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
