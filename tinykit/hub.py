"""Models from the Hugging Face hub: the files that one precision needs, downloaded once and kept.

The hub library lists, signs requests and opens connections; the bytes come through our own downloader,
because the library starts every file anew that an interrupted process left behind. Files lie in the hub's
own cache, where other programs find them. A note in our store says which files make up a model, so a
complete copy needs no request at all, and a repo that changes later does not change the model.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from tinykit import hub_cache, store
from tinykit.errors import (
    AccessError,
    NotFoundError,
    OfflineError,
    TinykitError,
    UnsupportedModelError,
)
from tinykit.graph_data import unexplained_names
from tinykit.hub_files import check_family, choose_for, with_named_data
from tinykit.hub_listing import (
    Listing,
    RemoteFile,
    access_error,
    endpoint,
    get_file,
    headers,
    list_repo,
    offline_error,
)
from tinykit.hub_notes import (
    HubCopy,
    copies,
    file_hash,
    file_size,
    forget,
    locate,
    mark,
    note,
    sources_here,
)
from tinykit.model_files import FileChoice, onnx_choices
from tinykit.model_spec import HubSource
from tinykit.progress import Progress, Stage

__all__ = [
    "HubCopy",
    "Plan",
    "copies",
    "fetch",
    "forget",
    "locate",
    "mark",
    "plan",
    "read_small",
    "sources_here",
]

_SMALL_BYTES = 2**20
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


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


def read_small(source: HubSource, listing: Listing, names: list[str], folder: Path) -> dict[str, Path]:
    """A few small files of a repo, such as its configuration, for a look: they are put into `folder`.

    Raises:
        SourceError: They cannot be had (one of its kinds says why).
    """
    found = {}
    for name in names:
        path = folder / PurePosixPath(name).name
        file = listing.files[name]
        if file.size_bytes <= _SMALL_BYTES:
            path.write_bytes(get_file(source, listing.commit, name))
            found[path.name] = path
    return found


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
    is_damaged = note(source, dtype).is_damaged
    check_hashes = force or is_damaged
    try:
        if offline:
            raise offline_error(source)
        planned = _plan_again(source, dtype) if is_damaged and not force else None
        planned = planned or plan(source, dtype, check_hashes=check_hashes)
    except OfflineError as exc:
        if check_hashes:
            if is_damaged:
                exc.add_note("The copy that is here is damaged, so it is not used.")
            raise
        return _unlisted(source, dtype, exc)
    _check_tokenizer(source, planned)
    if planned.missing or unexplained_names(list(planned.listing.files), planned.choice.graph):
        with hub_cache.repo_lock(source.repo, lambda text: progress.note(text, model=model)):
            planned = _fetch_missing(source, planned, progress, model, check_hashes=check_hashes)
    return _write_note(source, dtype, planned)


def _check_tokenizer(source: HubSource, planned: Plan) -> None:
    """Refuse a repo whose text cannot be turned into tokens before its weights are fetched."""
    names = planned.choice.names
    needs_one = source.backend == "onnx" and any(name.endswith((".onnx", ".safetensors")) for name in names)
    if needs_one and not any(PurePosixPath(name).name == "tokenizer.json" for name in names):
        raise UnsupportedModelError(
            f"{source.repo} has no tokenizer.json, so its text cannot be turned into tokens",
            hint="Look for another repo of the model, or put the file beside a copy of this one.",
            path=None,
            repo=source.repo,
        )


def _plan_again(source: HubSource, dtype: str) -> Plan | None:
    """What mends a damaged copy, from the commit that it is of; None if the hub has that no more."""
    commit = note(source, dtype).info().get("commit")
    try:
        return plan(replace(source, revision=commit), dtype, check_hashes=True) if commit else None
    except NotFoundError:
        return None


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
    listing, choice = planned.listing, planned.choice
    added: list[RemoteFile] = []
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
        "gguf": source.gguf,
        "commit": planned.listing.commit,
        "dtype": planned.choice.dtype,
        "offered": offered,
        "files": {name: asdict(file) for name, file in files.items()},
    }
    for asked in {dtype, planned.choice.dtype}:
        entry = note(source, asked)
        if entry.info().get("commit") != planned.listing.commit:
            entry.remove()
        with store.building(entry, info={**info, "asked": asked}):
            pass
    folder = hub_cache.snapshot_folder(source.repo, planned.listing.commit)
    copy = HubCopy(source, folder, planned.listing.commit, planned.choice.dtype, files, offered)
    mark(copy, damaged=False)
    return copy


def _is_here(listing: Listing, file: RemoteFile, *, check_hashes: bool = False) -> bool:
    path = hub_cache.snapshot_folder(listing.repo, listing.commit) / file.name
    return _is_good(path, file, check_hashes=check_hashes)


def _is_good(path: Path, file: RemoteFile, *, check_hashes: bool = False) -> bool:
    if file_size(path) != file.size_bytes:
        return False
    return not check_hashes or file_hash(path, file) == file.checksum


def _arrived_bytes(repo: str, file: RemoteFile) -> int:
    """How much of a file has arrived in an earlier try; a part that is too long is of no use."""
    size = file_size(hub_cache.part_path(repo, file.checksum))
    return size if size is not None and size <= file.size_bytes else 0
