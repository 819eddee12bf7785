"""Plots of stored runs: numbers that can be worked out by hand, and the same ones in both twins."""

import html
import re

import pytest

from tests.lab.test_differences import BASE, CASES, many, stored
from tinykit import lab
from tinykit.errors import OptionError
from tinykit.lab.datasets import Case
from tinykit.lab.metrics import get_metric
from tinykit.lab.plots import _bins
from tinykit.lab.scatter import Point, Scatter, Value

__all__ = ["stored"]  # the fixture
TIMED = {"prefill_s": 0.1, "elapsed_s": 0.5}


def written(page):
    return [html.unescape(text) for text in re.findall(r"<(?:text|figcaption)[^>]*>([^<]*)<", page)]


def same_numbers(chart):
    page, text = chart.html(), chart.text()
    numbers = [number for shown in written(page) for number in re.findall(r"[-+]?\d[\d,.]*", shown)]
    assert numbers and [number for number in numbers if number.rstrip(".") not in text] == []
    assert not re.search(r"#[0-9a-fA-F]{3}|rgb\(|background|color:", page)
    return text


def test_quality_stands_against_the_wait(stored):
    run = stored({"first-words": BASE, "mine": {"a": "Flat rye bread", "b": "Rome", "c": None}}, **TIMED)
    text = same_numbers(run.plot())
    assert "A  first-words: keywords 100.0 (100.0 to 100.0), wait 0.50 s (95th percentile 0.50 s)" in text
    assert "B  mine: keywords 50.0" in text and "Up: keywords, %." in text
    assert (
        "titles" not in text
        and 'aria-label="keywords against the wait for a title. first-words' in run.plot().html()
    )


def test_without_times_of_their_own_there_is_no_wait_but_tokens(stored):
    run = stored({"first-words": BASE, "mine": BASE}, **TIMED, contended=True, completion_tokens=9)
    with pytest.raises(OptionError, match="batch_size=1") as caught:
        run.plot(against="latency_s")
    assert "completion_tokens" in caught.value.hint
    with pytest.raises(OptionError, match="batch_size=1"):
        run.plot("latency")
    assert "completion_tokens 9.0 (9.0 to 9.0)" in same_numbers(run.plot(against="completion_tokens"))
    assert run.plot().text() == run.plot(against="completion_tokens").text()


def test_a_variant_without_times_is_left_out_and_named(stored):
    run = stored({"mine": BASE, "failed": dict.fromkeys("abc", "FAILED")}, **TIMED)
    assert "Not shown, without a value: failed." in same_numbers(run.plot())


def test_the_metric_is_the_first_that_applies(stored):
    no_keywords = [
        Case("a", "my rye bread is flat", references=("Flat rye bread",)),
        Case("b", "plan a trip"),
    ]
    assert (
        run_caption(stored({"mine": BASE}, no_keywords, "one", **TIMED))
        == "chrf against the wait for a title"
    )
    plain = [Case("a", "my rye bread is flat"), Case("b", "plan a trip")]
    assert "words_3_7" in run_caption(stored({"mine": BASE}, plain, "two", **TIMED))


def run_caption(run):
    return run.plot().text().splitlines()[0]


def test_scores_spread(stored):
    run = stored({"first-words": BASE, "mine": {"a": "Flat rye bread", "b": "Rome", "c": None}})
    text = same_numbers(run.plot("scores", "keywords"))
    assert "first-words (mean 100.0 of 2)  mine (mean 50.0 of 2)" in text
    rows = {line.split()[0]: re.findall(r"\d+", line) for line in text.splitlines()[3:]}
    assert rows == {"no": ["0", "1"], "yes": ["2", "1"]}
    chrf = same_numbers(run.plot("scores", "chrf"))
    assert "90-100" in chrf and chrf.splitlines()[-1].split()[-2:] == ["1", "#" * 12]  # the reference itself


@pytest.mark.parametrize("values", [[3.0], [0.0, 0.031], [1, 2, 7, 23], [5, 5, 5], [-3, 100]], ids=str)
def test_every_value_has_one_bin(values):
    edges, names = _bins(values, get_metric("words"))
    assert len(edges) == len(names) <= 11 and len(set(names)) == len(names)
    lows = [float(re.match(r"(-?[\d.]+)-", name)[1]) for name in names]
    assert lows[0] <= min(values) and all(value < edges[-1] for value in values)


def test_latency_has_the_percentiles_of_the_table(stored):
    run = stored({"mine": BASE}, **TIMED)
    text = same_numbers(run.plot("latency"))
    assert text.count("0.500") == 3 and "mine, 95 %" in text


def test_differences_are_drawn_with_their_intervals_and_verdicts(stored):
    cases = many(60)
    old = {case.id: "bad" for case in cases}
    new = {case.id: "good" if at % 2 else "bad" for at, case in enumerate(cases)}
    run = stored({"old": old, "new": new}, cases)
    diff = lab.diff(run["old"], run["new"], metrics=["keywords", "valid", "words"])
    text = same_numbers(diff.plot())
    one = diff["keywords"]
    assert f"+50.0 (+{one.low:.1f} to +{one.high:.1f})  new better" in text
    assert "the same" in text and "new minus old, points" in text and "new minus old, words" in text
    assert diff.plot().html().count("<figure") == 2  # one for each unit
    ranked = same_numbers(run.rank("old", metrics=["keywords"]).plot())
    assert "new, keywords" in ranked and "Each minus old, points" in ranked


def test_word_agrees_with_verdict(stored):
    run = stored({"one": BASE, "two": {"a": "Flat rye bread", "b": "Rome"}})
    for one in lab.diff(run["one"], run["two"]).differences:
        assert one.word.split()[0] in one.verdict


def test_report_has_the_plots_in_both_forms(stored, tmp_path):
    run = stored({"first-words": BASE, "mine": BASE}, **TIMED)
    page = run.report(tmp_path / "r.html").read_text(encoding="utf-8")
    text = run.report(tmp_path / "r.md").read_text(encoding="utf-8")
    for name in ("Quality and wait", "How scores spread", "How long titles take", "Differences"):
        assert f"<h2>{name}</h2>\n<figure" in page and f"## {name}\n\n~~~~~~~~text\n" in text
    assert run.plot("latency").text() in text and not re.search(r"#[0-9a-fA-F]{3,6}\b", page)


def test_report_of_batches_has_no_wait(stored, tmp_path):
    run = stored({"first-words": BASE, "mine": BASE}, **TIMED, contended=True)
    page = run.report(tmp_path / "r.html").read_text(encoding="utf-8")
    assert "Quality and wait" not in page and "How scores spread" in page


def test_unknown_plots_and_metrics_are_told(stored):
    run = stored({"mine": BASE}, CASES)
    with pytest.raises(OptionError, match="plots quality, scores, latency, not 'pie'"):
        run.plot("pie")
    with pytest.raises(OptionError, match="forbidden applies to none"):
        run.plot("scores", "forbidden")


def test_points_in_one_place_have_letters_beside_each_other():
    points = tuple(Point(f"p{at}", Value(1, 1, 1), Value(2, 2, 2), "same") for at in range(30))
    text = Scatter("c", "x", "y", points).text()
    plane = text.partition("Across")[0]
    assert all(letter in plane for letter in "ABCDEFGHIJ") and text.count(": same") == 30
    page = Scatter("c", "x", "y", points[:4]).html()
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="\w+">[A-D]</text>', page)
    assert len(set(places)) == 4
