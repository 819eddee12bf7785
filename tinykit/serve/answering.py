"""One request from its turn to its last piece, made in threads and read in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from anyio import to_thread

from tinykit.errors import ClosedError
from tinykit.generation.result import Chunk, Completion
from tinykit.generation.stream import Stream
from tinykit.serve.options import ChatRequest
from tinykit.serve.turns import Turns, closing
from tinykit.session import TinySession


@dataclass(frozen=True)
class Piece:
    """What was said by the choice `index`, or its completion once it has ended."""

    index: int
    chunk: Chunk | None = None
    completion: Completion | None = None


class Answering:
    """Generates what a request asks for; several choices come one after the other.

    Its pieces wait in a queue for whoever sends them on, so that a client that reads slowly, or nothing,
    keeps nobody from the model. There are never more of them than tokens.
    """

    def __init__(self, session: TinySession, request: ChatRequest, turns: Turns) -> None:
        self._session = session
        self._request = request
        self._turns = turns
        self._stream: Stream | None = None
        self._is_cancelled = False
        self._queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()

    async def run(self) -> None:
        """Wait for a turn, then generate; whatever goes wrong is for `pieces` to raise."""
        loop = asyncio.get_running_loop()

        def tell(piece: Piece) -> None:
            loop.call_soon_threadsafe(self._queue.put_nowait, piece)

        try:
            async with self._turns.turn():
                for index in range(self._request.n):
                    await to_thread.run_sync(self._generate, index, tell)
        except Exception as error:
            self._queue.put_nowait(error)
        else:
            self._queue.put_nowait(None)

    async def pieces(self) -> AsyncGenerator[Piece]:
        """What `run` makes, as it is made.

        Raises: what `TinySession.stream` raises, RefusedError for a busy model, and ClosedError.
        """
        while (found := await self._queue.get()) is not None:
            if isinstance(found, Exception):
                raise found
            yield found

    def cancel(self) -> None:
        """Let the model stop now, also in the middle of a prompt."""
        self._is_cancelled = True
        if self._stream is not None:
            self._stream.cancel()

    def _generate(self, index: int, tell: Callable[[Piece], None]) -> None:
        """Make the choice `index` in a thread of its own, so that no step waits for the event loop."""
        request = self._request
        with self._session.stream(request.messages, **request.of_choice(index)) as stream:
            self._stream = stream
            if self._is_cancelled:  # asked for while there was no stream to hear it
                stream.cancel()
            for chunk in stream:
                tell(Piece(index, chunk))
            if stream.result.finish_reason == "cancelled":
                raise self._ended_early()
            tell(Piece(index, completion=stream.result))

    def _ended_early(self) -> ClosedError:
        return closing() if self._turns.is_closed else ClosedError("The answer was cancelled.")
