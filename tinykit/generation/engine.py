"""The decode loop: prefill, pick, stop, one token after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from tinykit.backends.base import Backend, Logits, State
from tinykit.errors import BackendError, PromptTooLongError
from tinykit.generation.cache import PrefixCache
from tinykit.generation.request import Chunk, Completion, FinishReason, Request, Timings, Usage
from tinykit.generation.stopping import StopStrings
from tinykit.tokenizer import Detokenizer, Tokenizer

# Long prompts go in by pieces, so that Ctrl-C is heard between two of them (some 60 ms for the default model
# on two cores); per token this is no slower than one long call.
PREFILL_CHUNK_TOKENS = 128


class Engine:
    """Generates from one loaded model, one request at a time; callable from several threads."""

    def __init__(
        self, backend: Backend, tokenizer: Tokenizer, eos_ids: Sequence[int], *, cache_bytes: int
    ) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self.eos_ids = frozenset(eos_ids)
        self.cache = PrefixCache(backend, cache_bytes)
        self._lock = threading.Lock()
        self._owner: int | None = None  # the thread whose request is running

    def generate(self, request: Request) -> Completion:
        """Run `request` to its end.

        Raises:
            PromptTooLongError: the prompt leaves no room in the model's context.
            KeyboardInterrupt: Ctrl-C; the engine stays usable.
        """
        run = _Run(self, request)
        for _ in run:
            pass
        return run.result()

    def stream(self, request: Request) -> Iterator[Chunk]:
        """The same, piece by piece."""
        return iter(_Run(self, request))

    def close(self) -> None:
        """Release the model."""
        with self.turn():
            self.cache.clear()
            self.backend.close()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until no other thread uses the model, and hold it.

        Raises:
            BackendError: this thread has an open stream of the same model, so waiting would never end.
        """
        if self._owner == threading.get_ident():
            raise BackendError(
                "A stream of this model is still open in this thread.",
                hint="Read it to its end or close it before the next call.",
            )
        with self._lock:
            self._owner = threading.get_ident()
            try:
                yield
            finally:
                self._owner = None

    def check(self, request: Request) -> None:
        """Raise PromptTooLongError if the prompt leaves no room for a single new token."""
        context_length = self.backend.info.context_length
        if len(request.prompt_ids) >= context_length:
            raise PromptTooLongError(
                f"The prompt has {len(request.prompt_ids):,} tokens; the model's context is "
                f"{context_length:,}, and at least one must be left for the answer.",
                hint="Shorten the text.",
                prompt_tokens=len(request.prompt_ids),
                context_length=context_length,
            )


class _Run:
    """One generation from the first prefill to the result."""

    def __init__(self, engine: Engine, request: Request) -> None:
        engine.check(request)
        self._engine = engine
        self._request = request
        room = engine.backend.info.context_length - len(request.prompt_ids)
        self._budget = min(request.options.max_tokens, room)
        self._stops = StopStrings(request.options.stop)
        self._detokenizer: Detokenizer = engine.tokenizer.detokenizer()
        self._texts: list[str] = []
        self._generated: list[int] = []
        self._finish: FinishReason = "cancelled"
        self._reused = 0
        self._called = self._started = self._prefilled_at = self._first_at = self._ended = time.perf_counter()

    def __iter__(self) -> Iterator[Chunk]:
        self._called = time.perf_counter()
        engine, prompt = self._engine, self._request.prompt_ids
        with engine.turn():
            self._started = time.perf_counter()
            state = engine.cache.take(prompt, prefix_tokens=self._request.prefix_tokens)
            self._reused = state.length
            try:
                logits = self._prefill(state)
                self._prefilled_at = time.perf_counter()
                yield from self._decode(logits, state)
            finally:
                self._ended = time.perf_counter()
                self._keep(state)

    def _prefill(self, state: State) -> Logits:
        """Feed the rest of the prompt, with a halt at the end of a recipe's prefix that must be kept now."""
        prompt, prefix = self._request.prompt_ids, self._request.prefix_tokens
        if prefix is not None and state.length < prefix < len(prompt) and not state.can_truncate:
            self._feed(prompt[state.length : prefix], state)
            self._engine.cache.keep(prompt[:prefix], state.copy())
        return self._feed(prompt[state.length :], state)

    def _feed(self, token_ids: Sequence[int], state: State) -> Logits:
        """Feed tokens in pieces of about the same length."""
        pieces = -(-len(token_ids) // PREFILL_CHUNK_TOKENS)
        size = -(-len(token_ids) // pieces)
        for start in range(0, len(token_ids), size):
            logits = self._engine.backend.forward(token_ids[start : start + size], state)
        last: Logits = logits[-1]
        return last

    def _decode(self, logits: Logits, state: State) -> Iterator[Chunk]:
        if self._request.options.banned_first:
            logits = logits.copy()
            logits[list(self._request.options.banned_first)] = -np.inf
        while True:
            token_id = int(logits.argmax())
            self._first_at = self._first_at if self._generated else time.perf_counter()
            if token_id in self._engine.eos_ids:
                self._finish = "stop"
                break
            self._generated.append(token_id)
            text = self._stops.feed(self._detokenizer.feed(token_id))
            yield self._chunk(text, token_id)
            if self._stops.found is not None:
                self._finish = "stop"
                return
            if len(self._generated) >= self._budget:
                self._finish = "length"
                break
            logits = self._engine.backend.forward([token_id], state)[-1]
        rest = self._stops.feed(self._detokenizer.flush())
        if self._stops.found is not None:
            self._finish = "stop"
        yield self._chunk(rest + self._stops.flush())

    def _chunk(self, text: str, *token_ids: int) -> Chunk:
        self._texts.append(text)
        return Chunk(text, token_ids)

    def _keep(self, state: State) -> None:
        """Give the state back to the cache: a recipe's prefix alone, or all of it.

        Also after an interrupt: the state has seen the first `state.length` of these tokens in any case.
        """
        prefix = self._request.prefix_tokens
        if prefix is not None and prefix < state.length:
            if not state.can_truncate:
                return  # a copy of the prefix's state is kept already
            state.truncate(prefix)
        tokens = (*self._request.prompt_ids, *self._generated)
        self._engine.cache.keep(tokens[: state.length], state)

    def result(self) -> Completion:
        """The completion, once the run has ended."""
        return Completion(
            text="".join(self._texts),
            token_ids=tuple(self._generated),
            finish_reason=self._finish,
            usage=Usage(len(self._request.prompt_ids), len(self._generated), self._reused),
            timings=Timings(
                queue_s=self._started - self._called,
                prefill_s=self._prefilled_at - self._started,
                ttft_s=self._first_at - self._called,
                decode_s=self._ended - self._first_at,
                total_s=self._ended - self._called,
            ),
        )
