"""The statistics on data whose truth is known, and against values worked out by hand."""

import math

import numpy as np
import pytest

from tinykit.lab import statistics


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch):
    monkeypatch.setattr(statistics, "_PERMUTATIONS", 2000)


def simulated(kind, chance, n, shift=0.0):
    """Paired differences whose true mean is `shift`."""
    if kind == "normal":
        return chance.normal(shift, 20.0, n)
    if kind == "skewed":
        return chance.exponential(10.0, n) - 10.0 + shift
    before = chance.random(n) < 0.5  # pass and fail, correlated
    flips = chance.random(n)
    after = np.where(flips < 0.15, chance.random(n) < 0.5 + shift / 0.15, before)
    return after.astype(float) - before.astype(float)


@pytest.mark.parametrize("kind", ["normal", "skewed", "pass and fail"])
def test_the_interval_covers_the_truth_in_92_to_98_of_100_simulations(kind):
    chance, covered, rounds = np.random.default_rng(7), 0, 300
    for number in range(rounds):
        low, high = statistics.interval(simulated(kind, chance, 200), resamples=500, seed=number)
        covered += low <= 0 <= high
    assert 0.92 <= covered / rounds <= 0.98


@pytest.mark.parametrize("n", [15, 30])
def test_the_interval_covers_nine_of_ten_with_few_cases_too(n):
    chance, covered, rounds = np.random.default_rng(8), 0, 400
    for number in range(rounds):
        low, high = statistics.interval(simulated("normal", chance, n), resamples=1000, seed=number)
        covered += low <= 0 <= high
    assert covered / rounds >= 0.91


@pytest.mark.parametrize("kind", ["normal", "pass and fail"])
def test_p_is_small_by_chance_as_often_as_it_says(kind):
    chance, found = np.random.default_rng(3), []
    for _ in range(300):
        values = simulated(kind, chance, 40)
        if kind == "normal":
            found.append(statistics.permutation_test(values))
        else:
            found.append(statistics.sign_test(int((values > 0).sum()), int((values < 0).sum())))
    assert sum(p < 0.05 for p in found) / len(found) <= 0.08  # the exact test is careful, the other is near


def test_a_planted_difference_is_found_and_needed_cases_are_about_right():
    chance = np.random.default_rng(5)
    spread = simulated("normal", chance, 2000)
    needed = statistics.cases_needed(spread, 5.0)
    assert 110 <= needed <= 145  # ((1.96 + 0.84) · 20 / 5)² = 125
    found = [statistics.permutation_test(simulated("normal", chance, needed, 5.0)) < 0.05 for _ in range(100)]
    assert 0.7 <= sum(found) / 100 <= 0.9  # four of five


def test_smallest_effect_is_the_other_side_of_cases_needed():
    values = list(np.random.default_rng(1).normal(0, 20, 160))
    smallest = statistics.smallest_effect(values)
    assert statistics.cases_needed(values, smallest) in (160, 161)


SIGNS = [(0, 0, 1.0), (1, 0, 1.0), (5, 0, 2 / 32), (15, 5, 2 * 21700 / 2**20), (10, 10, 1.0), (3, 0, 0.25)]


@pytest.mark.parametrize(("better", "worse", "p"), SIGNS)
def test_sign_test_is_the_binomial_one(better, worse, p):
    assert statistics.sign_test(better, worse) == pytest.approx(p) == statistics.sign_test(worse, better)


def test_sign_test_stays_finite_for_many_cases():
    assert statistics.sign_test(50_000, 50_000) == pytest.approx(1.0, abs=0.01)
    assert 0 <= statistics.sign_test(3000, 1000) < 1e-100
    assert statistics.sign_test(520, 480) == pytest.approx(0.2180, abs=0.001)


def test_permutation_test_by_hand():
    assert statistics.permutation_test([1, 2, 3]) == 2 / 8  # only all the same sign is as far out
    assert statistics.permutation_test([1, 1, -1]) == 1.0
    assert statistics.permutation_test([0, 0]) == statistics.permutation_test([]) == 1.0


def test_permutation_by_draws_agrees_with_the_exact_one(monkeypatch):
    values = list(np.random.default_rng(2).normal(0.4, 1, 12))
    exact = statistics.permutation_test(values)
    monkeypatch.setattr(statistics, "_EXACT_PAIRS", 3)
    assert statistics.permutation_test(values) == pytest.approx(exact, abs=0.03)


def test_holm_by_hand():
    assert statistics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert statistics.holm([0.9, 0.8]) == [1.0, 1.0]
    assert statistics.holm([]) == []


def test_the_same_values_give_the_same_interval_and_none_at_all_a_point():
    values = list(np.random.default_rng(4).normal(1, 2, 50))
    assert statistics.interval(values) == statistics.interval(values)
    assert statistics.interval([2.0, 2.0]) == (2.0, 2.0)
    assert statistics.interval([]) == (0.0, 0.0)
    assert math.isclose(sum(statistics.interval(values)) / 2, np.mean(values), abs_tol=0.2)
