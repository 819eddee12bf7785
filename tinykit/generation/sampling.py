"""From logits to the next token: greedy by default, or drawn with a seed that reproduces.

The steps come in this order: logit bias, repeat penalty, frequency penalty, the constraint's mask,
temperature, top-k, top-p, min-p, one draw. Each pick takes one uniform number and looks it up in the
cumulated probabilities in order of token ids, so that the same seed gives the same text whichever way the
logits were computed, and small differences between two ways rarely matter.
"""

from __future__ import annotations

import math
import numbers
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tinykit.backends.base import Logits
from tinykit.errors import BackendError, OptionError
from tinykit.generation.distribution import PIECE, TokenIds, Weights, drawn, largest, nucleus, weights_of

Mask = npt.NDArray[np.bool_]

_GREEDY_BELOW = 1e-6  # a temperature at which only rounding would be sampled


@dataclass(frozen=True)
class Sampling:
    """How the next token is picked; the default is the most likely one.

    Attributes:
        temperature: Logits are divided by it; 0 (and anything below a millionth) picks the most likely
            token.
        top_k: Only so many of the most likely tokens; 0 for all.
            https://arxiv.org/abs/1805.04833
        top_p: Only the fewest most likely tokens that have at least this probability together.
            https://arxiv.org/abs/1904.09751
        min_p: Only tokens with at least this part of the most likely token's probability.
            https://arxiv.org/abs/2407.01082
        repeat_penalty: Positive logits of tokens in the prompt or the answer are divided by it, negative
            ones multiplied. https://arxiv.org/abs/1909.05858, section 4.1
        frequency_penalty: Taken from a token's logit for each time it stands in the answer.
        logit_bias: Added to the logits of these token ids; minus infinity bans a token. Kept as pairs.
        seed: Of the draws; with None another one is taken each time, see `Sampler.seed`.

    Raises:
        OptionError: a value is out of range; the message gives the range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        checked = {
            "temperature": _number("temperature", self.temperature, 0, 100),
            "top_k": _whole("top_k", self.top_k),
            "top_p": _number("top_p", self.top_p, 0, 1),
            "min_p": _number("min_p", self.min_p, 0, 1),
            "repeat_penalty": _number("repeat_penalty", self.repeat_penalty, 0.01, 100),
            "frequency_penalty": _number("frequency_penalty", self.frequency_penalty, -100, 100),
            "logit_bias": _pairs(self.logit_bias),
            "seed": None if self.seed is None else _whole("seed", self.seed),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return self.temperature < _GREEDY_BELOW or self.top_k == 1


class Sampler:
    """Picks the tokens of one answer, and remembers them for the penalties."""

    def __init__(self, sampling: Sampling, prompt_ids: Sequence[int], vocab_size: int) -> None:
        """Start an answer after `prompt_ids`.

        Raises:
            OptionError: `logit_bias` names a token that the model does not have.
        """
        self.sampling = sampling
        self.seed: int | None = None
        if not sampling.is_greedy:
            # 32 bits, so that a drawn seed is short enough to be typed
            self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
            self._bits = np.random.PCG64(self.seed)
        bias = dict(sampling.logit_bias)
        if bias and max(bias) >= vocab_size:
            raise OptionError(
                f"logit_bias names token {max(bias)}; the model's last one is {vocab_size - 1}.",
                hint="Token ids belong to one model: take them from this session's tokenizer.",
                name="logit_bias",
                value=bias,
            )
        self._bias_ids = np.array(list(bias), dtype=np.intp)
        self._bias = np.array(list(bias.values()), dtype=np.float32)
        self._seen = np.zeros(vocab_size if sampling.repeat_penalty != 1 else 0, dtype=np.bool_)
        if len(self._seen):
            self._seen[list(prompt_ids)] = True
        self._counts: dict[int, int] = {}

    def accept(self, token_id: int) -> None:
        """Count a token of the answer for the penalties."""
        if len(self._seen):
            self._seen[token_id] = True
        if self.sampling.frequency_penalty:
            self._counts[token_id] = self._counts.get(token_id, 0) + 1

    def pick(self, logits: Logits, allowed: Mask | None = None) -> int:
        """The next token's id, one of those that `allowed` is true for; `logits` are left as they are.

        The most likely token if the sampling is greedy, the lowest id among equals; else a draw.

        Raises:
            BackendError: the logits are not numbers.
            OptionError: the constraint and the logit bias leave no token.
        """
        if self.sampling.is_greedy:
            return self._most_likely(logits, allowed)
        token_ids, values = self._candidates(logits, allowed)
        index = drawn(values, self.sampling.temperature, self._uniform())
        return index if token_ids is None else int(token_ids[index])

    def distribution(self, logits: Logits, allowed: Mask | None = None) -> tuple[TokenIds, Weights]:
        """What `pick` draws from, without drawing: token ids in ascending order and their probabilities."""
        if self.sampling.is_greedy:
            return np.array([self._most_likely(logits, allowed)]), np.ones(1)
        token_ids, values = self._candidates(logits, allowed)
        weights = weights_of(values, float(values.max()), self.sampling.temperature)
        possible = np.flatnonzero(weights)
        probabilities: Weights = weights[possible] / weights.sum()
        return possible if token_ids is None else token_ids[possible], probabilities

    def _uniform(self) -> float:
        """The next number in [0, 1).

        From the generator's raw bits: their order is guaranteed for all versions and platforms, that of
        numpy's distributions is not. https://numpy.org/doc/stable/reference/random/compatibility.html
        """
        return (int(self._bits.random_raw()) >> 11) * 2.0**-53

    def _most_likely(self, logits: Logits, allowed: Mask | None) -> int:
        values, best = self._penalized(logits)
        if allowed is not None and not allowed[best]:  # mostly it is, and nothing need be copied
            token_ids = np.flatnonzero(allowed)
            best = int(token_ids[values[token_ids].argmax()]) if len(token_ids) else best
        if values[best] == -math.inf or not (allowed is None or allowed[best]):
            raise self._nothing_left(allowed)
        return best

    def _candidates(self, logits: Logits, allowed: Mask | None) -> tuple[TokenIds | None, Logits]:
        """The tokens to draw from: ids in ascending order (None if all are left) and their logits."""
        sampling, token_ids = self.sampling, None
        values, best = self._penalized(logits)
        if allowed is not None:
            token_ids, values = _taken(None, values, np.flatnonzero(allowed))
        highest = values[best] if allowed is None else values.max(initial=-np.inf)
        if highest == -math.inf:
            raise self._nothing_left(allowed)
        if 0 < sampling.top_k < len(values):
            token_ids, values = _taken(token_ids, values, largest(values, sampling.top_k))
        if sampling.top_p < 1:
            kept = nucleus(values, sampling.temperature, sampling.top_p)
            token_ids, values = _taken(token_ids, values, kept)
        if sampling.min_p > 0:
            border = float(highest) + sampling.temperature * math.log(sampling.min_p)
            token_ids, values = _taken(token_ids, values, np.flatnonzero(values >= border))
        return token_ids, values

    def _penalized(self, logits: Logits) -> tuple[Logits, int]:
        """Logits with bias and penalties, and the most likely token: a copy only where there are any."""
        best = int(logits.argmax())  # a NaN if there is one
        if not math.isfinite(logits[best]):
            raise _broken(logits)
        if not (len(self._bias_ids) or len(self._seen) or self._counts):
            return logits, best
        logits = logits.copy()
        logits[self._bias_ids] += self._bias
        if len(self._seen):
            penalty = self.sampling.repeat_penalty
            seen = np.flatnonzero(self._seen)
            values = logits[seen]
            with np.errstate(over="ignore"):  # of tokens that the model itself masks
                logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if self._counts:
            counted = np.fromiter(self._counts, dtype=np.intp)
            counts = np.fromiter(self._counts.values(), dtype=np.float32)
            logits[counted] -= counts * self.sampling.frequency_penalty
        return logits, int(logits.argmax())

    def _nothing_left(self, allowed: Mask | None) -> OptionError:
        if allowed is not None and not allowed.any():
            name, reason = "constraint", "the constraint allows none."
        elif len(self._bias_ids):
            name, reason = "logit_bias", "logit_bias bans all that could."
        else:
            name, reason = "constraint", "the model itself excludes all that the constraint allows."
        return OptionError(
            f"No token may come next: {reason}",
            hint="Ask for less with the constraint or logit_bias.",
            name=name,
            value=None,
        )


def _taken(token_ids: TokenIds | None, values: Logits, kept: TokenIds) -> tuple[TokenIds, Logits]:
    return kept if token_ids is None else token_ids[kept], values[kept]


@dataclass(frozen=True)
class TokenLogprob:
    """Natural logarithms of probabilities: of a token, and of the most likely ones in its place.

    `top` has pairs of token id and log-probability, the most likely first.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def logprob(logits: Logits, token_id: int, top: int = 0) -> TokenLogprob:
    """What the model itself says about a token, before penalties, constraint and temperature.

    Args:
        logits: Of all tokens, shape (vocab_size,).
        token_id: The token that was picked.
        top: How many of the most likely tokens to add; impossible ones are left out.

    Raises:
        BackendError: the logits are not numbers.
    """
    highest = float(logits.max())
    if not math.isfinite(highest):
        raise _broken(logits)
    pieces = (logits[start : start + PIECE] for start in range(0, len(logits), PIECE))
    total = highest + math.log(sum(weights_of(piece, highest, 1.0).sum() for piece in pieces))
    token_ids = largest(logits, top) if top else np.arange(0)
    falling = token_ids[np.argsort(-logits[token_ids], kind="stable")]
    pairs = ((int(index), float(logits[index]) - total) for index in falling)
    return TokenLogprob(
        int(token_id),
        float(logits[token_id]) - total,
        tuple((index, value) for index, value in pairs if value > -math.inf),
    )


def _broken(logits: Logits) -> BackendError:
    broken = int(np.count_nonzero(~np.isfinite(logits)))
    return BackendError(
        f"The model's output is broken: {broken:,} of {len(logits):,} logits are not finite numbers.",
        hint="Load it with another dtype; if that does not help, its files are damaged.",
    )


def _number(name: str, value: object, low: float, high: float) -> float:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    try:
        number = float(value) if isinstance(value, numbers.Real) and is_number else math.nan
    except OverflowError:
        number = math.inf
    if not low <= number <= high:
        raise OptionError(
            f"{name} must be a number from {low} to {high}, not {value!r}.",
            hint="Leave it out for the default.",
            name=name,
            value=value,
        )
    return number


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
        raise OptionError(
            f"{name} must be a whole number from 0, not {value!r}.",
            hint="Leave it out for the default.",
            name=name,
            value=value,
        )
    return int(value)


def _pairs(bias: object) -> tuple[tuple[int, float], ...]:
    """Pairs of token id and bias in order of ids."""
    pairs = bias.items() if isinstance(bias, Mapping) else bias
    try:
        if not isinstance(pairs, Iterable):
            raise TypeError
        biases = {_whole("token id", index): _bias(value) for index, value in pairs}
    except (TypeError, ValueError) as error:
        raise OptionError(
            "logit_bias must map token ids to numbers from -1000 to 1000, or minus infinity to ban a token, "
            f"not {bias!r}.",
            hint='For example: {42: 5.0, 7: float("-inf")}',
            name="logit_bias",
            value=bias,
        ) from error
    return tuple(sorted(biases.items()))


def _bias(value: object) -> float:
    return -math.inf if value == -math.inf else _number("bias", value, -1000, 1000)
