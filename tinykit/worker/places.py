"""Where workers listen and log: a folder of the user's alone, on a path short enough for a socket."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

from tinykit import settings
from tinykit.errors import WorkerError
from tinykit.worker.transport import has_unix_sockets

# the structure that holds a socket's path has 104 bytes on macOS, 108 on Linux, and the last one is zero
_MAX_PATH_BYTES = 100
SHORT_NAME_CHARS = 16  # of a worker's files in that folder
_RETRY = "Set TINYKIT_WORKER_DIR to a folder of your own."


def runtime_dir() -> Path:
    """The folder for sockets, made if it is not there: the setting, the user's runtime folder, the cache.

    Where the path is too long for a socket, one below the temporary folder stands in, with a name that
    follows from the long one, so that all programs find the same.

    Raises:
        WorkerError: there is none that can be used; the message says why.
    """
    problems = []
    for folder in _candidates():
        try:
            return _private(_short(folder))
        except OSError as error:
            problems.append(f"{folder}: {error.strerror or error}")
    raise WorkerError(f"No folder for workers can be used: {'; '.join(problems)}.", hint=_RETRY)


def _candidates() -> list[Path]:
    if (given := settings.get("worker_dir")) is not None:
        return [given]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    below = Path(runtime) / "tinykit"
    found = [below] if runtime and Path(runtime).is_dir() else []
    return [*found, settings.get("home") / "run"]


def _short(folder: Path) -> Path:
    """The folder itself, or one with a short name in its place."""
    longest = len(os.fsencode(folder)) + 1 + SHORT_NAME_CHARS + len(".sock")
    if not has_unix_sockets() or longest <= _MAX_PATH_BYTES:
        return folder
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"tinykit-{os.getuid()}-{digest}"


def _private(folder: Path) -> Path:
    """The folder, made if need be, once it is sure that it is ours and closed to others."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name != "posix":
        return folder
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(0, "it is not a folder of this user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        folder.chmod(0o700)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(0, "it cannot be written")
    return folder


def log_path(name: str) -> Path:
    """The log of the worker of that name, in the cache."""
    folder: Path = settings.get("home") / "logs"
    return folder / f"worker-{name}.log"
