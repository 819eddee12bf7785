"""One answer that a worker makes, from its pieces to its completion."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from tinykit.answers import Asked
from tinykit.errors import TinykitError, WorkerError
from tinykit.generation.result import CancelledBy, Chunk, Completion, Timings, Usage
from tinykit.interrupts import keep_partial
from tinykit.worker.client import Call, WorkerLeft
from tinykit.worker.protocol import Message
from tinykit.worker.remote import RemoteModel
from tinykit.worker.wire import chunk_of, completion_of, options_values

_LAST_WORDS_S = 0.2  # how long an interrupted call waits for what there is so far


class RemoteRun:
    """A generation in a worker, from its pieces to its completion; asked for with the first of them.

    Not before: what reads the pieces cancels it in the end, and nothing else would.
    """

    def __init__(self, model: RemoteModel, asked: Asked) -> None:
        model.load()
        self.is_done = False
        self._model = model
        self._asked = asked
        self._call: Call | None = None
        self._called_s = time.perf_counter()
        self._first_s: float | None = None
        self._chunks: list[Chunk] = []
        self._completion: Completion | None = None
        self._cancelled_by: CancelledBy | None = None
        self._is_cancel_sent = False

    def result(self) -> Completion:
        """The completion; before the end, what has arrived so far."""
        if self._completion is not None:
            return self._completion
        token_ids = tuple(token for chunk in self._chunks for token in chunk.token_ids)
        total_s = time.perf_counter() - self._called_s
        first_s = None if self._first_s is None else self._first_s - self._called_s
        return Completion(
            "".join(self._chunks),
            token_ids,
            "cancelled",
            Usage(0, len(token_ids), 0),
            Timings(0.0, 0.0, first_s, 0.0, total_s),
            cancelled_by=self._cancelled_by,
            logprobs=tuple(one for chunk in self._chunks for one in chunk.logprobs),
        )

    def cancel(self, by: CancelledBy) -> None:
        """Let the worker end it."""
        if self._completion is not None:
            return
        self._cancelled_by = self._cancelled_by or by
        self.send_cancel()
        if by in ("close", "interrupt"):
            self._take_last_words()
            self.is_done = True

    def send_cancel(self) -> None:
        """Tell the worker, once; if it was not asked yet, it is told when it is."""
        if not self._is_cancel_sent and self._call is not None:
            self._call.cancel()
        self._is_cancel_sent = True

    def steps(self) -> Generator[Chunk]:
        """The pieces as they arrive."""
        try:
            yield from self._pieces()
        except (GeneratorExit, KeyboardInterrupt) as reason:
            self.cancel("close" if isinstance(reason, GeneratorExit) else "interrupt")
            if isinstance(reason, KeyboardInterrupt):
                keep_partial(reason, self.result(), is_told=True)
            raise
        except WorkerError as error:
            self.is_done = True
            self._model.failed(error)
            raise
        except TinykitError:
            self.is_done = True
            raise

    def _pieces(self) -> Generator[Chunk]:
        is_last = False
        for message in self._messages():
            if message.get("event") == "chunk":
                chunk = chunk_of(message["chunk"])
                is_last = self._heard(chunk)
                yield chunk
            elif "event" in message:
                self._model.on_event(message)
            else:
                self._finish(message["result"])
                if not is_last:
                    yield Chunk("", is_last=True)

    def _messages(self) -> Generator[Message]:
        """Everything up to the answer; asked again if the worker was about to end when we asked."""
        try:
            yield from self._asked_now().events()
        except WorkerLeft:
            yield from self._asked_now().events()

    def _asked_now(self) -> Call:
        self._called_s = time.perf_counter()
        self._call = self._model.new_call()
        self._call.send("answer", answer_params(self._asked))
        if self._is_cancel_sent:
            self._call.cancel()
        return self._call

    def _heard(self, chunk: Chunk) -> bool:
        if chunk.token_ids and self._first_s is None:
            self._first_s = time.perf_counter()
        self._chunks.append(chunk)
        return chunk.is_last

    def _finish(self, result: dict[str, Any]) -> None:
        found = completion_of(result["completion"], self._asked.options.constraint)
        self._completion = _cancelled_as(found, self._cancelled_by)
        self._model.succeeded()
        self.is_done = True

    def _take_last_words(self) -> None:
        """What has been said by now, if the worker tells soon."""
        deadline_s = time.monotonic() + _LAST_WORDS_S
        with contextlib.suppress(TinykitError):
            while self._call and self._completion is None and (left_s := deadline_s - time.monotonic()) > 0:
                message = self._call.next(left_s)
                if message is not None and "result" in message:
                    self._finish(message["result"])
                elif message is not None and message.get("event") == "chunk":
                    self._heard(chunk_of(message["chunk"]))


def _cancelled_as(completion: Completion, by: CancelledBy | None) -> Completion:
    """The completion with the reason as it is here: to the worker an interrupt is a cancel."""
    if completion.cancelled_by == "cancel" and by is not None:
        return replace(completion, cancelled_by=by)
    return completion


def answer_params(asked: Asked) -> dict[str, Any]:
    """A prompt with its options as a request."""
    return {
        "turns": [list(turn) for turn in asked.turns],
        "options": options_values(asked.options),
        "slot": asked.slot,
        "reuse": asked.reuse,
        "timeout_s": asked.options.timeout_s,
    }
