"""One file over HTTP or from a file URL: resumed where an earlier try stopped, and checked by its hash."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tinykit.errors import ChecksumError, DownloadError, NotFoundError
from tinykit.pip_config import redact

if TYPE_CHECKING:
    import httpx2

    from tinykit.progress import Stage

_TRIES = 4  # the first and three more
_RETRY_PAUSE_S = 0.5


class _TryAgainError(Exception):
    """The transfer broke off; what arrived is kept."""


class _StartOverError(Exception):
    """What was kept from before is of no use; holds the error to raise if that happens again."""


@dataclass(frozen=True)
class Wanted:
    """A file to download and how to know that it is the right one.

    Attributes:
        url: Where it is; a password in it is used, but never shown.
        size_bytes: Its size.
        sha256: Its hash.
        magic: Its first bytes.
    """

    url: str
    size_bytes: int
    sha256: str
    magic: bytes = b""

    @property
    def shown_url(self) -> str:
        """The address without password and fragment."""
        return redact(self.url).partition("#")[0]


def download(client: httpx2.Client, wanted: Wanted, part: Path, stage: Stage) -> None:
    """Fill `part` with the whole file, going on from what it holds already.

    A transfer that breaks off is resumed up to three times; then the part is kept for the next call.
    A part that turns out to be wrong is removed.

    Raises:
        ChecksumError: The file is complete, but another one.
        NotFoundError: There is no such file.
        DownloadError: Anything else that the server or the network did.
    """
    import httpx2

    may_start_over = True
    pause_s, tries_left = _RETRY_PAUSE_S, _TRIES
    while True:
        is_resumed = part.exists() and part.stat().st_size > 0
        try:
            _try_once(client, wanted, part, stage)
            return
        except _StartOverError as exc:
            part.unlink(missing_ok=True)
            if not (is_resumed and may_start_over):
                assert exc.__cause__ is not None
                raise exc.__cause__ from None
            may_start_over = False
            stage.restart()
        except (_TryAgainError, httpx2.TransportError) as exc:
            tries_left -= 1
            if not tries_left:
                raise _broken_off(wanted, part, exc) from exc
            time.sleep(pause_s)
            pause_s *= 2


def _try_once(client: httpx2.Client, wanted: Wanted, part: Path, stage: Stage) -> None:
    digest, offset = _read_part(part)
    if offset > wanted.size_bytes:
        raise _StartOverError from _wrong_size(wanted, offset)
    if offset < wanted.size_bytes:
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={offset}-"} if offset else {})
        with client.stream("GET", wanted.url, headers=headers) as response:
            _check_status(response, wanted)
            if offset and response.status_code != 206:
                digest, offset = hashlib.sha256(), 0  # the server sends the whole file
                stage.restart()
            _check_headers(response, wanted, offset)
            _append(response, wanted, part, offset, digest, stage)
    if digest.hexdigest() != wanted.sha256:
        raise _StartOverError from _wrong_hash(wanted, digest.hexdigest(), part)


def _read_part(part: Path) -> tuple[hashlib._Hash, int]:
    if not part.exists():
        return hashlib.sha256(), 0
    with part.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return digest, file.tell()


def _append(
    response: httpx2.Response, wanted: Wanted, part: Path, offset: int, digest: hashlib._Hash, stage: Stage
) -> None:
    with part.open("ab" if offset else "wb") as file:
        # no chunk size: with one, what waits for a chunk to fill is lost when the transfer breaks off
        for chunk in response.iter_bytes():
            if offset == 0 and chunk[: len(wanted.magic)] != wanted.magic[: len(chunk)]:
                file.close()
                part.unlink()
                raise DownloadError(
                    f"{wanted.shown_url} is something else than expected", url=wanted.shown_url
                )
            file.write(chunk)
            digest.update(chunk)
            offset += len(chunk)
            stage.advance(len(chunk))
            if offset > wanted.size_bytes:
                break
    if offset < wanted.size_bytes:
        raise _TryAgainError(f"the connection closed after {offset:,} of {wanted.size_bytes:,} bytes")
    if offset > wanted.size_bytes:
        raise _StartOverError from _wrong_size(wanted, offset)


def _check_status(response: httpx2.Response, wanted: Wanted) -> None:
    status, url = response.status_code, wanted.shown_url
    if status in (200, 206):
        return
    error = DownloadError(f"{url} was refused with status {status}", url=url, status=status)
    if status == 416:
        raise _StartOverError from error
    if status in (404, 410):
        raise NotFoundError(
            f"There is no file at {url} (status {status})", url=url, package=None, version=None
        )
    if status in (408, 429) or status >= 500:
        raise _TryAgainError(f"the server answered with status {status}")
    raise error


def _check_headers(response: httpx2.Response, wanted: Wanted, offset: int) -> None:
    url = wanted.shown_url
    if response.headers.get("content-type", "").lower().startswith("text/html"):
        raise DownloadError(
            f"{url} is a web page instead of the file",
            hint="A login page or a proxy may stand in between; open the address in a browser to see.",
            url=url,
        )
    if offset and not response.headers.get("content-range", "").startswith(f"bytes {offset}-"):
        raise _StartOverError from DownloadError(f"{url} answered with another range than asked for", url=url)
    length = response.headers.get("content-length", "")
    if (
        length.isdigit()
        and offset + int(length) != wanted.size_bytes
        and "content-encoding" not in response.headers
    ):
        raise _StartOverError from _wrong_size(wanted, offset + int(length))


def _broken_off(wanted: Wanted, part: Path, exc: Exception) -> DownloadError:
    kept = f"{part.stat().st_size:,} bytes are kept" if part.exists() else "nothing has arrived"
    said = redact(str(exc)) or type(exc).__name__
    return DownloadError(
        f"The download of {wanted.shown_url} broke off {_TRIES} times: {said}; {kept}",
        hint="Try again: the download goes on where it stopped.",
        url=wanted.shown_url,
    )


def _wrong_size(wanted: Wanted, size_bytes: int) -> DownloadError:
    return DownloadError(
        f"{wanted.shown_url} has {size_bytes:,} bytes, expected {wanted.size_bytes:,}", url=wanted.shown_url
    )


def _wrong_hash(wanted: Wanted, actual: str, part: Path) -> ChecksumError:
    return ChecksumError(
        f"{wanted.shown_url} is not the expected file: its sha256 is {actual}, expected {wanted.sha256}",
        hint="Another index may have the right one: see PIP_INDEX_URL.",
        expected=wanted.sha256,
        actual=actual,
        path=part,
    )
