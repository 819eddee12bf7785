"""What the hub says about a repo: its files with sizes and hashes, in one request; and its refusals."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tinykit.errors import (
    AccessError,
    DownloadError,
    NotFoundError,
    OfflineError,
    OptionError,
    SourceError,
    WrongContentError,
)
from tinykit.model_spec import HubSource
from tinykit.pip_config import redact

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

_TIMEOUT_S = 30.0
_SHORT_S = 10.0  # for a question that somebody waits for
_TRIES = 3
_RETRY_PAUSE_S = 0.5
_MAX_NEAREST = 3
_MAX_REVISIONS = 10


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repo: its name, size, and SHA-256 or else its name in Git."""

    name: str
    size_bytes: int
    sha256: str = ""
    git_sha1: str = ""

    @property
    def checksum(self) -> str:
        """The hash it is stored under."""
        return self.sha256 or self.git_sha1


@dataclass(frozen=True)
class Listing:
    """The files of a repo at one commit, and the architecture of its GGUF files if the hub tells it."""

    repo: str
    commit: str
    files: Mapping[str, RemoteFile]
    gguf_family: str = ""


def endpoint() -> str:
    """Address of the hub: HF_ENDPOINT, or the public one."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").strip().rstrip("/")


def shown_endpoint() -> str:
    """The same without a password."""
    return redact(endpoint())


def list_repo(source: HubSource) -> Listing:
    """The files of a repo at its revision.

    Raises:
        OfflineError: The hub cannot be reached.
        NotFoundError: There is no such repo or revision; `.nearest` holds names that look alike.
        AccessError: It needs a login, or one's account may not see it.
        ProxyError, CertificateError: Something between here and the hub refused.
        WrongContentError: What answers there is not a hub.
        DownloadError: The hub is out of order.
        OptionError: That is no name of a repo.
    """
    with translated(source):
        for tries_left in reversed(range(_TRIES)):
            try:
                return _listing(source, _get(_address(source), blobs="true"))
            except Exception as exc:
                if not (tries_left and _may_pass(exc)):
                    raise
                time.sleep(_RETRY_PAUSE_S)
    raise AssertionError("the last try returns or raises")


def time_answer() -> float:
    """Seconds until the hub has answered a small question, once.

    Raises:
        OfflineError, ProxyError, CertificateError: It cannot be reached.
        WrongContentError: What answers there is not a hub.
        DownloadError: The hub is out of order, or refuses everybody.
    """
    from huggingface_hub import get_session

    started = time.perf_counter()
    with translated(HubSource("models")):
        address = f"{endpoint()}/api/models"
        response = get_session().get(address, params={"limit": "1"}, headers=headers(), timeout=_SHORT_S)
        if response.status_code != 200:
            status = response.status_code
            raise DownloadError(
                f"{shown_endpoint()} answers with status {status}", url=shown_endpoint(), status=status
            )
        if not isinstance(response.json(), list):
            raise TypeError("no list")
    return time.perf_counter() - started


def get_file(source: HubSource, commit: str, name: str) -> bytes:
    """The content of a small file of a repo.

    Raises:
        SourceError: It cannot be had (one of its kinds says why).
    """
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import hf_raise_for_status

    with translated(source):
        address = hf_hub_url(source.repo, name, revision=commit, endpoint=endpoint())
        response = get_session().get(address, headers=headers(), timeout=_TIMEOUT_S, follow_redirects=True)
        hf_raise_for_status(response)
        return bytes(response.content)


@contextmanager
def translated(source: HubSource) -> Iterator[None]:
    """Turn what huggingface_hub and the network raise into our errors, without tokens and passwords."""
    import httpx2
    from huggingface_hub import errors

    from tinykit.download import raise_refusal

    try:
        yield
    except SourceError:
        raise
    except errors.OfflineModeIsEnabled as exc:
        raise offline_error(source) from exc
    except errors.HFValidationError as exc:
        raise OptionError(
            f"{source.repo!r} cannot be a repo: {exc}",
            hint="A repo is written owner/name.",
            name="repo",
            value=source.repo,
        ) from exc
    except errors.HfHubHTTPError as exc:
        raise _refused(source, exc) from None  # its text may hold more of the request than is good to show
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as exc:
        raise OptionError(
            f"HF_ENDPOINT is {shown_endpoint()!r}, which is no address: {redact(str(exc))}",
            hint="Unset it, or set it to an address such as https://huggingface.co",
            name="HF_ENDPOINT", value=shown_endpoint(),
        ) from exc  # fmt: skip
    except httpx2.TransportError as exc:
        raise_refusal(exc, shown_endpoint())
        raise OfflineError(
            f"{shown_endpoint()} cannot be reached: {redact(str(exc)) or type(exc).__name__}",
            hint=f"Check the network, or fetch {source.repo} on another machine and copy its folder here.",
            repo=source.repo,
        ) from exc
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise WrongContentError(
            f"{shown_endpoint()} does not answer as a hub does: a web page or something else came instead of "
            f"the list of files of {source.repo}",
            hint="A login page or a proxy may stand in between; HF_ENDPOINT sets the address.",
            url=shown_endpoint(),
        ) from exc


def offline_error(source: HubSource) -> OfflineError:
    """The error for files that are not here while the network is switched off."""
    return OfflineError(
        f"{source.name} is not on this machine, and the network is switched off",
        hint="Unset TINYKIT_OFFLINE and HF_HUB_OFFLINE to download it.",
        repo=source.repo,
    )


def access_error(source: HubSource, status: int | None) -> AccessError:
    """The error for a repo that wants a login (401), or that one's account may not read (403)."""
    page = f"{shown_endpoint()}/{source.repo}"
    if status == 401 and not _token():
        message = f"{source.repo} does not exist, or is only for people who have logged in (status 401)"
        hint = f"Open {page}, accept its terms if it has any, then run: hf auth login (or set HF_TOKEN)."
    elif status == 401:
        message = f"{shown_endpoint()} does not accept the token that is set, for {source.repo} (status 401)"
        hint = "Make a new one on the hub's settings page, then run: hf auth login (or set HF_TOKEN)."
    else:
        message = f"Your account is not allowed to read {source.repo} (status {status})"
        hint = f"Open {page} and ask for access; a token must be allowed to read gated repos."
        if not _token():
            hint += " Then run: hf auth login (or set HF_TOKEN)."
    return AccessError(message, hint=hint, repo=source.repo, status=status, url=page)


def headers() -> dict[str, str]:
    """Headers of a request to the hub, with the user's token if there is one."""
    from tinykit import __version__

    token = _token()
    return {"user-agent": f"tinykit/{__version__}"} | ({"authorization": f"Bearer {token}"} if token else {})


def _token() -> str | None:
    from huggingface_hub import constants, get_token

    return None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()


def _get(path: str, **parameters: str) -> Any:
    """An answer of the hub's API.

    The library's own calls would first look up which program runs them, with a request of their own.
    """
    from huggingface_hub import get_session
    from huggingface_hub.utils import hf_raise_for_status

    response = get_session().get(
        f"{endpoint()}/api/models{path}", params=parameters, headers=headers(), timeout=_TIMEOUT_S
    )
    hf_raise_for_status(response)
    return response.json()


def _address(source: HubSource) -> str:
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(source.repo)
    return f"/{source.repo}/revision/{quote(source.revision or 'main', safe='')}"


def _listing(source: HubSource, info: Any) -> Listing:
    """The answer as a listing; an answer of another shape raises an error that `translated` knows."""
    files = {}
    for sibling in info["siblings"]:
        name, lfs = sibling["rfilename"], sibling.get("lfs")
        if ".." in name.split("/"):  # would lead out of the cache
            continue
        checksum = {"sha256": lfs["sha256"]} if lfs else {"git_sha1": sibling["blobId"]}
        files[name] = RemoteFile(name, int((lfs or sibling)["size"]), **checksum)
    family = (info.get("gguf") or {}).get("architecture")
    return Listing(source.repo, str(info["sha"]), files, str(family or ""))


def _may_pass(exc: Exception) -> bool:
    """True for failures that may be over in a moment."""
    import httpx2

    status = getattr(getattr(exc, "response", None), "status_code", None)
    if status is not None:
        return status in (408, 429) or status >= 500
    return isinstance(exc, httpx2.ReadError | httpx2.RemoteProtocolError | httpx2.TimeoutException)


def _refused(source: HubSource, exc: HfHubHTTPError) -> SourceError:
    from huggingface_hub import errors

    status = exc.response.status_code
    if isinstance(exc, errors.RevisionNotFoundError):
        return _no_revision(source)
    if isinstance(exc, errors.GatedRepoError) or status == 403 or (status == 401 and _token()):
        return access_error(source, status)
    if status == 401:  # without a login the hub says this also of repos that are not there
        error = access_error(source, status)
        mean = _did_you_mean(_near_repos(source))
        return AccessError(error.message, hint=f"{mean}{error.hint}", **error._facts)
    if status in (404, 410):
        nearest = _near_repos(source)
        return NotFoundError(
            f"There is no repo {source.repo} on {shown_endpoint()} (status {status})",
            hint=f"{_did_you_mean(nearest)}Private repos need a login: hf auth login",
            repo=source.repo, revision=source.revision, nearest=nearest,
        )  # fmt: skip
    return DownloadError(
        f"{shown_endpoint()} did not list {source.repo}: status {status}",
        hint="Try again in a while." if status == 429 or status >= 500 else None,
        url=shown_endpoint(), status=status,
    )  # fmt: skip


def _no_revision(source: HubSource) -> NotFoundError:
    there = _revisions(source)
    nearest = _near(source.revision or "", there)
    ordered = list(dict.fromkeys((*nearest, *there)))
    more = len(ordered) - _MAX_REVISIONS
    shown = ", ".join(ordered[:_MAX_REVISIONS]) + (f" and {more} more" if more > 0 else "")
    return NotFoundError(
        f"{source.repo} has no revision {source.revision!r}",
        hint=f"It has: {shown}. Or leave it out for the newest." if shown else "Leave it out for the newest.",
        repo=source.repo, revision=source.revision, nearest=nearest, revisions=tuple(there),
    )  # fmt: skip


def _did_you_mean(nearest: list[str]) -> str:
    return f"Did you mean {' or '.join(nearest)}? " if nearest else ""


def _near_repos(source: HubSource) -> list[str]:
    """Repos that might be meant, of known models or found by the hub; never the one that was asked for."""
    from tinykit.registry import MODELS

    known = [s.repo for spec in MODELS.values() for s in spec.sources if isinstance(s, HubSource)]
    found: list[str] = []
    with suppress(Exception):  # only to help; the first error counts
        found = [str(model["id"]) for model in _get("", search=source.repo.partition("/")[2], limit="20")]
    return _near(source.repo, [name for name in (*known, *found) if name != source.repo])


def _revisions(source: HubSource) -> list[str]:
    """Branches and tags of a repo, as far as the hub tells."""
    try:
        refs = _get(f"/{source.repo}/refs")
        return [str(ref["name"]) for ref in (*refs["branches"], *refs["tags"])]
    except Exception:  # only to help; the first error counts
        return []


def _near(name: str, names: list[str]) -> list[str]:
    by_lower = {other.lower(): other for other in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=_MAX_NEAREST, cutoff=0.6)
    return [by_lower[other] for other in near]
