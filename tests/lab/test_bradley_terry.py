"""Strengths against a known library and on simulated votes; evidence that survives being looked at."""

import math

import numpy as np
import pytest

from tinykit.lab import bradley_terry as bt
from tinykit.lab.statistics import sign_test


def simulated(logs, n, chance, ties=0.0):
    """Votes as triples: one, another, what the first one got."""
    found = []
    for _ in range(n):
        i, j = chance.choice(len(logs), 2, replace=False)
        is_won = chance.random() < 1 / (1 + math.exp(logs[j] - logs[i]))
        found.append((i, j, 0.5 if chance.random() < ties else float(is_won)))
    return found


@pytest.mark.parametrize("k", [2, 3, 6])
def test_strengths_are_those_of_choix(k):
    choix = pytest.importorskip("choix")
    chance = np.random.default_rng(k)
    votes = simulated(np.linspace(-1, 1, k), 80 * k, chance, ties=0.2)
    twice = []  # choix knows no ties: each vote counts as two, a tie as one each way
    for i, j, share in votes:
        twice += {1.0: [(i, j)] * 2, 0.5: [(i, j), (j, i)], 0.0: [(j, i)] * 2}[share]
    theirs = choix.opt_pairwise(k, twice)
    ours = bt.strengths(bt.half_wins(votes, k), prior=0)
    assert ours == pytest.approx(theirs - theirs.mean(), abs=1e-4)
    assert choix.ilsr_pairwise(k, twice) == pytest.approx(ours, abs=1e-4)


def test_strengths_by_hand():
    assert bt.strengths([[0, 40], [20, 0]], prior=0) == pytest.approx([math.log(2) / 2, -math.log(2) / 2])
    # a chain of 2 to 1 and 3 to 1: what was never compared follows
    logs = bt.strengths([[0, 20, 0], [10, 0, 30], [0, 10, 0]], prior=0)
    assert logs[0] - logs[1] == pytest.approx(math.log(2)) and logs[1] - logs[2] == pytest.approx(math.log(3))


def test_who_always_wins_is_strong_and_not_endless():
    logs = bt.strengths([[0, 20], [0, 0]])
    assert logs[0] - logs[1] == pytest.approx(math.log(20.5 / 0.5)) and logs.sum() == pytest.approx(0)
    assert bt.strengths(np.zeros((3, 3))) == pytest.approx([0, 0, 0])


def test_intervals_cover_the_truth_in_92_to_98_of_100_simulations():
    truth = np.array([0.5, 0.0, -0.5])
    chance, covered, rounds = np.random.default_rng(5), 0, 120
    for seed in range(rounds):
        votes = simulated(truth, 200, chance, ties=0.0)
        cases = [bt.half_wins([vote], 3) for vote in votes]
        spans = bt.intervals(cases, resamples=300, seed=seed)
        covered += sum(low <= true <= high for true, (low, high) in zip(truth, spans, strict=True))
    assert 0.92 <= covered / (3 * rounds) <= 0.98


def test_intervals_of_nothing_have_no_ends():
    assert bt.intervals([bt.half_wins([(0, 1, 1.0)], 2)]) == [(-math.inf, math.inf)] * 2
    cases = [bt.half_wins([(0, 1, share)], 2) for share in (1.0, 0.0, 1.0)] * 10
    assert bt.intervals(cases) == bt.intervals(cases)


@pytest.mark.parametrize("share", [1.0, 0.5], ids=["always preferred", "always a tie"])
def test_a_few_votes_that_are_all_the_same_are_not_taken_for_certain(share):
    (low, high), _ = bt.intervals([bt.half_wins([(0, 1, share)], 2)] * 8)
    few = high - low
    (low, high), _ = bt.intervals([bt.half_wins([(0, 1, share)], 2)] * 200)
    assert (
        few > 0.4
        and (share == 0.5 or low > 1)
        and (share == 1.0 or (low < 0 < high and high - low < few / 2))
    )


def test_whoever_looks_after_every_vote_is_fooled_in_five_of_100_at_most():
    chance, fooled, by_sign_test, rounds = np.random.default_rng(1), 0, 0, 500
    for _ in range(rounds):
        wins = np.cumsum(chance.random(150) < 0.5)
        steps = [(int(w), n - int(w)) for n, w in enumerate(wins, start=1)]
        fooled += any(bt.is_settled(*step, is_complete=step == steps[-1]) for step in steps)
        by_sign_test += any(sign_test(*step) < 0.05 for step in steps)
    assert fooled / rounds <= 0.05 < 0.15 < by_sign_test / rounds  # which is why it is not used


def test_a_planted_preference_is_found_and_the_votes_needed_are_about_right():
    chance, stops = np.random.default_rng(2), []
    for _ in range(200):
        wins = losses = 0
        while not bt.is_settled(wins, losses) and wins + losses < 400:
            if chance.random() < 0.7:
                wins += 1
            else:
                losses += 1
        stops.append((wins + losses, wins > losses))
    assert np.mean([is_right for _, is_right in stops]) >= 0.98
    assert (
        0.5 * np.median([n for n, _ in stops])
        <= bt.votes_needed(7, 3) + 10
        <= 2 * np.median([n for n, _ in stops])
    )


@pytest.mark.parametrize(("wins", "losses"), [(8, 0), (30, 5), (5, 30)])
def test_evidence_by_hand(wins, losses):
    n = wins + losses
    ratio = 2**n / (math.comb(n, wins) * (n + 1))
    assert bt.p_anytime(wins, losses) == pytest.approx(1 / ratio)
    assert bt.is_settled(wins, losses) == (ratio > 40)


def test_evidence_at_its_edges():
    assert bt.p_anytime(0, 0) == bt.p_anytime(5, 5) == 1.0
    assert not bt.is_settled(8, 0) and bt.is_settled(9, 0) and not bt.is_settled(9, 0, comparisons=3)
    assert bt.is_settled(7, 0, is_complete=True) and not bt.is_settled(6, 0, is_complete=True)
    assert bt.can_settle(5, 0, 2) and not bt.can_settle(5, 0, 1)
    assert bt.votes_needed(5, 5) is bt.votes_needed(1, 0) is None
    more = bt.votes_needed(12, 6)
    assert 40 < more < 150 and bt.votes_needed(12, 6, comparisons=3) > more
    assert 0 <= bt.p_anytime(40_000, 100) < 1e-300
