"""The likeliest answer to a prompt, and those that leave it where the model was least sure.

All of them come from one state: the prompt is computed once, an alternative costs the tokens in which it
differs. They are decoded in order from the last branch to the first, so that the state only rolls back,
and are over once a stop string begins, where the first answer waits for all of it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tinykit.backends.base import State
from tinykit.generation.engine import Engine
from tinykit.generation.request import Completion, FinishReason, Request, Timings, Usage
from tinykit.generation.stopping import StopStrings

Scores = npt.NDArray[np.float64]

_CHUNK_TOKENS = 128  # prompt tokens in one call, so that Ctrl-C is heard in between
_CHOICES = 2  # other tokens that are looked at in one place


@dataclass(frozen=True)
class Answer:
    """An answer, and how likely it was: the sum of the log-probabilities of its tokens, its end included.

    The usage of an alternative counts what it has in common with the first answer as reused.
    """

    completion: Completion
    logprob: float


def can_branch(engine: Engine) -> bool:
    """Whether a model's state can be rolled back, which `answers` needs."""
    return engine.backend.new_state().can_truncate


def answers(engine: Engine, request: Request, *, branches: int, max_gap: float) -> list[Answer]:
    """The greedy answer, then up to `branches` others, the likeliest branch first.

    A branch takes the second or third choice where its log-probability is less than `max_gap` below that of
    the first, and goes on greedily.

    Raises:
        PromptTooLongError: the prompt leaves no room in the model's context.
        KeyboardInterrupt: Ctrl-C; the engine stays usable.
    """
    engine.check(request)
    called = time.perf_counter()
    with engine.turn():
        decoding = _Decoding(engine, request, called)
        try:
            first = decoding.first()
            chosen = sorted(_forks(first, max_gap))[:branches]
            found = {fork: decoding.branch(first, fork) for fork in sorted(chosen, key=lambda fork: -fork.at)}
        finally:
            decoding.close()
    return [first.answer(), *(found[fork].answer() for fork in chosen)]


@dataclass(frozen=True, order=True)
class _Fork:
    """Another token at the place `at` of the first answer; sorted by how much less likely it is."""

    gap: float
    at: int
    token_id: int


@dataclass
class _Path:
    """An answer while it is made."""

    token_ids: list[int]
    logprobs: list[float]
    text: str = ""
    finish_reason: FinishReason = "stop"
    choices: list[list[tuple[int, float]]] = field(default_factory=list)  # at each new place, best first
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0))
    timings: Timings = field(default_factory=lambda: Timings(0.0, 0.0, 0.0, 0.0, 0.0))

    def answer(self) -> Answer:
        completion = Completion(
            self.text, tuple(self.token_ids), self.finish_reason, self.usage, self.timings
        )
        return Answer(completion, sum(self.logprobs))


def _forks(first: _Path, max_gap: float) -> list[_Fork]:
    return [
        _Fork(choices[0][1] - logprob, at, token_id)
        for at, choices in enumerate(first.choices)
        for token_id, logprob in choices[1:]
        if choices[0][1] - logprob < max_gap
    ]


class _Decoding:
    """The state of one prompt, from which several answers are decoded."""

    def __init__(self, engine: Engine, request: Request, called: float) -> None:
        self._engine = engine
        self._request = request
        self._prompt = request.prompt_ids
        self._called = called
        self._started = time.perf_counter()
        self._state: State = engine.cache.take(self._prompt, prefix_tokens=request.prefix_tokens)
        self._reused = self._state.length
        room = engine.backend.info.context_length - len(self._prompt)
        self._budget = min(request.options.max_tokens, room)
        closing = [engine.tokenizer.encode(stop)[:1] for stop in request.options.stop]
        self._ends = {*engine.eos_ids, *(token for tokens in closing for token in tokens)}

    def first(self) -> _Path:
        """The greedy answer."""
        rest = self._prompt[self._state.length :]
        pieces = -(-len(rest) // _CHUNK_TOKENS)
        size = -(-len(rest) // pieces)
        for start in range(0, len(rest), size):
            scores = self._forward(rest[start : start + size])
        scores[list(self._request.options.banned_first)] = -np.inf
        prefilled = time.perf_counter()
        path = self._path([], [], scores, self._engine.eos_ids)
        ended = time.perf_counter()
        path.usage = Usage(len(self._prompt), len(path.token_ids), self._reused)
        path.timings = Timings(
            queue_s=self._started - self._called,
            prefill_s=prefilled - self._started,
            ttft_s=prefilled - self._called,
            decode_s=ended - prefilled,
            total_s=ended - self._called,
        )
        return path

    def branch(self, first: _Path, fork: _Fork) -> _Path:
        """The answer that leaves the first one at a fork."""
        began = time.perf_counter()
        self._state.truncate(len(self._prompt) + fork.at)
        begun = [*first.token_ids[: fork.at], fork.token_id]
        logprobs = [*first.logprobs[: fork.at], first.logprobs[fork.at] - fork.gap]
        scores = None if fork.token_id in self._ends else self._forward([fork.token_id])
        path = self._path(begun, logprobs, scores, self._ends)
        elapsed = time.perf_counter() - began
        path.usage = Usage(len(self._prompt), max(1, len(path.token_ids) - fork.at), len(self._prompt))
        path.timings = Timings(0.0, 0.0, 0.0, elapsed, elapsed)
        return path

    def close(self) -> None:
        """Give the state back to the cache: the recipe's part of the prompt, or all of the prompt."""
        wanted = self._request.prefix_tokens
        kept = min(self._state.length, len(self._prompt) if wanted is None else wanted)
        self._state.truncate(kept)
        self._engine.cache.keep(self._prompt[:kept], self._state)

    def _forward(self, token_ids: Sequence[int]) -> Scores:
        """Log-probabilities of what comes after these tokens."""
        logits = self._engine.backend.forward(token_ids, self._state)
        scores: Scores = logits.reshape(-1, logits.shape[-1])[-1].astype(np.float64)
        scores -= scores.max()
        scores -= np.log(np.exp(scores).sum())
        return scores

    def _path(
        self, begun: list[int], logprobs: list[float], scores: Scores | None, ends: Collection[int]
    ) -> _Path:
        """Go on from `begun`, after whose last token the log-probabilities are `scores`, until the end."""
        path = _Path([token for token in begun if token not in ends], logprobs)
        stops = StopStrings(self._request.options.stop)
        detokenizer = self._engine.tokenizer.detokenizer()
        path.text = "".join(stops.feed(detokenizer.feed(token)) for token in path.token_ids)
        while scores is not None and stops.found is None:
            if len(path.token_ids) >= self._budget:
                path.finish_reason = "length"
                break
            path.choices.append(_best(scores))
            token_id, logprob = path.choices[-1][0]
            path.logprobs.append(logprob)
            if token_id in ends:
                break
            path.token_ids.append(token_id)
            path.text += stops.feed(detokenizer.feed(token_id))
            if stops.found is None and len(path.token_ids) < self._budget:
                scores = self._forward([token_id])
        if stops.found is None:
            path.text += stops.feed(detokenizer.flush())
            path.text += stops.flush() if stops.found is None else ""
        return path


def _best(scores: Scores) -> list[tuple[int, float]]:
    """The likeliest tokens with their log-probabilities, the best first."""
    best = np.argpartition(scores, -_CHOICES - 1)[-_CHOICES - 1 :]
    return sorted(((int(i), float(scores[i])) for i in best), key=lambda choice: (-choice[1], choice[0]))
