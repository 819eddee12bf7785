"""Strengths from pairwise choices, and evidence that may be looked at after every vote.

Strengths are those of Bradley and Terry, "Rank analysis of incomplete block designs", 1952: the odds that
one is preferred to another are the ratio of their strengths. Ties count half for each. They are found by the
iteration of Hunter, "MM algorithms for generalized Bradley-Terry models", 2004. Checked against `choix` and
on simulated votes in `tests/lab/test_bradley_terry.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tinykit.lab.statistics import sign_test

_Floats = npt.NDArray[np.float64]

PRIOR = 0.5  # wins that each pair has from the start, both ways: else a variant that always wins has no end
LEVEL = 0.05
_RESAMPLES = 2000
_STEPS, _TOLERANCE = 5000, 1e-9
_MOST_VOTES = 5000  # more than that nobody would cast


def strengths(wins: npt.ArrayLike, *, prior: float = PRIOR) -> _Floats:
    """Logarithms of the strengths, with a mean of 0.

    Args:
        wins: How often each row was preferred to each column, of shape (..., k, k); a tie is half a win each.
        prior: Half of the ties that are added to each pair.

    Returns:
        Values of shape (..., k).
    """
    k = np.shape(wins)[-1]
    won = np.asarray(wins, dtype=np.float64) + prior * (1 - np.eye(k))
    meetings = won + np.swapaxes(won, -1, -2)
    total = won.sum(axis=-1)
    power = np.ones(won.shape[:-1])
    for _ in range(_STEPS):
        sums = power[..., :, None] + power[..., None, :]
        fresh = total / (meetings / sums).sum(axis=-1)
        fresh /= np.exp(np.log(fresh).mean(axis=-1, keepdims=True))
        change = np.abs(fresh / power - 1).max(initial=0.0)
        power = fresh
        if change < _TOLERANCE:
            break
    logs: _Floats = np.log(power)
    return logs


def intervals(
    by_case: npt.ArrayLike, *, resamples: int = _RESAMPLES, seed: int = 1, prior: float = PRIOR
) -> list[tuple[float, float]]:
    """The 95 % intervals of the strengths, by resampling cases.

    Where nobody ever preferred one of two, resampling would find no other answer possible: there a case in
    which it was preferred is put among them.

    Args:
        by_case: Wins in each case, of shape (cases, k, k).
    """
    wins = np.asarray(by_case, dtype=np.float64)
    n, k = len(wins), wins.shape[-1]
    center = strengths(wins.sum(axis=0), prior=prior)
    if n < 2:
        return [(-math.inf, math.inf)] * k
    wins = np.concatenate([wins, _unseen(wins)])
    n = len(wins)
    times = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    found = strengths((times @ wins.reshape(n, k * k)).reshape(resamples, k, k), prior=prior)
    low, high = np.percentile(found, [2.5, 97.5], axis=0)
    factor = math.sqrt(n / (n - 1))
    return [
        (float(middle + (a - middle) * factor), float(middle + (b - middle) * factor))
        for middle, a, b in zip(center, low, high, strict=True)
    ]


def _unseen(wins: _Floats) -> _Floats:
    """A case for each preference between two that met and that was never seen."""
    k = wins.shape[-1]
    has_met = wins.sum(axis=0) + wins.sum(axis=0).T > 0
    is_seen = (wins > np.swapaxes(wins, 1, 2)).any(axis=0)
    missing = np.argwhere(has_met & ~is_seen)
    found: _Floats = np.zeros((len(missing), k, k))
    found[np.arange(len(missing)), missing[:, 0], missing[:, 1]] = 1.0
    return found


def p_anytime(wins: int, losses: int) -> float:
    """Two-sided p of no preference that holds however often one looks, and whenever one stops.

    It is one over the likelihood ratio of all shares from 0 to 1, equally likely, against one half, which by
    Ville's inequality exceeds 20 in at most 5 % of all sequences of votes without preference, ever.
    """
    n = wins + losses
    log_ratio = n * math.log(2) + math.lgamma(wins + 1) + math.lgamma(losses + 1) - math.lgamma(n + 2)
    return min(1.0, math.exp(-log_ratio)) if log_ratio > 0 else 1.0


def p_of(wins: int, losses: int, *, is_complete: bool = False) -> float:
    """Two-sided p of no preference, for whoever stops whenever they like, or else when all is asked.

    Half of the risk goes to looking at every vote, half to the sign test at the end, whose number of
    questions was known from the start: together they mislead no more often than either would alone.
    """
    p = p_anytime(wins, losses)
    return min(1.0, 2 * (min(p, sign_test(wins, losses)) if is_complete else p))


def is_settled(wins: int, losses: int, comparisons: int = 1, *, is_complete: bool = False) -> bool:
    """Whether a preference is shown, where as many pairs are looked at."""
    return p_of(wins, losses, is_complete=is_complete) * comparisons < LEVEL


def can_settle(wins: int, losses: int, left: int, comparisons: int = 1) -> bool:
    """Whether so many more votes, which are the last ones, could show a preference, if all went one way."""
    return is_settled(max(wins, losses) + left, min(wins, losses), comparisons, is_complete=True)


def votes_needed(wins: int, losses: int, comparisons: int = 1) -> int | None:
    """About how many more votes would show the preference that these have; None if it is too small."""
    n = wins + losses
    share = (max(wins, losses) + 0.5) / (n + 1)
    if n < 2 or wins == losses:
        return None

    def would_show(more: int) -> bool:
        expected = round(share * (n + more))
        return is_settled(expected, n + more - expected, comparisons)

    found = bisect_left(range(1, _MOST_VOTES), True, key=would_show) + 1
    return found if found < _MOST_VOTES else None


def half_wins(choices: Sequence[tuple[int, int, float]], k: int) -> _Floats:
    """A matrix of wins from triples: one, another, and what the first one got of the two, from 0 to 1."""
    wins = np.zeros((k, k))
    for one, other, share in choices:
        wins[one, other] += share
        wins[other, one] += 1 - share
    return wins
