"""Which of several answers does a language model hold likely? Each is scored, none is generated.

A score is the log-likelihood of an answer after the prompt, by default per token: that is how GPT-3 was
scored on multiple choice, so that long answers are not at a loss (Brown et al. 2020,
https://arxiv.org/abs/2005.14165, section 2.4). Calibration takes away what an answer gets after a prompt
without content: Zhao et al. 2021, "Calibrate Before Use", https://arxiv.org/abs/2102.09690, divide by those
probabilities; for whole texts that is the pointwise mutual information of Holtzman et al. 2021, "Surface Form
Competition", https://arxiv.org/abs/2104.08315.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

import numpy as np

from tinykit.backends.base import Logits, State
from tinykit.errors import BackendError, OptionError, PromptTooLongError
from tinykit.generation.aside import Aside
from tinykit.generation.cache import reusable, shared_prefix
from tinykit.generation.engine import Engine
from tinykit.generation.request import Watcher
from tinykit.tokenizer import Message, Tokenizer

Normalize = Literal["tokens", "none", "bytes"]
_MAX_OPTION_TOKENS = 1024  # as many as an answer may have
_LOGITS_BYTES = 2**24  # of one forward's logits: large vocabularies get fewer rows at once


@dataclass(frozen=True)
class Continuations:
    """A prompt and the answers to score after it, as token ids. No answer is empty, no two are equal."""

    prompt_ids: tuple[int, ...]
    answers: tuple[tuple[int, ...], ...]


def chat_continuations(
    tokenizer: Tokenizer, messages: Sequence[Message], texts: Sequence[str], *, end_id: int | None = None
) -> Continuations:
    """A chat and possible answers to it.

    Prompt and answer are tokenized together, since tokens may merge over the border between them. All answers
    are then scored from the last border that no answer crosses: if one merges with the prompt's last
    characters, the others spell these again, so that what is compared is the same stretch of text.

    If one answer begins with all the tokens of another, it could never win: whatever follows the shorter
    one counts for it as well. Then every answer ends with `end_id`, the end of the turn.

    Raises:
        OptionError: two texts are the same tokens to this model.
    """
    prompt_ids = tokenizer.encode_chat(messages)
    whole = tokenizer.encode_answers(messages, texts)
    border = min(min(shared_prefix(prompt_ids, ids), len(ids) - 1) for ids in whole)
    answers = [tuple(ids[border:]) for ids in whole]
    ordered = sorted(zip(answers, texts, strict=True))
    for (shorter, one), (longer, other) in pairwise(ordered):
        if shorter == longer:
            raise OptionError(
                f"{one!r:.80} and {other!r:.80} are the same tokens to this model.",
                hint="Word them differently.",
                name="options",
                value=texts,
            )
    # in this order, what begins with an answer comes right after it
    if end_id is not None and any(b[: len(a)] == a for (a, _), (b, _) in pairwise(ordered)):
        answers = [(*answer, end_id) for answer in answers]
    return Continuations(tuple(prompt_ids[:border]), tuple(answers))


def score_continuations(
    engine: Engine,
    prompt_ids: Sequence[int],
    continuations: Sequence[Sequence[int]],
    *,
    watcher: Watcher | None = None,
) -> list[list[float]]:
    """Log-probability of each token of each continuation, in float64.

    The prompt is computed once, from what the engine kept of earlier ones, and kept. Each continuation is
    computed alone after the prompt's state: its numbers do not depend on which others there are.

    Raises:
        OptionError: a continuation is longer than any answer.
        PromptTooLongError: the prompt with the longest continuation does not fit the model's context.
        ForwardInterrupted: the engine was told to cancel what is running, or `watcher` waits no longer.
        BackendError: the model failed.
    """
    if not prompt_ids or not all(continuations):
        raise ValueError("neither the prompt nor a continuation can be without tokens")
    _check_length(engine, len(prompt_ids), max(map(len, continuations)))
    with engine.asides.begin(watcher) as aside:
        return _Scoring(engine, aside, tuple(prompt_ids)).scores(continuations)


def scores_of(
    engine: Engine,
    continuations: Continuations,
    texts: Sequence[str],
    *,
    normalize: Normalize = "tokens",
    calibration: Continuations | None = None,
    watcher: Watcher | None = None,
) -> tuple[list[float], tuple[tuple[float, ...], ...]]:
    """A score for each answer, and the log-probabilities of its tokens that the score was made of.

    Args:
        engine: The model.
        continuations: The prompt and the answers.
        texts: The answers as text, for ``bytes``.
        normalize: ``tokens`` and ``bytes`` divide the log-likelihood by their number; ``none`` does not.
        calibration: The same answers after a prompt without content, whose scores are subtracted.
        watcher: May end it.

    Raises: as `score_continuations`.
    """
    logprobs = score_continuations(engine, continuations.prompt_ids, continuations.answers, watcher=watcher)
    scores = _normalized(logprobs, texts, normalize)
    if calibration is not None:
        without = score_continuations(engine, calibration.prompt_ids, calibration.answers, watcher=watcher)
        scores = [a - b for a, b in zip(scores, _normalized(without, texts, normalize), strict=True)]
    return scores, tuple(map(tuple, logprobs))


def checked_normalize(value: str) -> Normalize:
    """How to normalize.

    Raises:
        OptionError: an unknown way.
    """
    for known in get_args(Normalize):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise OptionError(
        f"normalize must be one of {', '.join(get_args(Normalize))}, not {value!r}.",
        hint="Leave it out to divide by the number of tokens.",
        name="normalize",
        value=value,
    )


def _normalized(
    logprobs: Sequence[Sequence[float]], texts: Sequence[str], normalize: Normalize
) -> list[float]:
    sums = [math.fsum(tokens) for tokens in logprobs]
    if normalize == "none":
        return sums
    if normalize == "tokens":
        return [total / len(tokens) for total, tokens in zip(sums, logprobs, strict=True)]
    sizes = [len(text.encode("utf-8", "replace")) for text in texts]
    return [total / size for total, size in zip(sums, sizes, strict=True)]


def _check_length(engine: Engine, prompt_tokens: int, answer_tokens: int) -> None:
    context_length = engine.backend.info.context_length
    if prompt_tokens + answer_tokens > context_length:
        raise PromptTooLongError(
            f"The prompt has {prompt_tokens:,} tokens and the longest option {answer_tokens:,}; together "
            f"they do not fit the model's context of {context_length:,}.",
            hint="Shorten the text or the option.",
            prompt_tokens=prompt_tokens,
            context_length=context_length,
        )
    if answer_tokens > _MAX_OPTION_TOKENS:
        raise OptionError(
            f"The longest option has {answer_tokens:,} tokens; {_MAX_OPTION_TOKENS:,} is the most for one.",
            hint="Put long texts into the prompt, numbered, and let the options be their numbers.",
            name="options",
            value=answer_tokens,
        )


class _Scoring:
    """The scoring of one prompt's continuations, from the cache's state to the state that is kept.

    What is kept is what can be reused of the prompt the next time: an equal prompt gets it without a copy.
    """

    def __init__(self, engine: Engine, aside: Aside, prompt_ids: tuple[int, ...]) -> None:
        info = engine.backend.info
        self._engine = engine
        self._aside = aside
        self._prompt_ids = prompt_ids
        self._piece = info.chunk_tokens
        self._rows = max(1, min(self._piece, _LOGITS_BYTES // (4 * info.vocab_size)))

    def scores(self, continuations: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probabilities by continuation."""
        state = self._engine.turns.take(lambda: self._engine.cache.take(self._prompt_ids))
        kept = state
        end = len(reusable(self._prompt_ids, state))
        try:
            if not state.can_truncate:
                if state.length < end:
                    self._feed(self._prompt_ids[state.length : end], state)
                kept = state.copy()
            first = self._feed(self._prompt_ids[state.length :], state)
            return [self._continued(state, first, tuple(ids)) for ids in continuations]
        finally:
            if kept.length > end:
                kept.truncate(end)
            seen = self._prompt_ids[: kept.length]
            self._engine.turns.take(lambda: self._engine.cache.keep(seen, kept))

    def _feed(self, token_ids: Sequence[int], state: State) -> Logits:
        """Logits after the last token."""
        for piece in _pieces(token_ids, self._piece):
            logits = self._engine.forward_aside(self._aside, piece, state)
        return logits

    def _continued(self, state: State, first: Logits, token_ids: tuple[int, ...]) -> list[float]:
        """Log-probabilities of one continuation; `state` is as before when this ends."""
        scores = _logprobs(first, token_ids[:1])
        if len(token_ids) == 1:
            return scores
        own, length = (state if state.can_truncate else state.copy()), state.length
        fed = token_ids[:-1]
        if len(fed) == 1 and own is state:
            # Single tokens are computed by other kernels. With the prompt's last token, this one is computed
            # as those of longer answers are, so that all are measured alike.
            state.truncate(length - 1)
            fed = (self._prompt_ids[-1], *fed)
        try:
            for piece in _pieces(fed, max(2, self._rows)):
                wanted = token_ids[len(scores) :][: len(piece)]
                logits = self._engine.forward_aside(self._aside, piece, own, len(wanted))
                scores += _logprobs(logits, wanted)
        finally:
            if own is state:
                state.truncate(min(length, state.length))
        return scores


def _pieces(token_ids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """The tokens in pieces of about the same length, `size` at most."""
    count = -(-len(token_ids) // size)
    length = -(-len(token_ids) // max(1, count))
    for start in range(0, len(token_ids), max(1, length)):
        yield token_ids[start : start + length]


def _logprobs(logits: Logits, token_ids: Sequence[int]) -> list[float]:
    """Log-probability of the n-th token by the n-th row."""
    rows = logits.astype(np.float64)
    highest = rows.max(axis=1)
    if not np.isfinite(highest).all():
        raise BackendError(
            "The model computed logits that are no numbers.",
            hint="Its weights may be damaged: fetch the model again, or try another dtype.",
        )
    totals = highest + np.log(np.exp(rows - highest[:, None]).sum(axis=1))
    return [float(value) for value in rows[np.arange(len(rows)), list(token_ids)] - totals]
