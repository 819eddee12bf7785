"""One file over HTTP or from a file URL: resumed where an earlier try stopped, and checked by its hash.

Whatever is not the file is refused before it is kept: a web page, a pointer of Git LFS, another size.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tinykit.errors import (
    AccessError,
    CertificateError,
    ChecksumError,
    DownloadError,
    NotFoundError,
    ProxyError,
    TruncatedError,
    WrongContentError,
)
from tinykit.pip_config import redact

if TYPE_CHECKING:
    import httpx2

_TRIES = 4  # the first and three more
_RETRY_PAUSE_S = 0.5
_CHUNK_BYTES = 2**20
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_WEB_PAGES = (b"<!doctype html", b"<html")


class Counter(Protocol):
    """What is told about bytes that arrive: a stage of the progress, or one file of it."""

    def advance(self, amount: int) -> None:
        """Count bytes that arrived."""

    def restart(self) -> None:
        """Count from zero again."""


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
        git_sha1: Its name in a Git repo, for a file whose SHA-256 is not known.
        magic: Its first bytes.
        headers: More headers for the request.
        timeout_s: How long the server may be silent; None leaves it to the client.
        hint: What to do if it is another file than expected.
    """

    url: str
    size_bytes: int
    sha256: str = ""
    magic: bytes = b""
    git_sha1: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float | None = None
    hint: str = "Another index may have the right one: see PIP_INDEX_URL."

    @property
    def shown_url(self) -> str:
        """The address without password and fragment."""
        return redact(self.url).partition("#")[0]

    @property
    def checksum(self) -> str:
        """The hash that the file must have; empty if none is known."""
        return self.sha256 or self.git_sha1

    def new_digest(self) -> hashlib._Hash:
        """A digest that gives `checksum` once it has read the file."""
        if self.sha256 or not self.git_sha1:
            return hashlib.sha256()
        # the name of a Git blob is a hash of its size and content
        return hashlib.sha1(f"blob {self.size_bytes}\0".encode(), usedforsecurity=False)


def download(client: httpx2.Client, wanted: Wanted, part: Path, stage: Counter) -> None:
    """Fill `part` with the whole file, going on from what it holds already.

    A transfer that breaks off is resumed up to three times; then the part is kept for the next call.
    A part that turns out to be wrong is removed.

    Raises:
        ChecksumError: The file is complete, but another one.
        WrongContentError: It is something else, such as a web page.
        NotFoundError: There is no such file.
        AccessError: One must log in for it, or is not allowed to have it.
        ProxyError: A proxy refused.
        CertificateError: The server's certificate is not trusted.
        TruncatedError: The transfer broke off again and again.
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
            if isinstance(exc, httpx2.TransportError):
                raise_refusal(exc, wanted.shown_url)
            tries_left -= 1
            if not tries_left:
                raise _broken_off(wanted, part, exc) from exc
            time.sleep(pause_s)
            pause_s *= 2


def raise_refusal(exc: httpx2.TransportError, url: str) -> None:
    """Raise what a proxy or a certificate did; other failures of the network may pass by themselves."""
    import httpx2

    said = redact(str(exc)) or type(exc).__name__
    if "CERTIFICATE_VERIFY_FAILED" in said or "SSL:" in said.upper():
        raise CertificateError(
            f"The connection to {url} is not trusted: {said}",
            hint="Let SSL_CERT_FILE name your organization's certificates, or ask who runs the network.",
            url=url,
        ) from exc
    if isinstance(exc, httpx2.ProxyError):
        raise ProxyError(
            f"The proxy does not let us through to {url}: {said}",
            hint="Check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY.",
            url=url,
        ) from exc


def _try_once(client: httpx2.Client, wanted: Wanted, part: Path, stage: Counter) -> None:
    digest, offset = _read_part(wanted, part)
    if offset > wanted.size_bytes:
        raise _StartOverError from _wrong_size(wanted, offset)
    if offset < wanted.size_bytes:
        headers = {**wanted.headers, "Accept-Encoding": "identity"}
        headers |= {"Range": f"bytes={offset}-"} if offset else {}
        timeout = client.timeout if wanted.timeout_s is None else wanted.timeout_s
        with client.stream(
            "GET", wanted.url, headers=headers, timeout=timeout, follow_redirects=True
        ) as response:
            _check_status(response, wanted)
            if offset and response.status_code != 206:
                digest, offset = wanted.new_digest(), 0  # the server sends the whole file
                stage.restart()
            _check_headers(response, wanted, offset)
            _append(response, wanted, part, offset, digest, stage)
    if wanted.checksum and digest.hexdigest() != wanted.checksum:
        raise _StartOverError from _wrong_hash(wanted, digest.hexdigest(), part)


def _read_part(wanted: Wanted, part: Path) -> tuple[hashlib._Hash, int]:
    digest, size_bytes = wanted.new_digest(), 0
    if part.exists():
        with part.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                size_bytes += len(chunk)
    return digest, size_bytes


def _append(
    response: httpx2.Response, wanted: Wanted, part: Path, offset: int, digest: hashlib._Hash, stage: Counter
) -> None:
    with part.open("ab" if offset else "wb") as file:
        # no chunk size: with one, what waits for a chunk to fill is lost when the transfer breaks off
        for chunk in response.iter_bytes():
            if offset == 0 and (error := _strange_start(wanted, chunk)):
                file.close()
                part.unlink()
                raise error
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


def _strange_start(wanted: Wanted, start: bytes) -> WrongContentError | None:
    """The error for a body that begins with something else than the file."""
    url = wanted.shown_url
    if start[: len(_LFS_POINTER)] == _LFS_POINTER:
        return WrongContentError(
            f"{url} is a pointer of Git LFS instead of the file",
            hint="The server does not have the file itself; its owner must upload it with Git LFS.",
            url=url,
        )
    if start.lstrip()[:14].lower().startswith(_WEB_PAGES):
        return _web_page(url)
    if start[: len(wanted.magic)] != wanted.magic[: len(start)]:
        return WrongContentError(f"{url} is something else than expected", url=url)
    return None


def _web_page(url: str) -> WrongContentError:
    return WrongContentError(
        f"{url} is a web page instead of the file",
        hint="A login page or a proxy may stand in between; open the address in a browser to see.",
        url=url,
    )


def _check_status(response: httpx2.Response, wanted: Wanted) -> None:
    status, url = response.status_code, wanted.shown_url
    if status in (200, 206):
        return
    kind = AccessError if status in (401, 403) else DownloadError
    error = kind(f"{url} was refused with status {status}", url=url, status=status)
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
        raise _web_page(url)
    if offset and not response.headers.get("content-range", "").startswith(f"bytes {offset}-"):
        raise _StartOverError from DownloadError(f"{url} answered with another range than asked for", url=url)
    length = response.headers.get("content-length", "")
    if (
        length.isdigit()
        and offset + int(length) != wanted.size_bytes
        and "content-encoding" not in response.headers
    ):
        start = next(response.iter_bytes(), b"") if offset == 0 else b""
        raise _StartOverError from (
            _strange_start(wanted, start) or _wrong_size(wanted, offset + int(length))
        )


def _broken_off(wanted: Wanted, part: Path, exc: Exception) -> TruncatedError:
    kept = f"{part.stat().st_size:,} bytes are kept" if part.exists() else "nothing has arrived"
    said = redact(str(exc)) or type(exc).__name__
    return TruncatedError(
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
        f"{wanted.shown_url} is not the expected file: its hash is {actual}, expected {wanted.checksum}",
        hint=wanted.hint,
        expected=wanted.checksum,
        actual=actual,
        path=part,
    )
