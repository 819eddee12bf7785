"""The Hugging Face hub's own cache on this machine: where its files are, and putting a file there.

The layout is the hub's documented one, which other programs share: `blobs/<hash>` holds the files, and
`snapshots/<commit>/<name>` leads to them, as a link where the file system has links. Nothing is ever
removed here but what we put here and did not finish.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from tinykit import store
from tinykit.errors import CacheError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_FLAGS = ("1", "ON", "YES", "TRUE")
_LOCK = "tinykit"


def cache_folder() -> Path:
    """The folder of the hub's cache, as HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME say right now."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if os.environ.get(variable):
            return _expanded(os.environ[variable])
    home = os.environ.get("HF_HOME")
    if home:
        return _expanded(home) / "hub"
    return _expanded(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface" / "hub"


def repo_folder(repo: str) -> Path:
    """The folder of one repo in the cache."""
    return cache_folder() / f"models--{repo.replace('/', '--')}"


def snapshot_folder(repo: str, commit: str) -> Path:
    """The folder that holds a repo's files as they were at a commit."""
    return repo_folder(repo) / "snapshots" / commit


def known_commit(repo: str, revision: str | None) -> str | None:
    """The commit that a branch or tag stood for when it was last looked up, without asking the hub."""
    revision = revision or "main"
    if _COMMIT.fullmatch(revision):
        return revision
    if ".." in PurePosixPath(revision).parts:
        return None
    with contextlib.suppress(OSError, ValueError):
        return (repo_folder(repo) / "refs" / revision).read_text(encoding="ascii").strip()
    return None


def names_in(folder: Path) -> list[str]:
    """Names of the files of a folder, also behind links, relative to it and with forward slashes."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def blob_path(repo: str, checksum: str) -> Path:
    """Where a file with this hash is or will be."""
    return repo_folder(repo) / "blobs" / checksum


def part_path(repo: str, checksum: str) -> Path:
    """Where what has arrived of a file is kept. The hub's tools count such files as unfinished downloads."""
    return blob_path(repo, f"{checksum}.tinykit.incomplete")


@contextmanager
def repo_lock(repo: str, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Keep other processes of ours from downloading files of this repo at the same time.

    Raises:
        CacheError: The cache cannot be written.
    """
    lock = store.Entry(cache_folder() / ".locks" / repo_folder(repo).name / _LOCK)
    with store.locked(lock, on_wait=on_wait, what=repo), store.named_owner(lock):
        with store.as_cache_error(repo_folder(repo)):
            (repo_folder(repo) / "blobs").mkdir(parents=True, exist_ok=True)
        yield


def add_to_snapshot(repo: str, commit: str, name: str, checksum: str) -> Path:
    """Make a finished file of the repo appear under its name at this commit.

    Raises:
        CacheError: The name would lead out of the cache.
    """
    folder = snapshot_folder(repo, commit)
    path = folder.joinpath(*PurePosixPath(name).parts)
    if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\\" in name:
        raise CacheError(f"The file name {name!r} leads out of the repo {repo}; it is not used", path=path)
    blob = blob_path(repo, checksum)
    if path.is_file() and path.resolve() == blob.resolve():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.incomplete")
    fresh.unlink(missing_ok=True)
    try:
        if os.environ.get("HF_HUB_DISABLE_SYMLINKS", "").upper() in _FLAGS:
            raise OSError
        fresh.symlink_to(os.path.relpath(blob, path.parent))
    except OSError:  # no symbolic links here, such as on Windows without developer mode
        _link_or_copy(blob, fresh)
    fresh.replace(path)
    return path


def note_commit(repo: str, revision: str | None, commit: str) -> None:
    """Note which commit a branch or tag stands for now, as the hub's own downloads do."""
    revision = revision or "main"
    path = repo_folder(repo) / "refs" / revision
    if not _COMMIT.fullmatch(revision) and ".." not in PurePosixPath(revision).parts:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit, encoding="ascii")


def _link_or_copy(blob: Path, path: Path) -> None:
    try:
        path.hardlink_to(blob)
    except OSError:
        shutil.copyfile(blob, path)


def _expanded(path: str) -> Path:
    return Path(os.path.expandvars(path)).expanduser().absolute()
