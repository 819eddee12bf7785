"""The endpoint itself: who may come in, what is where, and how an answer is sent.

Nothing here knows how the model works; it is asked through `TinySession`. There are no CORS headers: a web
page of another origin has no business here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tinykit.errors import OptionError, TinykitError, UnknownModelError
from tinykit.generation.result import Completion
from tinykit.loaded_model import Loaded
from tinykit.serve.access import is_our_name, is_token
from tinykit.serve.answering import Answering, Piece
from tinykit.serve.options import ChatRequest, chat_request
from tinykit.serve.refusals import Refusal, RefusedError, refusal
from tinykit.serve.turns import Turns
from tinykit.serve.wire import DONE, Tokens, Wire, as_json, event, model_object
from tinykit.session import TinySession

MAX_BODY_BYTES = 4 * 2**20
DEFAULT_WAITING = 16
_DRAIN_BYTES = 16 * MAX_BODY_BYTES  # of a body that is too large, so that its sender hears why
_BODY_S = 60.0  # for a whole body to arrive
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

_log = logging.getLogger(__name__)


class App:
    """The ASGI application over a session; the session stays the caller's.

    Args:
        session: What answers.
        token: What clients must send as ``Authorization: Bearer``.
        host: The name or address it is reached under, besides ``localhost`` and loopback addresses.
        is_remote: Whether it may be called by addresses of any kind.
        at_once: Requests that the model works on at the same time.
        waiting: Requests that wait; the next one is told that the model is busy.
    """

    def __init__(
        self,
        session: TinySession,
        *,
        token: str,
        host: str = "127.0.0.1",
        is_remote: bool = False,
        at_once: int = 1,
        waiting: int = DEFAULT_WAITING,
    ) -> None:
        self.model = session.spec.chat_model or session.spec.key
        self.turns = Turns(at_once=at_once, waiting=waiting)
        self._session = session
        self._token = token
        self._host = host
        self._is_remote = is_remote
        self._created = int(time.time())
        loaded: object = session.load()  # not a `Loaded` where the model is in another process
        self._tokens = Tokens(loaded.engine.tokenizer) if isinstance(loaded, Loaded) else None
        self._active: set[Answering] = set()
        self._inner: ASGIApp = Starlette(
            routes=[
                Route("/v1/models", self._models, methods=["GET"]),
                Route("/v1/models/{model:path}", self._model, methods=["GET"]),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _http_error, TinykitError: _error, Exception: _fault},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, if it may be made."""
        headers = dict(reversed(scope["headers"]))  # of several with one name, the first
        try:
            if not is_our_name(headers.get(b"host"), self._host, is_remote=self._is_remote):
                raise RefusedError(
                    "The Host header is none of this server's names.",
                    hint="Use its address, such as 127.0.0.1.",
                    status=403,
                    code="unknown_host",
                )
            if not is_token(headers.get(b"authorization"), self._token):
                raise RefusedError(
                    "The token is missing or wrong.",
                    hint="Send the one that the server has, as the API key: Authorization: Bearer TOKEN",
                    status=401,
                    code="invalid_api_key",
                )
        except RefusedError as error:
            await _response(error)(scope, receive, send)
        else:
            await self._inner(scope, receive, send)

    def close(self) -> None:
        """Send away who waits and comes; what is being answered goes on."""
        self.turns.close()

    def cancel(self) -> None:
        """End what is being answered."""
        for answering in list(self._active):
            answering.cancel()

    @property
    def active(self) -> int:
        """Requests that wait or are being answered."""
        return len(self._active)

    async def _models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [model_object(self.model, self._created)]})

    async def _model(self, request: Request) -> Response:
        self._check_model(request.path_params["model"])
        return _json(model_object(self.model, self._created))

    async def _chat(self, request: Request) -> ASGIApp:
        try:
            asked = _parsed(await _body(request))
        except ClientDisconnect:
            return _nothing
        self._check_model(asked.model)
        if self._tokens is None and "logprobs" in asked.options:
            raise OptionError(
                "logprobs cannot be given here: the model's vocabulary is in another process.",
                name="logprobs",
                value=True,
                code="unsupported_parameter",
            )
        return partial(self._answer, asked)

    def _check_model(self, model: str) -> None:
        if model != self.model:
            raise UnknownModelError(
                f"There is no model {model[:100]!r} here.",
                hint=f"This server has {self.model!r}.",
                model=model,
                nearest=(self.model,),
            )

    async def _answer(self, asked: ChatRequest, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate and send, until that is done or the client has gone."""
        answering = Answering(self._session, asked, self.turns)
        wire = Wire(self.model, self._tokens if "logprobs" in asked.options else None)
        self._active.add(answering)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(answering.run)
                group.start_soon(_watch, receive, answering, group.cancel_scope)
                async with aclosing(answering.pieces()) as pieces:
                    respond = _stream if asked.stream else _whole
                    response = await respond(asked, wire, pieces, send)
                    if response is not None:
                        await response(scope, receive, send)
                group.cancel_scope.cancel()
        finally:
            answering.cancel()
            self._active.discard(answering)


async def _watch(receive: Receive, answering: Answering, scope: anyio.CancelScope) -> None:
    """Cancel all once the client has gone: the model first, since it would be waited for."""
    while (await receive())["type"] != "http.disconnect":
        pass
    answering.cancel()
    scope.cancel()


async def _whole(asked: ChatRequest, wire: Wire, pieces: AsyncIterator[Piece], send: Send) -> Response:
    try:
        completions = [piece.completion async for piece in pieces if piece.completion is not None]
    except Exception as error:
        return _response(error, asked.names)
    return _json(wire.whole(completions))


async def _stream(
    asked: ChatRequest, wire: Wire, pieces: AsyncIterator[Piece], send: Send
) -> Response | None:
    """Send events as the pieces come; what goes wrong before the first one is an ordinary answer."""
    try:
        first = await anext(aiter(pieces))
    except Exception as error:
        return _response(error, asked.names)
    headers = {**_HEADERS, "Content-Type": "text/event-stream; charset=utf-8"}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": raw})
    try:
        async for data in _events(asked, wire, first, pieces):
            await send({"type": "http.response.body", "body": data, "more_body": True})
    except Exception as error:
        data = event(_refusal(error, asked.names).body)
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return None


async def _events(
    asked: ChatRequest, wire: Wire, first: Piece, pieces: AsyncIterator[Piece]
) -> AsyncIterator[bytes]:
    completions: list[Completion] = []
    begun: set[int] = set()
    # with usage asked for, every piece but the last has none
    extra: dict[str, Any] = {"usage": None} if asked.include_usage else {}
    piece: Piece | None = first
    while piece is not None:
        index, chunk = piece.index, piece.chunk
        if index not in begun:
            begun.add(index)
            yield event({**wire.piece(index, {"role": "assistant", "content": ""}), **extra})
        if chunk is not None and (chunk or chunk.logprobs):
            said = wire.piece(index, {"content": chunk.text}, logprobs=chunk.logprobs)
            yield event({**said, **extra})
        if piece.completion is not None:
            completions.append(piece.completion)
            yield event({**wire.piece(index, {}, finish_reason=piece.completion.finish_reason), **extra})
        piece = await anext(pieces, None)
    if asked.include_usage:
        yield event(wire.usage_piece(completions))
    yield DONE


async def _body(request: Request) -> bytes:
    """The body, if it is JSON of a sensible size.

    Raises:
        RefusedError: it is not, or takes too long to arrive.
        ClientDisconnect: whoever sends it has gone.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(
            "The body must be JSON.",
            hint="Send it with the header Content-Type: application/json",
            status=415,
            code="unsupported_media_type",
        )
    data, size = bytearray(), 0
    try:
        async with asyncio.timeout(_BODY_S):
            async for piece in request.stream():
                size += len(piece)
                if size <= MAX_BODY_BYTES:
                    data += piece
                elif size > _DRAIN_BYTES:
                    break
    except TimeoutError:
        raise RefusedError(
            f"The body did not arrive within {_BODY_S:.0f} seconds.", status=408, code="timeout"
        ) from None
    if size > MAX_BODY_BYTES:
        raise RefusedError(f"The body is larger than {MAX_BODY_BYTES:,} bytes.", status=413, code="too_large")
    return bytes(data)


def _parsed(body: bytes) -> ChatRequest:
    try:
        value = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise OptionError(
            f"The body is not valid JSON: {error}.", name="body", value=None, code="invalid_json"
        ) from error
    try:
        return chat_request(value)
    except RecursionError as error:
        raise OptionError("The body is nested too deeply.", name="body", value=None) from error


def _no_number(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def _json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(as_json(content), status, {**_HEADERS, **(headers or {})}, media_type="application/json")


def _refusal(error: Exception, names: Mapping[str, str] | None = None) -> Refusal:
    found = refusal(error, names)
    if found.status == 500:
        _log.error("A request failed.", exc_info=error)
    return found


def _response(error: Exception, names: Mapping[str, str] | None = None) -> Response:
    found = _refusal(error, names)
    return _json(found.body, found.status, found.headers)


async def _error(request: Request, error: Exception) -> Response:
    return _response(error)


async def _fault(request: Request, error: Exception) -> Response:
    """As `_error`; starlette raises it again, so that the server's log has it."""
    found = refusal(error)
    return _json(found.body, found.status)


async def _http_error(request: Request, error: Exception) -> Response:
    """What starlette itself refuses: a path or a method that there is not."""
    assert isinstance(error, HTTPException)
    what = f"There is no {request.method} {request.url.path[:100]} here."
    found = refusal(
        RefusedError(
            what,
            hint="There are /v1/models and /v1/chat/completions.",
            status=error.status_code,
            code="unknown_url" if error.status_code == 404 else "method_not_allowed",
        )
    )
    return _json(found.body, found.status, {**found.headers, **(error.headers or {})})


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """The answer to nobody."""
