import pytest

from tests.widgets.conftest import plain
from tests.widgets.typist import WAIT_S, typing_session
from tinykit.errors import OptionError
from tinykit.latency import Measured
from tinykit.widgets import LatencyView
from tinykit.widgets.latency import plot_svg


@pytest.fixture
def view():
    session, typist = typing_session("wrap a gift", hold_at=None)
    found = LatencyView(session, runs=3, max_tokens=8)
    found.box
    found.typist = typist
    yield found
    typist.go_on.set()
    found.close()


def test_measure_fills_table_plot_and_text(view):
    view.run_button.click()
    assert view.wait(WAIT_S)
    assert len(view.runs) == 3
    assert view.status == "3 runs measured."
    text, table = view.text(), plain(view.table.value)
    for number, run in enumerate(view.runs, 1):
        assert run.tokens == 8 and run.ttft_s > 0 and run.total_s >= run.ttft_s
        for figure in (f"{run.ttft_s:.3f} s", f"{run.tokens_per_s:.1f}", f"{run.total_s:.3f} s", str(number)):
            assert figure in text and figure in table
    assert text.splitlines()[-1].startswith("Median of 3: first token")
    assert text.splitlines()[-1] in table
    assert view.plot.value.count("<rect") == 6
    assert 'role="img" aria-label="Seconds of 3 runs' in view.plot.value


def test_each_run_computes_its_prompt_anew(view):
    view.start(2)
    assert view.wait(WAIT_S)
    prompts = [call for call in view.typist.calls if len(call) > 1]
    assert len(prompts) == 2 and prompts[0] == prompts[1]


def test_number_of_runs_is_a_field(view):
    view.count.value = 1
    view.run_button.click()
    assert view.wait(WAIT_S)
    assert len(view.runs) == 1
    view.clear_button.click()
    assert view.runs == ()
    assert "Nothing was measured yet." in view.table.value and view.plot.value == ""


def test_stop_keeps_the_runs_that_are_done(view):
    view.start(1)
    assert view.wait(WAIT_S)
    view.typist.hold_at = 4
    view.start(50)
    assert view.typist.begun.wait(WAIT_S)
    view.stop_button.click()
    view.typist.go_on.set()
    assert view.wait(WAIT_S)
    assert len(view.runs) == 1
    assert view.status == "Stopped; the runs that are done stay."


def test_completions_of_ones_own_can_be_added(view):
    completion = view._session.complete("hello there", max_tokens=5)
    view.add(completion)
    (run,) = view.runs
    assert (run.tokens, run.ttft_s) == (5, completion.timings.ttft_s)
    assert "1 run," in view.plot.value


def test_run_without_tokens_has_dashes_and_a_bar():
    run = Measured(prompt_tokens=3, ttft_s=None, tokens=0, tokens_per_s=None, total_s=0.0, prefill_s=0.0)
    assert plot_svg([run]).count("<rect") == 2


@pytest.mark.parametrize("runs", [0, 1001])
def test_number_of_runs_is_checked(runs):
    with pytest.raises(OptionError, match="runs must be from 1 to 1,000"):
        LatencyView(typing_session("a")[0], runs=runs)
