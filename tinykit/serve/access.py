"""Who may come in: the token, the address to listen at, and the names that a request may call us by."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import socket
import sys
from pathlib import Path

from tinykit.errors import OptionError

VARIABLE = "TINYKIT_TOKEN"
_MIN_CHARS = 16
_MAX_BYTES = 4096


def find_token(file: str | Path | None = None) -> tuple[str, bool]:
    """The token, and whether it was made up now: from a file, else the variable, else a new one.

    Raises:
        OptionError: the file cannot be read, or what was given cannot be a token.
    """
    if file is not None:
        return _checked(_read(Path(file)), str(file)), False
    given = os.environ.get(VARIABLE, "").strip()
    return (
        (_checked(given, f"the variable {VARIABLE}"), False) if given else (secrets.token_urlsafe(32), True)
    )


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_MAX_BYTES + 1).decode("utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise OptionError(
            f"The token file {file} cannot be read: {reason}.", name="token", value=file
        ) from error


def _checked(token: str, where: str) -> str:
    is_word = token.isascii() and token.isprintable() and " " not in token
    if not is_word or not _MIN_CHARS <= len(token) <= _MAX_BYTES:
        raise OptionError(  # without the value, which is a secret
            f"The token in {where} must be one word of {_MIN_CHARS} to {_MAX_BYTES:,} ASCII characters.",
            hint='A good one: python -c "import secrets; print(secrets.token_urlsafe(32))"',
            name="token",
        )
    return token


def is_token(authorization: bytes | None, token: str) -> bool:
    """Whether the header is ``Bearer`` and the token; takes as long for every wrong one of its length."""
    scheme, _, given = (authorization or b"").partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), token.encode())


def listen(host: str, port: int, *, allow_remote: bool = False) -> socket.socket:
    """A socket that is bound, at a free port if `port` is 0.

    Raises:
        OptionError: the host is not this machine's own and `allow_remote` is False, or the port is taken.
    """
    if isinstance(port, bool) or not 0 <= port <= 65_535:
        raise OptionError(f"port must be a number from 0 to 65535, not {port!r}.", name="port", value=port)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, ValueError) as error:
        raise OptionError(f"There is no host {host!r}: {error}.", name="host", value=host) from error
    family, kind, protocol, _, address = found[0]
    if not allow_remote and not all(_is_loopback(str(one[4][0])) for one in found):
        raise OptionError(
            f"{host} can be reached from other machines, which would talk to the model unencrypted.",
            hint="Leave --host out, or add --allow-remote if that is what you want.",
            name="host",
            value=host,
        )
    bound = socket.socket(family, kind, protocol)
    try:
        if sys.platform != "win32":  # there it would share the port with another program
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise OptionError(
            f"Cannot listen at {host}, port {port}: {error.strerror or error}.",
            hint="Take another port: --port 0 finds a free one.",
            name="port",
            value=port,
        ) from error
    return bound


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def is_our_name(header: bytes | None, host: str, *, is_remote: bool = False) -> bool:
    """Whether a Host header names us by an address, as ``localhost``, or as we were told to listen.

    A web page can make its own name point to this machine (DNS rebinding), and then the browser takes us for
    the page's server; but it still calls us by that name. An address is no name that can be made to point.
    """
    text = (header or b"").decode("latin-1").lower()
    name = text[1:].partition("]")[0] if text.startswith("[") else text.partition(":")[0]
    if name in ("localhost", host.lower()):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return is_remote or address.is_loopback
