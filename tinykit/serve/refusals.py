"""Errors as the API has them: our classes become a status, and a body that its clients understand.

The form is that of https://platform.openai.com/docs/guides/error-codes/api-errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tinykit.errors import (
    BusyError,
    ClosedError,
    MissingPackageError,
    OptionError,
    PromptTooLongError,
    RestartNeededError,
    SourceError,
    TinykitError,
    UnknownModelError,
    UnsupportedModelError,
    WorkerError,
)

_MAX_CHARS = 1000  # messages quote what was sent, which may be megabytes
_BAD, _FAULT = "invalid_request_error", "server_error"


class RefusedError(TinykitError, PermissionError):
    """A request that is refused whatever it asks for.

    `status` is the one of HTTP, `code` a word for programs.
    """


class Refusal(NamedTuple):
    """What a client is answered: status, body, and headers beside the usual ones."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


# the first class that fits, its status, type and code
_KINDS: tuple[tuple[type[TinykitError], int, str, str], ...] = (
    (OptionError, 400, _BAD, "invalid_value"),
    (PromptTooLongError, 400, _BAD, "context_length_exceeded"),
    (UnknownModelError, 404, _BAD, "model_not_found"),
    (RefusedError, 400, _BAD, "refused"),
    (ClosedError, 503, _FAULT, "closing"),
    (RestartNeededError, 503, _FAULT, "restart_needed"),
    (BusyError, 429, _FAULT, "busy"),
    (WorkerError, 503, _FAULT, "worker_failed"),
    (SourceError, 503, _FAULT, "model_not_available"),
    (MissingPackageError, 501, _BAD, "missing_package"),
    (UnsupportedModelError, 501, _BAD, "unsupported_model"),
    (TinykitError, 500, _FAULT, "failed"),
)
_HEADERS = {
    401: {"WWW-Authenticate": 'Bearer realm="tinykit"'},
    429: {"Retry-After": "1"},
    503: {"Retry-After": "5"},
}


def refusal(error: Exception, names: Mapping[str, str] | None = None) -> Refusal:
    """The answer to a request that ended with `error`.

    Args:
        error: One of ours, or a fault, of which nothing is told but that it happened.
        names: How the request called our options; without, the error has the API's own.
    """
    if not isinstance(error, TinykitError):
        text = "This is a fault of tinykit; what the server has printed says more."
        return Refusal(500, _body(text, _FAULT, "internal_error", None), {})
    status, kind, code = next(row[1:] for row in _KINDS if isinstance(error, row[0]))
    status, code = getattr(error, "status", status), getattr(error, "code", code)
    kind = "rate_limit_error" if status == 429 else kind
    name = getattr(error, "name", None) if isinstance(error, OptionError) else None
    if names is not None and name is not None:
        name = names.get(name)
    text = f"{error.message} {error.hint}" if error.hint else error.message
    return Refusal(status, _body(text, kind, code, name), _HEADERS.get(status, {}))


def _body(message: str, kind: str, code: str, parameter: str | None) -> dict[str, Any]:
    shown = message if len(message) <= _MAX_CHARS else f"{message[: _MAX_CHARS - 1]}…"
    return {"error": {"message": shown, "type": kind, "param": parameter, "code": code}}
