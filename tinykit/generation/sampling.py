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

Mask = npt.NDArray[np.bool_]
TokenIds = npt.NDArray[np.intp]
Weights = npt.NDArray[np.float64]

_GROUPS = 1024  # of logits, whose maxima say where the largest logits begin
_FIRST_NUCLEUS = 256  # most likely tokens that top-p looks at first; most answers need fewer
_MORE_NUCLEUS = 16


@dataclass(frozen=True)
class Sampling:
    """How the next token is picked; the default is the most likely one.

    Attributes:
        temperature: Logits are divided by it; 0 picks the most likely token.
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
        return self.temperature == 0 or self.top_k == 1


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
        self._bias_ids = np.array(list(bias), dtype=np.intp)
        self._bias = np.array(list(bias.values()), dtype=np.float32)
        if bias and self._bias_ids.max() >= vocab_size:
            raise OptionError(
                f"logit_bias names token {self._bias_ids.max()}; the model's last one is {vocab_size - 1}.",
                name="logit_bias",
                value=bias,
            )
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
        best, adjusted = self._best(logits, allowed)
        if self.sampling.is_greedy:
            return best
        token_ids, weights = self._candidates(adjusted, best)
        return int(token_ids[_drawn(weights, self._uniform())])

    def distribution(self, logits: Logits, allowed: Mask | None = None) -> tuple[TokenIds, Weights]:
        """What `pick` draws from, without drawing: token ids in ascending order and their probabilities."""
        best, adjusted = self._best(logits, allowed)
        if self.sampling.is_greedy:
            return np.array([best]), np.ones(1)
        token_ids, weights = self._candidates(adjusted, best)
        return token_ids, weights / weights.sum()

    def _uniform(self) -> float:
        """The next number in [0, 1).

        From the generator's raw bits: their order is guaranteed for all versions and platforms, that of
        numpy's distributions is not. https://numpy.org/doc/stable/reference/random/compatibility.html
        """
        return (int(self._bits.random_raw()) >> 11) * 2.0**-53

    def _best(self, logits: Logits, allowed: Mask | None) -> tuple[int, Logits]:
        """The most likely allowed token, and the logits after penalties and mask."""
        best = int(logits.argmax())  # a NaN if there is one
        if not math.isfinite(logits[best]):
            raise _broken(logits)
        adjusted = self._penalized(logits)
        if adjusted is not logits:
            best = int(adjusted.argmax())
        if allowed is not None and not (self.sampling.is_greedy and allowed[best]):
            adjusted = np.where(allowed, adjusted, np.float32(-np.inf))
            best = int(adjusted.argmax())
        if adjusted[best] == -math.inf:
            raise OptionError(
                "No token may come next: the constraint and logit_bias exclude all of them.",
                name="logit_bias" if allowed is None or allowed.any() else "constraint",
                value=self.sampling.logit_bias,
            )
        return best, adjusted

    def _penalized(self, logits: Logits) -> Logits:
        """A copy with bias and penalties, or the logits themselves if there are none."""
        if not (len(self._bias_ids) or len(self._seen) or self._counts):
            return logits
        logits = logits.copy()
        logits[self._bias_ids] += self._bias
        if len(self._seen):
            penalty = self.sampling.repeat_penalty
            seen = np.flatnonzero(self._seen)
            values = logits[seen]
            logits[seen] = np.where(values > 0, values / penalty, values * penalty)
        if self._counts:
            counted = np.fromiter(self._counts, dtype=np.intp)
            counts = np.fromiter(self._counts.values(), dtype=np.float32)
            logits[counted] -= counts * self.sampling.frequency_penalty
        return logits

    def _candidates(self, logits: Logits, best: int) -> tuple[TokenIds, Weights]:
        """Token ids in ascending order, and weights in proportion to their probabilities."""
        sampling = self.sampling
        highest = logits[best]
        token_ids = largest(logits, sampling.top_k) if sampling.top_k else np.arange(len(logits))
        values = (logits[token_ids] if sampling.top_k else logits).astype(np.float64)
        with np.errstate(over="ignore", under="ignore"):  # at very low temperatures
            weights: Weights = np.exp((values - float(highest)) / sampling.temperature)
        if sampling.top_p < 1:
            kept = _nucleus(weights, sampling.top_p)
            token_ids, weights = token_ids[kept], weights[kept]
        if sampling.min_p > 0:
            kept = np.flatnonzero(weights >= sampling.min_p)  # the most likely one's weight is 1
            token_ids, weights = token_ids[kept], weights[kept]
        return token_ids, weights


def largest(values: npt.NDArray[np.floating], count: int) -> TokenIds:
    """Indices of the `count` largest values, in ascending order; of equal values the first ones."""
    if count >= len(values):
        return np.arange(len(values))
    found = np.flatnonzero(values >= _lower_bound(values, count))
    inner = values[found]
    border = np.partition(inner, -count)[-count]
    keep = inner > border
    keep[np.flatnonzero(inner == border)[: count - np.count_nonzero(keep)]] = True
    chosen: TokenIds = found[keep]
    return chosen


def _lower_bound(values: npt.NDArray[np.floating], count: int) -> float:
    """A number that at least `count` values reach, and few more where values differ.

    The values are dealt into groups; as many groups as have a maximum that reaches the number hold a value
    that does. This reads all values once, where a partition of them takes ten times as long.
    """
    rows = len(values) // _GROUPS
    if count > _GROUPS // 2 or rows < 2:
        return -math.inf
    maxima = values[: rows * _GROUPS].reshape(rows, _GROUPS).max(axis=0)
    return float(np.partition(maxima, -count)[-count])


def _nucleus(weights: Weights, top_p: float) -> TokenIds:
    """Indices, in ascending order, of the fewest largest weights that make up `top_p` of the sum."""
    target = top_p * weights.sum()
    count = _FIRST_NUCLEUS
    found = largest(weights, count)
    while weights[found].sum() < target and count < len(weights):
        count *= _MORE_NUCLEUS
        found = largest(weights, count)
    falling = found[np.argsort(-weights[found], kind="stable")]
    size = int(np.searchsorted(np.cumsum(weights[falling]), target)) + 1
    return np.sort(falling[:size])


def _drawn(weights: Weights, uniform: float) -> int:
    """The index that `uniform`, in [0, 1), falls on; never one of weight 0."""
    cumulated = np.cumsum(weights)
    total = cumulated[-1]
    # rounding can make the product the total itself, which no index would be above
    point = min(uniform * total, np.nextafter(total, 0))
    return int(np.searchsorted(cumulated, point, side="right"))


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
    with np.errstate(under="ignore"):
        total = highest + math.log(np.exp(logits.astype(np.float64) - highest).sum())
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
    number = float(value) if isinstance(value, numbers.Real) and is_number else math.nan
    if not low <= number <= high:
        raise OptionError(
            f"{name} must be a number from {low} to {high}, not {value!r}.", name=name, value=value
        )
    return number


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 0:
        raise OptionError(f"{name} must be a whole number from 0, not {value!r}.", name=name, value=value)
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
            name="logit_bias",
            value=bias,
        ) from error
    return tuple(sorted(biases.items()))


def _bias(value: object) -> float:
    return -math.inf if value == -math.inf else _number("bias", value, -1000, 1000)
