import pytest

from tinykit.peers.figures import Batch, Figures, Sample, paired_ratio, unpaired_ratio


def sample(engine, message, total_s, *, mode="nat", ttft_s=0.1, tokens=8, prompt_tokens=100, round=0):
    return Sample(engine, "short", mode, message, round, total_s, ttft_s, tokens, prompt_tokens, "t")


def test_medians_are_of_messages_and_the_95_percent_of_all_titles():
    times = {0: (0.1, 0.3), 1: (0.4, 0.6), 2: (0.9, 0.9)}
    figures = Figures([sample("a", m, t, round=r) for m, pair in times.items() for r, t in enumerate(pair)])
    assert figures.by_message("a", "short", "nat") == pytest.approx({0: 0.2, 1: 0.5, 2: 0.9})
    assert figures.median("a", "short", "nat") == pytest.approx(0.5)
    assert figures.p95("a", "short", "nat") == pytest.approx(0.9)
    assert figures.median("a", "long", "nat") is None


def test_ratio_uses_the_messages_that_both_have():
    figures = Figures(
        [sample("a", m, 0.1 * m) for m in (1, 2, 3)] + [sample("b", m, 0.2 * m) for m in (2, 3, 4)]
    )
    ratio = figures.ratio("a", "b", "short", "nat")
    assert ratio.value == ratio.low == ratio.high == pytest.approx(0.5)
    assert figures.ratio("a", "c", "short", "nat") is None


def test_interval_holds_the_ratio_and_grows_with_the_noise():
    ours = [1.0, 1.1, 0.9, 1.0, 1.2, 0.8]
    steady = paired_ratio(ours, [2 * one for one in ours])
    noisy = paired_ratio(ours, [2.0, 1.0, 4.0, 3.0, 1.5, 2.5])
    assert steady.low == steady.high == pytest.approx(0.5)
    assert noisy.low < noisy.value < noisy.high
    apart = unpaired_ratio([1.0, 1.2, 1.1], [2.0, 2.2, 2.1])
    assert apart.low <= apart.value <= apart.high and apart.value == pytest.approx(1.1 / 2.1)


def test_speeds_come_from_first_tokens_and_fixed_answers():
    slow = [
        sample("a", m, 1.0, ttft_s=0.05 + 0.002 * n, prompt_tokens=n) for m, n in enumerate((80, 120, 400))
    ]
    fixed = [sample("a", 5, 0.38, mode="fix8", ttft_s=0.1, tokens=8, prompt_tokens=None)]
    figures = Figures(slow + fixed)
    assert figures.prefill_s("a") == pytest.approx(0.002)
    assert figures.decode_s("a") == pytest.approx(0.04)
    assert figures.prefill_s("b") is None and figures.decode_s("b") is None


def test_best_and_throughput():
    figures = Figures(
        [sample("a", 0, 0.3), sample("b", 0, 0.2)], [Batch("a", 4, r, 1) for r in (1.0, 3.0, 2.0)]
    )
    assert figures.best(["a", "b", "c"], "short", "nat") == "b"
    assert figures.throughput("a", 4) == 2.0 and figures.throughput("a", 16) is None
