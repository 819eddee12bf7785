"""What we know of the copies of hub repos on this machine: one note in our store for each precision.

The files themselves lie in the hub's cache. A note says which of them make up a model, so that a complete
copy needs no request; without its note a copy is unknown to us, and stays where it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast, get_args

from tinykit import hub_cache, store
from tinykit.errors import CacheError, ChecksumError
from tinykit.hub_listing import RemoteFile
from tinykit.model_spec import WEIGHTS, BackendName, HubSource


@dataclass(frozen=True)
class HubCopy:
    """A copy of a model's files on this machine.

    Attributes:
        source: Where they came from.
        folder: The folder that holds them under the names they have in the repo.
        commit: The commit they are from.
        dtype: Their precision; `auto` if no name tells it, `weights` for float weights to work on.
        files: What is known of each file, by name.
        offered: All precisions of the repo, in the order to try them on a CPU; for the next try, if a graph
            that `auto` chose turns out not to run here.
        is_damaged: True if a check found a changed file, until it is fetched again; such a copy is not used.
    """

    source: HubSource
    folder: Path
    commit: str
    dtype: str
    files: Mapping[str, RemoteFile]
    offered: tuple[str, ...] = ()
    is_damaged: bool = False

    @property
    def path(self) -> Path:
        """What to open: the folder, or the GGUF file that is the whole model."""
        name = next(iter(self.files), "") if len(self.files) == 1 else ""
        return self.folder / name if name.endswith(".gguf") else self.folder

    @property
    def size_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(file.size_bytes for file in self.files.values())

    def is_complete(self) -> bool:
        """True if every file is there with its size."""
        return all(file_size(self.folder / name) == file.size_bytes for name, file in self.files.items())

    def verify(self) -> None:
        """Read every file and compare it with the hash that the hub gave for it.

        Raises:
            ChecksumError: A file has changed or is missing.
        """
        for name, file in self.files.items():
            path = self.folder / name
            actual = file_hash(path, file) if path.is_file() else "no such file"
            if actual != file.checksum and (file.checksum or not path.is_file()):
                raise ChecksumError(
                    f"{path} has changed: its hash is {actual}, expected {file.checksum}",
                    hint=self._mending(),
                    expected=file.checksum,
                    actual=actual,
                    path=path,
                )

    def _mending(self) -> str:
        if self.dtype == WEIGHTS:
            return "It is fetched again when the adapter is used or trained next."
        options = "" if self.source.backend == "onnx" else f" --backend {self.source.backend}"
        return (
            f"Fetch it again with: tinykit models download {self.source.name}{options} --dtype {self.dtype}"
        )


def locate(source: HubSource, dtype: str = "auto") -> HubCopy | None:
    """The complete copy of these files, if one is here; uses no network."""
    copy = _noted(source, note(source, dtype))
    return copy if copy is not None and not copy.is_damaged else None


def copies(source: HubSource) -> list[HubCopy]:
    """All copies of a repo at this revision that we know of, one for each precision; also damaged ones."""
    found: dict[str, HubCopy] = {}
    for entry in _notes(source):
        copy = _noted(source, entry)
        if copy is not None and (copy.dtype not in found or copy.is_damaged):
            found[copy.dtype] = copy
    return list(found.values())


def sources_here() -> list[HubSource]:
    """Every repo, at every revision and for every backend, of which there is a copy that we know of."""
    found: dict[HubSource, None] = {}
    folder = store.entry("hub").path
    for entry in store.entries(damaged=True) if folder.is_dir() else ():
        info, backend = entry.info(), entry.path.name.partition("-")[0]
        if entry.path.parent.parent == folder and "repo" in info and backend in get_args(BackendName):
            known = cast("BackendName", backend)
            gguf = str(info.get("gguf") or "")
            source = HubSource(str(info["repo"]), info.get("revision"), known, gguf=gguf)
            if _noted(source, entry) is not None:
                found[source] = None
    return list(found)


def forget(source: HubSource) -> bool:
    """Drop our notes about a repo; its files stay in the hub's cache. True if there were any."""
    notes = list(_notes(source))
    for entry in notes:
        entry.remove()
    return bool(notes)


def mark(copy: HubCopy, *, damaged: bool) -> None:
    """Note that a check found the copy damaged, or intact after all. What cannot be noted is left."""
    for entry in _notes(copy.source):
        info = entry.info()
        is_same = (info.get("dtype"), info.get("commit")) == (copy.dtype, copy.commit)
        if is_same and entry.is_damaged != damaged:
            with suppress(CacheError):
                entry.mark(damaged=damaged)


def note(source: HubSource, dtype: str) -> store.Entry:
    """Where in the store the note about these files is or will be."""
    return store.entry("hub", source.name, f"{source.backend}-{dtype.lower()}")


def file_size(path: Path) -> int | None:
    """Bytes of a file; None if it is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def file_hash(path: Path, file: RemoteFile) -> str:
    """The hash of a file, of the kind that the hub gives for this one."""
    if file.sha256:
        return store.sha256(path)
    # the name of a Git blob is a hash of its size and content
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    digest.update(path.read_bytes())
    return digest.hexdigest()


def _notes(source: HubSource) -> Iterator[store.Entry]:
    folder = store.entry("hub", source.name).path
    for entry in store.entries(damaged=True) if folder.is_dir() else ():
        if entry.path.parent == folder and entry.path.name.startswith(f"{source.backend}-"):
            yield entry


def _noted(source: HubSource, entry: store.Entry) -> HubCopy | None:
    """The copy that a note is about; None if it says nothing, or if nothing of the copy is here any more."""
    info = entry.info()
    try:
        commit = str(info["commit"])
        files = {name: RemoteFile(**facts) for name, facts in info["files"].items()}
        offered = tuple(info["offered"])
    except (KeyError, TypeError, AttributeError):
        return None
    folder = hub_cache.snapshot_folder(source.repo, commit)
    dtype = str(info.get("dtype", entry.path.name.partition("-")[2]))
    copy = HubCopy(source, folder, commit, dtype, files, offered, entry.is_damaged)
    if copy.is_complete():
        return copy
    is_here = any((folder / name).is_file() for name in files)
    return replace(copy, is_damaged=True) if is_here else None
