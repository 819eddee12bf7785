import json

import pytest

from tests.peers.conftest import scripted
from tinykit.peers import report
from tinykit.peers.accuracy import Accuracy
from tinykit.peers.figures import Batch, Figures, Sample


def sample(engine, length, mode, total_s, tokens=8, prompt_tokens=100, message=0):
    return Sample(engine, length, mode, message, 0, total_s, 0.1, tokens, prompt_tokens, "t")


@pytest.fixture
def figures(script_peers):
    script_peers(**{
        "tinykit": scripted("tinykit"), "tinykit-draft": scripted("tinykit"), "openvino": scripted("openvino"),
    })  # fmt: skip
    times = {"tinykit": 0.2, "tinykit-draft": 0.15, "openvino": 0.4}
    return Figures(
        [sample(name, length, "nat", s) for name, s in times.items() for length in ("short", "long")]
        + [sample(name, "short", "fix8", times[name]) for name in ("tinykit", "openvino")],
        [Batch("tinykit", 64, 5.0, 1), Batch("openvino", 64, 4.0, 1)],
        cold_s={"tinykit": [1.0, 1.0], "openvino": [2.0, 2.0]},
        load_s={"tinykit": [0.5, 0.5], "openvino": [1.5, 1.5]},
        peak_bytes={"tinykit": 60_000_000, "openvino": 100_000_000},
        others=[0.01, 0.02],
    )  # fmt: skip


def test_ratios_take_the_best_extras_for_titles_and_none_else(figures):
    found = {one.what: one for one in report.comparisons(figures)}
    short = found["a title, short"]
    assert (short.ours, short.theirs, short.mark) == ("tinykit-draft", "openvino", 0.5)
    assert short.ratio.value == pytest.approx(0.375) and short.is_reached
    fixed = found["8 tokens, short"]
    assert (fixed.ours, fixed.ratio.value, fixed.is_reached) == ("tinykit", pytest.approx(0.5), True)
    batched = found["titles/s, 64 at once"]
    assert batched.ratio.value == pytest.approx(1.25) and batched.is_reached is False  # 1.3 at least
    assert found["peak memory"].is_reached and found["cold start, fastest peer"].is_reached
    assert found["a title, long"].is_reached and "8 tokens, long" not in found


def test_without_us_there_is_nothing_to_compare(script_peers):
    script_peers(openvino=scripted("openvino"))
    assert report.comparisons(Figures([sample("openvino", "short", "nat", 0.1)])) == []


def test_text_page_and_json_hold_the_same(figures):
    gate = Accuracy("tiny", "q8", 100, 900, 0.011, 0.05, 0.95)
    lines = []
    report.show(figures, [gate], lines.append)
    text, page = "\n".join(lines), report.page(figures, [gate])
    for shown in ("tinykit-draft", "0.50", "0.0110", "0.950", "peak memory", "The machine was quiet"):
        assert shown in text and shown in page
    assert "<svg" in page and "####" in text
    found = json.loads(json.dumps(report.to_json(figures, [gate])))
    assert found["is_measurement"] and found["accuracy"][0]["passes"]
    assert found["engines"]["openvino"]["short_nat_p50_ms"] == pytest.approx(400)
    assert found["engines"]["tinykit"]["titles_per_s"] == {"64": 5.0}


def test_a_busy_machine_gives_no_measurement(figures):
    figures.others = [0.0, 0.5, 0.3]
    assert not report.is_measurement(figures) and "no measurements" in report.verdict_line(figures)
    assert report.to_json(figures)["is_measurement"] is False
    figures.others = [0.0] * 19 + [0.5]
    assert report.is_measurement(figures)
    figures.others = [None]
    assert "cannot be seen" in report.verdict_line(figures)


def test_notes_say_what_is_not_alike(figures):
    assert report.notes(figures) == []
    figures.samples += [
        sample("openvino", "long", "fix8", 0.3, tokens=5, message=1),
        sample("openvino", "short", "nat", 0.3, prompt_tokens=99, message=1),
        sample("tinykit", "short", "nat", 0.3, prompt_tokens=100, message=1),
    ]
    few, other = report.notes(figures)
    assert few == "openvino wrote another number than 8 tokens in 1 of 2 cases."
    assert other.startswith("openvino makes other tokens than tinykit of 1 of")


@pytest.mark.parametrize(
    ("kl", "top1", "passes"), [(0.02, 0.92, True), (0.021, 0.95, False), (0.01, 0.91, False)]
)
def test_gate(kl, top1, passes):
    gate = Accuracy("tiny", "q8", 100, 900, kl, 0.05, top1)
    assert gate.passes is passes and gate.to_dict()["passes"] is passes
