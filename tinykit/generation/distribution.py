"""Probabilities from logits, for whole vocabularies: the largest, the nucleus, a draw.

Nothing is sorted or exponentiated in full where a part will do. Of a whole vocabulary the exponentials are
taken in float32, in a sixth of the time: their errors are those of the logits themselves and mostly cancel
out in the sums, which are float64. Weights are probabilities in proportion, 1 for the most likely token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tinykit.backends.base import Logits

TokenIds = npt.NDArray[np.intp]
Weights = npt.NDArray[np.float64]

_GROUP = 1024  # logits whose weights are summed at once; also how many groups have their maxima taken
PIECE = 16 * _GROUP  # logits that are worked on at once, so that the numbers in between stay in the cache
_FEW = 4096  # logits up to which everything is computed in float64
_BINS = 1024
_BINS_END = 40.0  # logarithm of the smallest weight with a bin of its own: less is not seen beside 1


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
    """A number that at least `count` values reach, and not many more.

    The values are dealt into groups; each group whose maximum reaches the number has a value that does.
    Reading all values once for the maxima takes a tenth of the time of a partition of them.
    """
    rows = len(values) // _GROUP
    if count > _GROUP // 2 or rows < 2:
        return -math.inf
    maxima = values[: rows * _GROUP].reshape(rows, _GROUP).max(axis=0)
    return float(np.partition(maxima, -count)[-count])


def weights_of(values: Logits, highest: float, temperature: float) -> Weights:
    """The weights of logits, beside a most likely token with the logit `highest`."""
    weights = values.astype(np.float64)
    weights -= highest
    weights /= temperature
    with np.errstate(under="ignore"):
        np.exp(weights, out=weights)
    return weights


def nucleus(values: Logits, temperature: float, top_p: float) -> TokenIds:
    """Indices, in ascending order, of the fewest most likely tokens that have `top_p` together."""
    highest = float(values.max())
    if len(values) <= _FEW:
        weights = weights_of(values, highest, temperature)
        return _fewest(values, weights, top_p * weights.sum())
    bins, masses = _histogram(values, highest, temperature)
    cumulated = masses.cumsum()
    target = top_p * cumulated[-1]
    border = np.searchsorted(cumulated, target)
    keep = bins < border
    inside = np.flatnonzero(bins == border)
    rest = target - (cumulated[border - 1] if border else 0.0)
    weights = weights_of(values[inside], highest, temperature)
    keep[inside[_fewest(values[inside], weights, rest)]] = True
    return np.flatnonzero(keep)


def _fewest(values: Logits, weights: Weights, target: float) -> TokenIds:
    """Indices, in ascending order, of the fewest largest values whose weights make up the target."""
    cumulated = np.sort(weights)[::-1].cumsum()
    return largest(values, int(np.searchsorted(cumulated, target)) + 1)


def _histogram(values: Logits, highest: float, temperature: float) -> tuple[npt.NDArray[np.uint16], Weights]:
    """The bin of each logit, the most likely ones in bin 0, and the sum of weights in each bin."""
    bins = np.empty(len(values), dtype=np.uint16)
    masses = np.zeros(_BINS)
    for start, logarithms in _pieces(values, highest, temperature):
        places = (np.maximum(logarithms, -_BINS_END) * np.float32(-_BINS / _BINS_END)).astype(np.intp)
        np.minimum(places, _BINS - 1, out=places)
        bins[start : start + len(places)] = places
        with np.errstate(under="ignore"):
            np.exp(logarithms, out=logarithms)
        masses += np.bincount(places, weights=logarithms, minlength=_BINS)
    return bins, masses


def drawn(values: Logits, temperature: float, uniform: float) -> int:
    """The index that `uniform`, in [0, 1), falls on in the cumulated probabilities."""
    highest = float(values.max())
    masses = _masses(values, highest, temperature).cumsum()
    point = uniform * masses[-1]
    group = _found(masses, point)
    start = group * _GROUP
    weights = weights_of(values[start : start + _GROUP], highest, temperature)
    return start + _found(weights.cumsum(), point - (masses[group - 1] if group else 0.0))


def _masses(values: Logits, highest: float, temperature: float) -> Weights:
    """Sums of the weights of each group of logits."""
    if len(values) <= _FEW:
        weights = weights_of(values, highest, temperature)
        return np.add.reduceat(weights, np.arange(0, len(weights), _GROUP))
    sums = []
    for _, piece in _pieces(values, highest, temperature):
        with np.errstate(under="ignore"):
            np.exp(piece, out=piece)
        sums.append(np.add.reduceat(piece, np.arange(0, len(piece), _GROUP), dtype=np.float64))
    return np.concatenate(sums)


def _pieces(values: Logits, highest: float, temperature: float) -> Iterator[tuple[int, Logits]]:
    """Logarithms of weights in float32, piece by piece, each with its start."""
    for start in range(0, len(values), PIECE):
        piece = values[start : start + PIECE] - np.float32(highest)
        with np.errstate(over="ignore"):  # of tokens that the model itself masks
            piece /= np.float32(temperature)
        yield start, piece


def _found(cumulated: Weights, point: float) -> int:
    """The first index above `point`; the last one that adds something where rounding left none."""
    below_all = min(point, np.nextafter(cumulated[-1], 0))
    return int(np.searchsorted(cumulated, below_all, side="right"))
