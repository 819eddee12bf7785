import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tinykit.errors import BackendError, OptionError
from tinykit.generation.distribution import drawn, largest
from tinykit.generation.sampling import Sampler, Sampling, logprob

NO = -math.inf


def logs(*probabilities):
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(probabilities, dtype=np.float32))
    logits.setflags(write=False)  # a sampler that writes into them fails
    return logits


EIGHTHS = logs(0.125, 0.5, 0.25, 0.125)


def slow_distribution(logits, sampling, prompt=(), answer=(), allowed=None):
    """The same in plain Python: {token id: probability}, and how near the nearest decision was."""
    values = [float(x) for x in logits]
    for token_id, bias in sampling.logit_bias:
        values[token_id] += bias
    for token_id in set(prompt) | set(answer):
        x = values[token_id]
        values[token_id] = x / sampling.repeat_penalty if x > 0 else x * sampling.repeat_penalty
    for token_id in answer:
        values[token_id] -= sampling.frequency_penalty
    order = [i for i in range(len(values)) if allowed is None or allowed[i]]
    order.sort(key=lambda i: (-values[i], i))
    order = order[: sampling.top_k or None]
    highest = values[order[0]]
    weights = [math.exp((values[i] - highest) / sampling.temperature) for i in order]
    total, mass, kept, margin = math.fsum(weights), 0.0, [], math.inf
    for index, weight in enumerate(weights):
        kept.append(order[index])
        mass += weight
        margin = min(margin, abs(mass / total - sampling.top_p))
        if mass >= sampling.top_p * total and sampling.top_p < 1:
            break
    weights = dict(zip(order, weights, strict=True))
    margin = min(margin, *(abs(weights[i] - sampling.min_p) for i in kept)) if sampling.min_p else margin
    kept = [i for i in kept if weights[i] >= sampling.min_p and weights[i] > 0]
    total = math.fsum(weights[i] for i in kept)
    return {i: weights[i] / total for i in sorted(kept)}, margin


def uniforms(seed):
    bits = np.random.PCG64(seed)
    while True:
        yield int(bits.random_raw()) / 2**64


def accepted(sampler, token_ids):
    for token_id in token_ids:
        sampler.accept(token_id)
    return sampler


HAND = [
    ("plain", {}, [0, 1, 2, 3], [1 / 8, 1 / 2, 1 / 4, 1 / 8]),
    ("cold", {"temperature": 0.5}, [0, 1, 2, 3], [1 / 22, 16 / 22, 4 / 22, 1 / 22]),
    ("top_k", {"top_k": 2}, [1, 2], [2 / 3, 1 / 3]),
    ("top_k takes the first of equals", {"top_k": 3}, [0, 1, 2], [1 / 7, 4 / 7, 2 / 7]),
    ("top_k of more than there are", {"top_k": 9}, [0, 1, 2, 3], [1 / 8, 1 / 2, 1 / 4, 1 / 8]),
    ("top_p", {"top_p": 0.7}, [1, 2], [2 / 3, 1 / 3]),
    ("top_p takes the first of equals", {"top_p": 0.8}, [0, 1, 2], [1 / 7, 4 / 7, 2 / 7]),
    ("top_p keeps one", {"top_p": 0}, [1], [1]),
    ("top_p after temperature", {"top_p": 0.7, "temperature": 0.5}, [1], [1]),
    ("top_p of what top_k left", {"top_k": 2, "top_p": 0.6}, [1], [1]),
    ("min_p", {"min_p": 0.4}, [1, 2], [2 / 3, 1 / 3]),
    ("min_p after temperature", {"min_p": 0.2, "temperature": 0.5}, [1, 2], [4 / 5, 1 / 5]),
    ("min_p of all", {"min_p": 1}, [1], [1]),
    ("bias", {"logit_bias": {0: math.log(4)}}, [0, 1, 2, 3], [4 / 11, 4 / 11, 2 / 11, 1 / 11]),
    ("ban", {"logit_bias": {1: NO}}, [0, 2, 3], [1 / 4, 1 / 2, 1 / 4]),
]


@pytest.mark.parametrize(("name", "options", "token_ids", "probabilities"), HAND, ids=[h[0] for h in HAND])
def test_distribution_by_hand(name, options, token_ids, probabilities):
    sampler = Sampler(Sampling(**{"temperature": 1.0} | options), [], 4)
    found = sampler.distribution(EIGHTHS)
    assert found[0].tolist() == token_ids
    assert found[1] == pytest.approx(probabilities, rel=1e-6)


def test_repeat_penalty_divides_positive_and_multiplies_negative_logits_once():
    logits = np.array([2.0, -2.0, 2.0, -2.0, 0.0], np.float32)
    sampler = accepted(Sampler(Sampling(temperature=1, repeat_penalty=2), [0, 0], 5), [1, 1])
    weights = np.exp([1.0, -4.0, 2.0, -2.0, 0.0])
    assert sampler.distribution(logits)[1] == pytest.approx(weights / weights.sum(), rel=1e-6)


def test_frequency_penalty_counts_the_answer_alone():
    sampler = accepted(Sampler(Sampling(temperature=1, frequency_penalty=0.5), [0, 0], 4), [2, 3, 2])
    weights = np.exp([0.0, 0.0, -1.0, -0.5])
    assert sampler.distribution(np.zeros(4, np.float32))[1] == pytest.approx(
        weights / weights.sum(), rel=1e-6
    )


def test_bias_comes_before_the_repeat_penalty():
    options = Sampling(temperature=1, repeat_penalty=2, logit_bias={0: 3.0})
    weights = np.exp([1.0, 0.0])  # (-1 + 3) / 2, not -1 * 2 + 3
    found = Sampler(options, [0], 2).distribution(np.array([-1.0, 0.0], np.float32))[1]
    assert found == pytest.approx(weights / weights.sum(), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "logits", "expected"),
    [
        ({}, [1, 3, 3, 2], 1),
        ({"temperature": 1e-7}, [1, 3, 3, 2], 1),
        ({"temperature": 5, "top_k": 1}, [1, 3, 3, 2], 1),
        ({"logit_bias": {3: 2}}, [1, 3, 3, 2], 3),
        ({"logit_bias": {1: NO}}, [1, 3, 3, 2], 2),
        ({"repeat_penalty": 2}, [1, 3, 3, 2], 2),
        ({}, [NO, NO, -5, NO], 2),
        ({}, [np.finfo(np.float32).min] * 4, 0),
    ],
    ids=repr,
)
def test_greedy_takes_the_most_likely_and_the_lowest_of_equals(options, logits, expected):
    sampler = Sampler(Sampling(**options), [1], 4)
    logits = np.array(logits, np.float32)
    logits.setflags(write=False)
    assert sampler.sampling.is_greedy
    assert (sampler.pick(logits), sampler.seed) == (expected, None)
    assert sampler.distribution(logits)[0].tolist() == [expected]


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0, "top_p": 0.99}, {"logit_bias": {0: 1}}], ids=repr
)
def test_only_allowed_tokens_are_picked(options):
    sampler = Sampler(Sampling(**options), [], 4)
    for token_id in range(4):
        allowed = np.arange(4) == token_id
        assert sampler.pick(EIGHTHS, allowed) == token_id
    assert sampler.pick(EIGHTHS, np.array([True, False, True, False])) in (0, 2)


OPTIONS = st.fixed_dictionaries(
    {
        "temperature": st.floats(0.05, 5),
        "top_k": st.integers(0, 12),
        "top_p": st.one_of(st.just(1.0), st.floats(0, 1)),
        "min_p": st.one_of(st.just(0.0), st.floats(0, 1)),
        "repeat_penalty": st.sampled_from([1.0, 1.3, 0.5]),
        "frequency_penalty": st.sampled_from([0.0, 0.25, -1.0]),
        "seed": st.integers(0, 2**64),
    }
)


@st.composite
def situations(draw):
    # one byte a logit, in eighths: exact in float32, and many equals
    logits = np.frombuffer(draw(st.binary(min_size=1, max_size=20)), np.int8).astype(np.float32) / 8
    size = len(logits)
    prompt, answer, banned = (
        [byte % size for byte in draw(st.binary(max_size=length))] for length in (6, 6, 3)
    )
    bias = dict(zip(banned, (0.5, -2.0, NO), strict=False))
    bits = draw(st.one_of(st.none(), st.integers(1, 2**20 - 1)))
    allowed = None if bits is None else np.array([bool(bits >> i & 1) for i in range(size)])
    assume(any(bias.get(i, 0) > NO and (allowed is None or allowed[i]) for i in range(size)))
    return logits, bias, prompt, answer, allowed


@settings(deadline=None)
@given(situations(), OPTIONS)
def test_distribution_and_draws_are_those_of_the_plain_implementation(situation, options):
    logits, bias, prompt, answer, allowed = situation
    sampling = Sampling(**options, logit_bias=bias)
    sampler = accepted(Sampler(sampling, prompt, len(logits)), answer)
    expected, margin = slow_distribution(logits, sampling, prompt, answer, allowed)
    assume(margin > 1e-5)  # float32 penalties may decide it the other way
    if sampling.is_greedy:
        assert sampler.pick(logits, allowed) in expected
        return
    token_ids, probabilities = sampler.distribution(logits, allowed)
    missing = expected.keys() - set(token_ids.tolist())
    assert set(token_ids.tolist()) <= expected.keys()
    assert all(expected[i] < 1e-300 for i in missing)
    assert probabilities == pytest.approx([expected[i] for i in token_ids.tolist()], rel=1e-3, abs=1e-9)
    ends = np.cumsum(probabilities)
    for uniform, _ in zip(uniforms(sampling.seed), range(5), strict=False):
        at = token_ids.tolist().index(sampler.pick(logits, allowed))
        assert ends[at] - probabilities[at] - 1e-12 <= uniform <= ends[at] + 1e-12


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"top_k": 40},
        {"top_k": 700},
        {"top_p": 0.5},
        {"top_p": 0.9},
        {"top_p": 0.999},
        {"top_p": 0.9, "temperature": 3},
        {"top_k": 6000, "top_p": 0.95},
        {"min_p": 0.05},
        {"top_p": 0.97, "min_p": 0.01, "repeat_penalty": 1.2, "frequency_penalty": 0.3},
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    ("step", "is_masked"), [(None, False), (0.25, True)], ids=["smooth", "many_equals_masked"]
)
def test_whole_vocabularies_are_as_the_plain_implementation_says(options, step, is_masked):
    random = np.random.default_rng(7)
    size = 20_001  # no multiple of anything
    logits = random.gumbel(scale=2, size=size).astype(np.float32)
    logits = logits if step is None else (logits / np.float32(step)).round() * np.float32(step)
    logits[random.integers(0, size, 50)] = np.finfo(np.float32).min  # as exported models mask tokens
    logits[random.integers(0, size, 50)] = NO
    allowed = random.random(size) < 0.4 if is_masked else None
    prompt, answer = random.integers(0, size, 300).tolist(), random.integers(0, size, 50).tolist()
    sampling = Sampling(**{"temperature": 0.8, "seed": 11} | options)
    sampler = accepted(Sampler(sampling, prompt, size), answer)
    expected, _ = slow_distribution(logits, sampling, prompt, answer, allowed)
    token_ids, probabilities = sampler.distribution(logits, allowed)
    # float32 sums may end the nucleus a token earlier or later
    assert len(set(token_ids.tolist()) ^ expected.keys()) <= (1 if "top_p" in options and step is None else 0)
    assert probabilities == pytest.approx([expected.get(i, 0) for i in token_ids.tolist()], rel=1e-4)
    ends = np.cumsum(probabilities)
    for uniform, _ in zip(uniforms(11), range(20), strict=False):
        at = int(np.searchsorted(token_ids, sampler.pick(logits, allowed)))
        assert ends[at] - probabilities[at] - 1e-6 <= uniform <= ends[at] + 1e-6


@pytest.mark.parametrize("size", [5, 5000], ids=["few", "whole_vocabulary"])
def test_draws_come_as_often_as_the_probabilities_say(size):
    values = np.full(size, NO, np.float32)
    values[[0, 2, size - 2]] = np.log(np.array([0.5, 0.2, 0.3], np.float32))
    counts = {}
    for step in range(1000):
        index = drawn(values, 1.0, (step + 0.5) / 1000)
        counts[index] = counts.get(index, 0) + 1
    assert counts == {0: 500, 2: 200, size - 2: 300}


@pytest.mark.parametrize("size", [7, 1024, 5000, 17_000])
@settings(deadline=None, max_examples=30)
@given(st.data())
def test_no_impossible_token_is_drawn_however_sums_are_rounded(size, data):
    possible = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=5, unique=True))
    values = np.full(size, NO, np.float32)
    values[possible] = data.draw(st.lists(st.floats(-30, 30, width=32), min_size=5, max_size=5))[
        : len(possible)
    ]
    for uniform in (0.0, 2.0**-53, 0.5, 1 - 2.0**-53):
        assert drawn(values, 0.7, uniform) in possible


@settings(deadline=None)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=40), st.integers(1, 45), st.sampled_from([1, 97, 400])
)
def test_largest_is_the_head_of_the_sorted_list(values, count, times):
    array = np.tile(np.array(values, np.float32), times)
    expected = sorted(range(len(array)), key=lambda i: (-array[i], i))[:count]
    assert largest(array, count).tolist() == sorted(expected)


def test_a_seed_gives_these_draws_on_every_platform():
    # recorded; PCG64's bits are guaranteed, so another result means that seeds of old runs no longer count
    logits = logs(*[1 / 16] * 16)
    sampler = Sampler(Sampling(temperature=1, seed=1234), [], 16)
    assert [sampler.pick(logits) for _ in range(20)] == RECORDED
    large = np.log(np.arange(1, 30_001, dtype=np.float32))
    sampler = Sampler(Sampling(temperature=0.9, top_p=0.95, seed=5), [], len(large))
    assert [sampler.pick(large) for _ in range(8)] == RECORDED_LARGE


RECORDED = [15, 6, 14, 4, 5, 1, 3, 5, 15, 4, 7, 9, 13, 13, 10, 10, 11, 3, 2, 13]
RECORDED_LARGE = [27225, 27269, 22396, 17525, 10137, 19760, 20291, 9739]


def test_seed_is_drawn_and_reported_when_none_is_given():
    first, second = (Sampler(Sampling(temperature=1), [], 4) for _ in range(2))
    assert first.seed != second.seed  # one in four thousand million
    again = Sampler(Sampling(temperature=1, seed=first.seed), [], 4)
    assert again.seed == first.seed
    assert [first.pick(EIGHTHS) for _ in range(30)] == [again.pick(EIGHTHS) for _ in range(30)]


def test_looking_at_the_distribution_draws_nothing():
    first, second = (Sampler(Sampling(temperature=1, seed=3), [], 4) for _ in range(2))
    for _ in range(10):
        first.distribution(EIGHTHS)
        assert first.pick(EIGHTHS) == second.pick(EIGHTHS)


@pytest.mark.parametrize("bad", [[math.nan, 1, 2], [NO, NO, NO], [1, math.inf, 2], [math.nan] * 3], ids=repr)
@pytest.mark.parametrize("options", [{}, {"temperature": 1}, {"logit_bias": {0: 1}}], ids=repr)
def test_broken_logits_are_named(bad, options):
    sampler = Sampler(Sampling(**options), [], 3)
    logits = np.array(bad, np.float32)
    with pytest.raises(BackendError, match="output is broken: [123] of 3 logits are not finite"):
        sampler.pick(logits)
    with pytest.raises(BackendError, match="broken"):
        sampler.pick(logits, np.array([True, True, True]))
    with pytest.raises(BackendError, match="broken"):
        logprob(logits, 0, 1)


@pytest.mark.parametrize(
    ("options", "allowed", "match", "name"),
    [
        ({}, [False] * 3, "the constraint allows none", "constraint"),
        ({"logit_bias": {0: NO, 1: NO, 2: NO}}, None, "logit_bias bans all", "logit_bias"),
        ({"logit_bias": {0: NO}}, [True, False, False], "logit_bias bans all", "logit_bias"),
        ({}, [False, False, True], "the model itself excludes", "constraint"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("temperature", [0, 1])
def test_nothing_left_is_named(options, allowed, match, name, temperature):
    sampler = Sampler(Sampling(temperature=temperature, **options), [], 3)
    with pytest.raises(OptionError, match=f"No token may come next: .*{match}") as caught:
        sampler.pick(np.array([1, 2, NO], np.float32), None if allowed is None else np.array(allowed))
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("name", "value", "valid"),
    [
        ("temperature", -0.1, "a number from 0 to 100"),
        ("temperature", math.nan, "a number from 0 to 100"),
        ("temperature", math.inf, "a number from 0 to 100"),
        ("temperature", "1", "a number from 0 to 100"),
        ("temperature", None, "a number from 0 to 100"),
        ("temperature", True, "a number from 0 to 100"),
        ("top_k", -1, "a whole number from 0"),
        ("top_k", 1.5, "a whole number from 0"),
        ("top_k", True, "a whole number from 0"),
        ("top_p", 1.01, "a number from 0 to 1"),
        ("min_p", -0.01, "a number from 0 to 1"),
        ("repeat_penalty", 0, "a number from 0.01 to 100"),
        ("frequency_penalty", 101, "a number from -100 to 100"),
        ("seed", -1, "a whole number from 0"),
        ("seed", 1.0, "a whole number from 0"),
        ("logit_bias", {-1: 1.0}, "token ids"),
        ("logit_bias", {"1": 1.0}, "token ids"),
        ("logit_bias", {1: math.inf}, "from -1000 to 1000"),
        ("logit_bias", {1: math.nan}, "from -1000 to 1000"),
        ("logit_bias", {1: None}, "from -1000 to 1000"),
        ("logit_bias", 5, "token ids"),
        ("logit_bias", [1, 2], "token ids"),
        ("logit_bias", "ab", "token ids"),
    ],
    ids=repr,
)
def test_bad_values_are_named_with_the_valid_ones(name, value, valid):
    with pytest.raises(OptionError, match=f"^{name} must .*{valid}") as caught:
        Sampling(**{name: value})
    assert caught.value.name == name
    assert caught.value.value is value


def test_numbers_of_numpy_are_taken_and_become_pythons():
    sampling = Sampling(
        temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint64(7), logit_bias={np.int32(2): 1}
    )
    assert sampling == Sampling(temperature=0.5, top_k=3, seed=7, logit_bias=((2, 1.0),))
    assert {type(sampling.temperature), type(sampling.logit_bias[0][1])} == {float}
    assert {type(sampling.top_k), type(sampling.seed), type(sampling.logit_bias[0][0])} == {int}


def test_sampling_is_hashable_and_does_not_follow_the_callers_mapping():
    bias = {3: 1.0, 1: 2.0}
    sampling = Sampling(logit_bias=bias)
    bias[1] = 9.0
    assert sampling.logit_bias == ((1, 2.0), (3, 1.0))
    assert hash(sampling) == hash(Sampling(logit_bias={1: 2.0, 3: 1.0}))


def test_bias_for_a_token_that_does_not_exist_is_named():
    with pytest.raises(OptionError, match="token 4; the model's last one is 3"):
        Sampler(Sampling(logit_bias={4: 1.0}), [], 4)


def test_logprob_by_hand():
    found = logprob(EIGHTHS, 2, 3)
    assert (found.token_id, found.logprob) == (2, pytest.approx(math.log(0.25)))
    assert [token_id for token_id, _ in found.top] == [1, 2, 0]
    assert [value for _, value in found.top] == pytest.approx(
        [math.log(0.5), math.log(0.25), math.log(0.125)]
    )
    assert logprob(EIGHTHS, 0).top == ()


def test_logprob_leaves_out_what_is_impossible():
    found = logprob(logs(0.0, 1.0, 0.0), 0, 5)
    assert (found.logprob, found.top) == (NO, ((1, 0.0),))


@pytest.mark.parametrize("size", [100, 50_000])
def test_logprobs_are_a_log_softmax(size):
    logits = np.random.default_rng(1).normal(30, 5, size).astype(np.float32)
    exact = logits.astype(np.longdouble)
    exact -= exact.max() + np.log(np.exp(exact - exact.max()).sum())
    found = logprob(logits, size // 2, 7)
    assert found.logprob == pytest.approx(float(exact[size // 2]), abs=1e-12)
    order = np.argsort(-logits, kind="stable")[:7]
    assert [i for i, _ in found.top] == order.tolist()
    assert [x for _, x in found.top] == pytest.approx(exact[order].astype(float).tolist(), abs=1e-12)
