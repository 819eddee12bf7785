"""Models from the Hugging Face hub: the files that one precision needs, downloaded once and kept.

The hub library lists, signs requests and opens connections; the bytes come through our own downloader,
because the library starts every file anew that an interrupted process left behind. Files lie in the hub's
own cache, where other programs find them. A note in our store says which files make up a model, so a
complete copy needs no request at all, and a repo that changes later does not change the model.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tinykit import hub_cache, store
from tinykit.errors import AccessError, ChecksumError, OfflineError, TinykitError
from tinykit.graph_data import unexplained_names
from tinykit.hub_files import check_family, choose_for, with_named_data
from tinykit.hub_listing import Listing, RemoteFile, access_error, endpoint, headers, list_repo, offline_error
from tinykit.model_files import FileChoice, onnx_choices
from tinykit.model_spec import HubSource
from tinykit.progress import Progress, Stage

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class HubCopy:
    """A complete copy of a model's files on this machine.

    Attributes:
        source: Where they came from.
        folder: The folder that holds them under the names they have in the repo.
        commit: The commit they are from.
        dtype: Their precision; `auto` if no name tells it.
        files: What is known of each file, by name.
        offered: All precisions of the repo, in the order to try them on a CPU; for the next try, if a graph
            that `auto` chose turns out not to run here.
    """

    source: HubSource
    folder: Path
    commit: str
    dtype: str
    files: Mapping[str, RemoteFile]
    offered: tuple[str, ...] = ()

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
        return all(_size(self.folder / name) == file.size_bytes for name, file in self.files.items())

    def verify(self) -> None:
        """Read every file and compare it with the hash that the hub gave for it.

        Raises:
            ChecksumError: A file has changed or is missing.
        """
        for name, file in self.files.items():
            path = self.folder / name
            actual = _hash(path, file) if path.is_file() else "no such file"
            if actual != file.checksum and (file.checksum or not path.is_file()):
                raise ChecksumError(
                    f"{path} has changed: its hash is {actual}, expected {file.checksum}",
                    hint="Fetch it again with: tinykit models download "
                    f"{self.source.name} --force --dtype {self.dtype}",
                    expected=file.checksum,
                    actual=actual,
                    path=path,
                )


@dataclass(frozen=True)
class Plan:
    """What a download would do, from one request for the list of files.

    Attributes:
        listing: All files of the repo.
        choice: Those that the model needs, as far as their names tell; a graph may name more.
        missing: Those of them that are not here.
    """

    listing: Listing
    choice: FileChoice
    missing: tuple[RemoteFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all the files that the model needs."""
        return sum(self.listing.files[name].size_bytes for name in self.choice.names)

    @property
    def download_bytes(self) -> int:
        """Bytes that have yet to arrive."""
        repo = self.listing.repo
        return sum(
            file.size_bytes - _arrived_bytes(repo, file)
            for file in self.missing
            if not _is_good(hub_cache.blob_path(repo, file.checksum), file)
        )


def locate(source: HubSource, dtype: str = "auto") -> HubCopy | None:
    """The complete copy of these files, if one is here; uses no network."""
    info = _note(source, dtype).info()
    try:
        commit = str(info["commit"])
        files = {name: RemoteFile(**facts) for name, facts in info["files"].items()}
        offered = tuple(info["offered"])
    except (KeyError, TypeError, AttributeError):
        return None
    folder = hub_cache.snapshot_folder(source.repo, commit)
    copy = HubCopy(source, folder, commit, str(info.get("dtype", dtype)), files, offered)
    return copy if copy.is_complete() else None


def plan(source: HubSource, dtype: str = "auto", *, check_hashes: bool = False) -> Plan:
    """Look up which files are needed and which of them are missing, and download nothing.

    Args:
        source: The repo.
        dtype: The precision to fetch.
        check_hashes: Count a file as missing also if its content is not what the hub has.

    Raises:
        OptionError: The repo has no such precision; the message lists those it has.
        UnsupportedModelError: It has no files that tinykit can use.
        SourceError: The repo cannot be listed (one of its kinds says why).
    """
    listing = list_repo(source)
    choice = choose_for(source, list(listing.files), dtype)
    check_family(listing, choice)
    files = [listing.files[name] for name in choice.names]
    missing = tuple(f for f in files if not _is_here(listing, f, check_hashes=check_hashes))
    return Plan(listing, choice, missing)


def fetch(
    source: HubSource,
    dtype: str = "auto",
    *,
    model: str | None = None,
    progress: Progress | None = None,
    offline: bool = False,
    force: bool = False,
) -> HubCopy:
    """The files of one precision of a model, downloaded if they are not here.

    Two processes that ask at once share one download. What has arrived survives Ctrl-C, a crash and a
    broken connection, and the next call goes on from there.

    Args:
        source: The repo.
        dtype: The precision to fetch; `auto` takes what suits a CPU best.
        model: Key of the model, for the progress.
        progress: Where to show the download.
        offline: True forbids the network.
        force: Ask the hub even if there is a complete copy: follow it to a newer commit, and fetch again
            what differs from it.

    Raises:
        OfflineError: The network is needed, and is forbidden or cannot be reached.
        NotFoundError: There is no such repo, revision or file.
        AccessError: It needs a login, or one's account may not read it.
        DownloadError: The hub refused, or the files did not arrive; its kinds say why.
        ChecksumError: Another file arrived.
        DiskSpaceError: There is no room for them.
        CacheError: The cache cannot be used.
        OptionError: The repo has no such precision; the message lists those it has.
        UnsupportedModelError: The repo has no files that tinykit can use.
    """
    found = None if force else locate(source, dtype)
    if found is not None:
        return found
    progress = progress or Progress()
    if offline:
        if force:
            raise offline_error(source)
        return _unlisted(source, dtype, offline_error(source))
    try:
        planned = plan(source, dtype, check_hashes=force)
    except OfflineError as exc:
        if force:
            raise
        return _unlisted(source, dtype, exc)
    if planned.missing or unexplained_names(list(planned.listing.files), planned.choice.graph):
        with hub_cache.repo_lock(source.repo, lambda text: progress.note(text, model=model)):
            planned = _fetch_missing(source, planned, progress, model, check_hashes=force)
    return _write_note(source, dtype, planned)


def forget(source: HubSource) -> bool:
    """Drop our notes about a repo; its files stay in the hub's cache. True if there were any."""
    notes = [entry for entry in store.entries() if entry.path.parent == _notes_folder(source)]
    for entry in notes:
        entry.remove()
    return bool(notes)


def copies(source: HubSource) -> list[HubCopy]:
    """All complete copies of a repo at this revision that we know of, one for each precision."""
    found: dict[str, HubCopy] = {}
    folder = _notes_folder(source)
    for entry in store.entries() if folder.is_dir() else ():
        if entry.path.parent == folder:
            copy = locate(source, str(entry.info().get("asked")))
            if copy is not None:
                found[copy.dtype] = copy
    return list(found.values())


def _unlisted(source: HubSource, dtype: str, error: OfflineError) -> HubCopy:
    """A copy that another program put into the hub's cache, when the hub cannot be asked for its files."""
    commit = hub_cache.known_commit(source.repo, source.revision)
    folder = hub_cache.snapshot_folder(source.repo, commit or "none")
    try:
        choice = choose_for(source, hub_cache.names_in(folder), dtype)
    except TinykitError:
        raise error from None
    choice = with_named_data(choice, hub_cache.names_in(folder), folder / choice.graph)
    files = {name: RemoteFile(name, (folder / name).stat().st_size) for name in choice.names}
    return HubCopy(source, folder, commit or "", choice.dtype, files)


def _fetch_missing(
    source: HubSource, planned: Plan, progress: Progress, model: str | None, *, check_hashes: bool
) -> Plan:
    """Download what is missing, then what only the graph names; returns the plan with all of it."""
    listing, choice, added = planned.listing, planned.choice, []
    for _ in range(2):
        # whoever held the lock before us may have fetched them
        files = [listing.files[name] for name in choice.names if name not in {file.name for file in added}]
        missing = [f for f in files if not _is_here(listing, f, check_hashes=check_hashes)]
        fetched = [f for f in missing if not _has_blob(source, f, check_hashes=check_hashes)]
        _download_all(source, listing.commit, fetched, progress, model)
        added += missing
        choice = with_named_data(choice, list(listing.files), _graph_path(listing, choice))
        if choice == planned.choice:
            break
    _add_all(source, listing.commit, added)
    return replace(planned, choice=choice)


def _graph_path(listing: Listing, choice: FileChoice) -> Path:
    """Where a graph is that has arrived: in the snapshot, or about to be linked there."""
    place = hub_cache.snapshot_folder(listing.repo, listing.commit) / choice.graph
    if place.is_file() or not choice.graph:
        return place
    return hub_cache.blob_path(listing.repo, listing.files[choice.graph].checksum)


def _download_all(
    source: HubSource, commit: str, files: list[RemoteFile], progress: Progress, model: str | None
) -> None:
    sizes = {file.name: (_arrived_bytes(source.repo, file), file.size_bytes) for file in files}
    total = sum(size for _, size in sizes.values())
    arrived = sum(part for part, _ in sizes.values())
    store.require_space(hub_cache.repo_folder(source.repo), total - arrived)
    if not files:
        return
    with progress.stage(
        source.name, total=total, unit="B", model=model, initial=arrived, files=sizes
    ) as stage:
        for file in files:
            _download(source, commit, file, stage)


def _add_all(source: HubSource, commit: str, files: list[RemoteFile]) -> None:
    """Let the files appear in the snapshot; all at once, so that a graph has its weights beside it."""
    with store.as_cache_error(hub_cache.repo_folder(source.repo)):
        for file in files:
            hub_cache.add_to_snapshot(source.repo, commit, file.name, file.checksum)
        hub_cache.note_commit(source.repo, source.revision, commit)


def _has_blob(source: HubSource, file: RemoteFile, *, check_hashes: bool) -> bool:
    return _is_good(hub_cache.blob_path(source.repo, file.checksum), file, check_hashes=check_hashes)


def _download(source: HubSource, commit: str, file: RemoteFile, stage: Stage) -> None:
    from huggingface_hub import constants, get_session, hf_hub_url

    from tinykit.download import Wanted, download

    wanted = Wanted(
        hf_hub_url(source.repo, file.name, revision=commit, endpoint=endpoint()),
        file.size_bytes,
        sha256=file.sha256,
        git_sha1=file.git_sha1,
        headers=headers(),
        timeout_s=constants.HF_HUB_DOWNLOAD_TIMEOUT,
        hint="Try again; if it stays so, the server or something before it changes files.",
    )
    part = hub_cache.part_path(source.repo, file.checksum)
    with stage.one_file(file.name) as counter, _disk_errors(part, file.size_bytes):
        try:
            download(get_session(), wanted, part, counter)
        except AccessError as exc:
            raise access_error(source, exc.status) from exc
        _sync(part)  # a machine that loses power must not find a whole file of zeros
        part.replace(hub_cache.blob_path(source.repo, file.checksum))


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def _disk_errors(part: Path, size_bytes: int) -> Iterator[None]:
    """Errors of writing as our own; on a full disk the part goes, so that there is room to do something."""
    try:
        yield
    except TinykitError:
        raise
    except OSError as exc:
        if exc.errno in _NO_SPACE:
            part.unlink(missing_ok=True)
            raise store.space_error(part, size_bytes) from exc
        with store.as_cache_error(part):
            raise


def _write_note(source: HubSource, dtype: str, planned: Plan) -> HubCopy:
    """Note the complete copy, under the precision that was asked for and under the one that it is."""
    files = {name: planned.listing.files[name] for name in planned.choice.names}
    offered = tuple(dict.fromkeys(choice.dtype for choice in onnx_choices(list(planned.listing.files))))
    info: dict[str, Any] = {
        "repo": source.repo,
        "revision": source.revision,
        "commit": planned.listing.commit,
        "dtype": planned.choice.dtype,
        "offered": offered,
        "files": {name: asdict(file) for name, file in files.items()},
    }
    for asked in {dtype, planned.choice.dtype}:
        entry = _note(source, asked)
        if entry.info().get("commit") != planned.listing.commit:
            entry.remove()
        with store.building(entry, info={**info, "asked": asked}):
            pass
    folder = hub_cache.snapshot_folder(source.repo, planned.listing.commit)
    return HubCopy(source, folder, planned.listing.commit, planned.choice.dtype, files, offered)


def _notes_folder(source: HubSource) -> Path:
    return store.entry("hub", source.name).path


def _note(source: HubSource, dtype: str) -> store.Entry:
    return store.entry("hub", source.name, f"{source.backend}-{dtype}")


def _is_here(listing: Listing, file: RemoteFile, *, check_hashes: bool = False) -> bool:
    path = hub_cache.snapshot_folder(listing.repo, listing.commit) / file.name
    return _is_good(path, file, check_hashes=check_hashes)


def _is_good(path: Path, file: RemoteFile, *, check_hashes: bool = False) -> bool:
    if _size(path) != file.size_bytes:
        return False
    return not check_hashes or _hash(path, file) == file.checksum


def _arrived_bytes(repo: str, file: RemoteFile) -> int:
    """How much of a file has arrived in an earlier try; a part that is too long is of no use."""
    size = _size(hub_cache.part_path(repo, file.checksum))
    return size if size is not None and size <= file.size_bytes else 0


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _hash(path: Path, file: RemoteFile) -> str:
    if file.sha256:
        return store.sha256(path)
    # the name of a Git blob is a hash of its size and content
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    digest.update(path.read_bytes())
    return digest.hexdigest()
