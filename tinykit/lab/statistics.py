"""How sure a difference is: paired bootstrap, exact tests, Holm's correction, and how many cases it takes.

Everything is paired: the same cases under both variants. Chance comes from a fixed seed, so the same values
always give the same answer. Tested on simulated data in `tests/lab/test_statistics.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

RESAMPLES = 10_000
_EXACT_PAIRS = 14  # up to so many differences all 2^n signs are tried
_PERMUTATIONS = 20_000
_WHOLE_NUMBERS = 1000  # more would take seconds, and floats are good to ten digits
_CHUNK = 2_000_000  # numbers in memory at once
_Z_TWO_SIDED, _Z_POWER = 1.959964, 0.841621  # of 5 % and of 80 %
_Floats = npt.NDArray[np.float64]


def interval(
    differences: Sequence[float], *, resamples: int = RESAMPLES, seed: int = 1
) -> tuple[float, float]:
    """The 95 % interval of the mean difference, by the percentiles of resampled means.

    Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, ch. 13; the percentiles are widened by
    sqrt(n / (n - 1)), without which they cover too little for few cases.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 2 or not values.std():
        mean = float(values.mean()) if len(values) else 0.0
        return mean, mean
    means = np.concatenate(_resampled(values, resamples, np.random.default_rng(seed)))
    low, high = np.percentile(means, [2.5, 97.5])
    center, factor = values.mean(), math.sqrt(len(values) / (len(values) - 1))
    return float(center + (low - center) * factor), float(center + (high - center) * factor)


def _resampled(values: _Floats, resamples: int, chance: np.random.Generator) -> list[_Floats]:
    size = max(1, _CHUNK // len(values))
    found = []
    for start in range(0, resamples, size):
        picks = chance.integers(0, len(values), (min(size, resamples - start), len(values)))
        found.append(values[picks].mean(axis=1))
    return found


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact p of the sign test, which is McNemar's for pass and fail: ties say nothing."""
    n = better + worse
    if n == 0:
        return 1.0
    fewer = min(better, worse)
    if n <= _WHOLE_NUMBERS:
        return min(1.0, float(2 * sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n))
    each = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) for k in range(fewer + 1))
    return min(1.0, 2 * math.fsum(math.exp(log - n * math.log(2)) for log in each))


def permutation_test(differences: Sequence[float], *, seed: int = 1) -> float:
    """Two-sided p of the mean difference under swapped labels: exact for few pairs, else by 20,000 draws."""
    values = np.array([value for value in differences if value], dtype=np.float64)
    n = len(values)
    if n == 0:
        return 1.0
    observed = abs(values.sum()) * (1 - 1e-12)
    if n <= _EXACT_PAIRS:
        codes = np.arange(2**n)[:, None] >> np.arange(n) & 1
        return float((np.abs((1 - 2 * codes) @ values) >= observed).mean())
    chance = np.random.default_rng(seed)
    hits, size = 0, max(1, _CHUNK // n)
    for start in range(0, _PERMUTATIONS, size):
        swapped = chance.integers(0, 2, (min(size, _PERMUTATIONS - start), n), dtype=np.int8)
        hits += int((np.abs(values.sum() - 2 * (swapped @ values)) >= observed).sum())
    return (hits + 1) / (_PERMUTATIONS + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values corrected for their number, in the order given.

    Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    order = sorted(range(len(p_values)), key=lambda at: p_values[at])
    found, largest = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(order):
        largest = max(largest, min(1.0, p_values[at] * (len(p_values) - rank)))
        found[at] = largest
    return found


def cases_needed(differences: Sequence[float], effect: float) -> int:
    """Cases of this spread at which a true difference of `effect` shows in four of five runs."""
    values = np.asarray(differences, dtype=np.float64)
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return math.ceil(((_Z_TWO_SIDED + _Z_POWER) * spread / effect) ** 2)


def smallest_effect(differences: Sequence[float]) -> float:
    """The true difference that would show in four of five runs with so many cases of this spread."""
    values = np.asarray(differences, dtype=np.float64)
    spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
    return (_Z_TWO_SIDED + _Z_POWER) * spread / math.sqrt(max(1, len(values)))
