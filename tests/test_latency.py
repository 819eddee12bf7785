"""What is measured and how it is shown; no figure is asserted."""

import json
import subprocess
from dataclasses import replace

import pytest

from tests import tiny_models as tiny
from tinykit import TinySession
from tinykit.errors import BackendError, OptionError
from tinykit.latency import ColdStart, Latency, Spread, cold_start, measure

SPREAD = Spread((0.1, 0.3, 0.2))
FOUND = Latency(
    model="m", runs=3, load_s=SPREAD, ttft_s=SPREAD, answer_s=SPREAD, title_s=SPREAD,
    decode_tokens_per_s=Spread((50.0, 40.0)), prefill_tokens_per_s=Spread((300.0,)),
    cold=ColdStart(0.5, 1.0, 0.25, 2.0), busy=0.1, about={"device": "cpu", "threads": 2},
)  # fmt: skip


@pytest.mark.parametrize(
    ("values", "p50", "p95"),
    [((5.0,), 5.0, 5.0), ((1.0, 3.0), 2.0, 2.9), (tuple(map(float, range(101))), 50.0, 95.0)],
)
def test_percentiles(values, p50, p95):
    spread = Spread(values)
    assert (spread.p50, spread.p95) == pytest.approx((p50, p95))


def test_table_has_medians_and_the_slow_end():
    assert FOUND.table().rows == (
        ("new process: import, ms", "500", "-"),
        ("new process: load, ms", "1000", "-"),
        ("new process: first title, ms", "250", "-"),
        ("new process: all, ms", "2000", "-"),
        ("load again, ms", "200", "290"),
        ("first token, ms", "200", "290"),
        ("answer, ms", "200", "290"),
        ("title, ms", "200", "290"),
        ("read, tokens/s", "300", "300"),
        ("write, tokens/s", "45", "40"),
    )
    assert FOUND.table().caption == "m: 3 runs on cpu, 2 threads"


def test_cold_start_is_shown_as_a_table():
    data, metadata = FOUND.cold._repr_mimebundle_()
    assert "new process: load, ms         1000" in data["text/plain"] and "<caption" in data["text/html"]
    assert metadata["tinykit"]["process_s"] == 2.0


def test_plot_has_a_text_twin_with_the_same_numbers():
    plot = FOUND.plot()
    assert [label for label, _ in plot.bars][:2] == ["new process, first title", "load again, median"]
    for _, value in plot.bars:
        assert f"{value:,.0f}" in plot.text() and f"{value:,.0f}" in plot.html()


def test_busy_machine_is_said():
    assert "busy (2.5 processes a core)" in replace(FOUND, busy=2.5, cold=None).table().caption


def test_figures_are_plain_values():
    assert json.loads(json.dumps(FOUND.to_dict()))["cold"]["load_s"] == 1.0
    assert FOUND._repr_mimebundle_()[1]["tinykit"]["ttft_s"] == {"values": (0.1, 0.3, 0.2)}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("latency")
    return tiny.write_gguf(folder / "tiny.gguf", "llama", tiny.random_weights("llama"), "F32")


def test_measures_what_it_says(file, monkeypatch):
    reused = []
    complete = TinySession.complete

    def noted(self, *args, **options):
        reused.append(options["reuse"])
        return complete(self, *args, **options)

    monkeypatch.setattr(TinySession, "complete", noted)
    events = []
    with TinySession(file, dtype="fp32", progress=events.append, lazy=True) as session:
        found = measure(session, recipe="first-words", runs=2, warmup=1, max_tokens=3)
        assert session.is_loaded
    ends = [event.message for event in events if event.status == "done" and "measure" in event.name]
    assert [end.partition(" in ")[0] for end in ends] == [
        f"tiny: measure: {amount}" for amount in ("1 process start", "2 loads", "3 answers", "3 titles")
    ]
    assert reused == [False] * 3
    assert (found.model, found.runs) == ("tiny", 2)
    for spread in (found.ttft_s, found.answer_s, found.title_s, found.load_s, found.decode_tokens_per_s):
        assert len(spread.values) == 2 and min(spread.values) >= 0
    assert found.cold.process_s >= found.cold.load_s > 0
    assert found.about["threads"] >= 1


@pytest.mark.parametrize(
    ("stderr", "why"),
    [
        (
            "Traceback\n  File x\ntinykit.errors.OptionError: No toaster.\nTake another.",
            "OptionError: No toaster.",
        ),
        ("killed", "killed"),
        ("", "Command"),
    ],
)
def test_failed_process_says_why(file, monkeypatch, stderr, why):
    def fail(command, **options):
        raise subprocess.CalledProcessError(1, "Command", "", stderr)

    monkeypatch.setattr(subprocess, "run", fail)
    session, message = TinySession(file, dtype="fp32", lazy=True), f"process for tiny failed: .*{why}"
    with pytest.raises(BackendError, match=message):
        cold_start(session)


def test_no_runs_are_an_error(file):
    with (
        TinySession(file, dtype="fp32", lazy=True) as session,
        pytest.raises(OptionError, match="runs must be"),
    ):
        measure(session, runs=0)
