"""Scores of stored runs and their differences, on rows written by hand: no model anywhere."""

import json
import sys
import types

import numpy as np
import pytest

from tinykit import lab
from tinykit.errors import MissingPackageError, OptionError
from tinykit.lab.datasets import Case
from tinykit.lab.differences import paired
from tinykit.lab.folder import RunFolder
from tinykit.lab.keys import FORMAT, call_base, call_key
from tinykit.lab.metric import Metric
from tinykit.lab.plan import Plan, Target, Variant
from tinykit.lab.rows import Row
from tinykit.recipes import RECIPES, Recipe

FACTS = {"identity": {"model": "m"}, "threads": 1}
CASES = [
    Case("a", "my rye bread is flat", references=("Flat rye bread",), keywords=(("bread",),)),
    Case("b", "plan a trip to Lisbon", references=("Trip to Lisbon",), keywords=(("lisbon",),)),
    Case("c", "hi", expect_none=True),
]


@pytest.fixture
def stored(tmp_path):
    """Makes a run of titles by variant and case."""

    def store(titles, cases=CASES, name="run", **fields):
        variants = tuple(
            Variant(RECIPES["first-words"] if label == "first-words" else Recipe(label), None if label == "first-words" else Target("m"), label)
            for label in titles
        )  # fmt: skip
        plan = Plan(tuple(cases), variants, repeats=fields.pop("repeats", 1))
        folder = RunFolder(tmp_path / name)
        targets = {name: {"asked": {}, "facts": FACTS} for name in ("", "m")}
        folder.write_plan({"format": FORMAT, "targets": targets}, plan)
        rows = [
            row(
                variant,
                case,
                repeat,
                call_base(variant.recipe, FACTS, exact=False, batch_size=plan.batch_size),
                titles[variant.label].get(case.id),
                fields,
            )
            for variant in variants
            for case in cases
            for repeat in range(plan.repeats)
        ]
        folder.write(lambda writer: [writer.append(one) for one in rows])
        return lab.load(folder.path)

    return store


def row(variant, case, repeat, base, title, fields):
    if isinstance(title, list):
        title = title[repeat]
    key = call_key(base, case.message, repeat)
    is_failed = title == "FAILED"
    return Row(
        key, case.id, variant.label, repeat, variant.recipe.name,
        "failed" if is_failed else "title" if title else "no title", None if is_failed else title,
        why=() if title else ("too_long",), error="broke" if is_failed else None, **fields,
    )  # fmt: skip


BASE = {"a": "My rye bread is flat", "b": "Plan a trip to Lisbon"}


def test_scores_are_means_over_what_applies(stored):
    run = stored({"first-words": BASE, "mine": {"a": "Flat rye bread", "b": None, "c": "Hi"}})
    scores = run.scores()
    assert (scores.mean("mine", "keywords"), scores.mean("mine", "chrf")) == (50, 50)
    assert scores.mean("first-words", "none_ok") == 100 and scores.mean("mine", "none_ok") == 0
    text = str(scores)
    assert (
        "2 of 3 (1 too_long)" in text
        and "keywords: the title has the words that matter; over 2 cases." in text
    )
    assert "forbidden" not in text  # applies to none of the cases
    for number in ("50.0", "2 of 3"):
        assert number in scores._repr_html_()


def test_a_zero_is_shown_and_failures_do_not_count(stored):
    run = stored({"first-words": BASE, "mine": {"a": "FAILED", "b": "Rome"}})
    scores = run.scores(["keywords"])
    assert scores.mean("mine", "keywords") == 0 and len(scores["mine", "keywords"].values) == 1
    assert "1 failed" in str(scores) and "over 1 to 2 cases" in str(scores) and " 0.0" in str(scores)


def test_a_metric_that_raises_loses_its_own_values_only(stored):
    def fragile(case, title):
        return 1 / len(title or "") if case.id != "a" else 1 / 0

    run = stored({"mine": BASE})
    scores = run.scores(["valid", fragile])
    assert scores.mean("mine", "valid") == 100
    assert "fragile failed for 2 titles of mine: ZeroDivisionError" in str(scores)


def test_own_metrics_can_be_registered(stored, monkeypatch):
    from tinykit.lab import metrics

    monkeypatch.setattr(metrics, "METRICS", dict(metrics.METRICS))
    lab.register_metric("shouts", lambda case, title: (title or "").isupper(), better="low")
    assert stored({"mine": {"a": "BREAD", "b": "Lisbon"}}).scores(["shouts"]).mean(
        "mine", "shouts"
    ) == pytest.approx(100 / 3)
    with pytest.raises(OptionError, match="own metric"):
        lab.register_metric("chrf", lambda case, title: 1)


def test_a_metric_may_give_several_values(stored):
    def shape(case, title):
        return None if title is None else {"long": len(title) > 20, "capital": title[0].isupper()}

    run = stored({"old": BASE, "new": {"a": "flat", "b": "Trip"}})
    scores = run.scores([shape])
    assert scores.mean("old", "shape.long") == 50 and scores.mean("new", "shape.capital") == 50
    assert lab.diff(run["old"], run["new"], metrics=[shape])["shape.long"].mean == -50


def test_every_metric_works_on_a_stored_run(stored):
    run = stored({"first-words": BASE, "mine": BASE}, prefill_s=0.1, ttft_s=0.1, elapsed_s=0.5)
    scores = run.scores(lab.metrics.METRICS)
    assert not [column.error for column in scores.columns.values() if column.error]
    assert scores.mean("mine", "latency_s") == 0.5 and "0.500" in str(run.latency())


def test_times_of_batches_are_no_latency(stored):
    run = stored({"mine": BASE}, prefill_s=0.1, elapsed_s=0.5, contended=True)
    assert run.scores(["latency_s"]).mean("mine", "latency_s") is None
    assert "batch_size=1" in str(run.latency())


def test_times_of_another_machine_are_left_out(stored):
    run = stored({"mine": BASE}, prefill_s=0.1, elapsed_s=0.5, machine="other")
    assert run.scores(["latency_s"]).mean("mine", "latency_s") is None
    assert "other" in str(run.latency())  # by machine, they can be seen


def test_breakdown_groups_cases(stored):
    cases = [Case("a", "x", "coding", keywords=(("good",),), tags=("t", "u")), Case("b", "y", "data", "en-GB", keywords=(("good",),))]  # fmt: skip
    run = stored({"mine": {"a": "good", "b": "bad"}}, cases)
    assert run.breakdown().rows == [["coding", "1", "100.0"], ["data", "1", "0.0"]]
    assert [row[0] for row in run.breakdown(by="language").rows] == ["-", "en"]
    assert run.breakdown("valid", by="tags").rows == [["t", "1", "100.0"], ["u", "1", "100.0"]]
    with pytest.raises(OptionError, match="grouped by category"):
        run.breakdown(by="moon")


def test_to_frame_needs_pandas_and_gives_it_the_rows(stored, monkeypatch):
    run = stored({"mine": BASE})
    frames = types.SimpleNamespace(DataFrame=lambda rows: rows)
    monkeypatch.setitem(sys.modules, "pandas", frames)
    assert [row["title"] for row in run.to_frame()] == [BASE["a"], BASE["b"], None]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackageError, match="pandas"):
        run.to_frame()


def test_table_shows_titles_beside_each_other(stored):
    run = stored({"first-words": BASE, "mine": {**BASE, "a": "<b>Flat</b>"}})
    assert [line[0] for line in run.table().rows] == ["a", "b", "c"]
    different = run.table(only_different=True)
    assert [line[0] for line in different.rows] == ["a"] and "1 of 3 cases has titles that differ." in str(
        different
    )
    assert "&lt;b&gt;Flat" in different._repr_html_() and "(too_long)" in str(run.table())
    assert "2 more cases are not shown" in str(run.table(limit=1))


def test_repeats_show_how_steady_they_are(stored):
    titles = {"a": ["x y", "x y", "z"], "b": ["u", "u", "u"], "c": [None] * 3}
    run = stored({"mine": titles}, repeats=3)
    assert "x y (2 different of 3)" in str(run.table())
    assert run.stability().rows == [["mine", "3", "2", "2"]]
    assert run.scores(["keywords"]).mean("mine", "keywords") == 0


def test_identical_variants_have_no_difference(stored):
    run = stored({"one": BASE, "two": BASE})
    diff = lab.diff(run["one"], run["two"])
    assert not diff.changed and {one.mean for one in diff.differences} == {0}
    assert {one.verdict for one in diff.differences} == {"no difference: the same on every case"}


def many(n):
    return [Case(f"c{at}", f"message {at} of bread", keywords=(("good",),)) for at in range(n)]


def test_a_planted_difference_gets_a_verdict(stored):
    cases = many(200)
    chance = np.random.default_rng(1)
    old = {case.id: "good" if chance.random() < 0.5 else "bad" for case in cases}
    new = {case.id: "good" if chance.random() < 0.15 else old[case.id] for case in cases}
    run = stored({"old": old, "new": new}, cases)
    found = lab.diff(run["old"], run["new"], metrics=["keywords"])["keywords"]
    assert found.winner == "new" and found.verdict.startswith("new better by")
    assert found.low < found.mean < found.high and found.low > 0 and found.worse == 0
    assert found.better + found.same == 200
    turned = lab.diff(run["new"], run["old"], metrics=["keywords"])["keywords"]
    assert turned.winner == "new" and turned.mean == -found.mean
    assert "new better by" in str(run.rank("old", metrics=["keywords"]))


def test_little_data_is_undecided_and_says_how_much_more_it_takes(stored):
    cases = many(20)
    old = {case.id: "good" if at % 2 else "bad" for at, case in enumerate(cases)}
    new = {case.id: "good" if at % 3 else "bad" for at, case in enumerate(cases)}
    run = stored({"old": old, "new": new}, cases)
    found = lab.diff(run["old"], run["new"], metrics=["keywords"])["keywords"]
    assert found.verdict.startswith("undecided: 20 cases show") and "more would show 3" in found.verdict


METRIC = Metric("m", lambda case, title: 0, better="low")


def test_lower_may_be_better():
    found = paired([1.0] * 30, [0.0] * 30, METRIC, "a", "b")
    assert (found.winner, found.better, found.worse) == ("b", 30, 0)


def test_a_small_spread_shows_that_there_is_no_difference_that_matters():
    values = list(np.random.default_rng(1).normal(0.5, 0.1, 200))
    found = paired(values, [value + 0.001 * (-1) ** at for at, value in enumerate(values)], METRIC, "a", "b")
    assert found.verdict == "no difference shown: less than 3 points"


def test_more_comparisons_need_more_certainty(stored):
    cases = many(40)
    old = {case.id: "bad" for case in cases}
    new = {case.id: "good" if at < 7 else "bad" for at, case in enumerate(cases)}
    run = stored({"old": old, "new": new}, cases)
    alone = lab.diff(run["old"], run["new"], metrics=["keywords"])["keywords"]
    among = lab.diff(run["old"], run["new"], metrics=["keywords", "valid", "words", "distinct"])["keywords"]
    assert (
        alone.p == among.p and alone.winner == "new" and among.p_holm > alone.p_holm and among.winner is None
    )


def test_runs_of_other_cases_are_refused_with_the_list(stored):
    one = stored({"mine": BASE}, name="one")
    two = stored({"mine": BASE}, CASES[:2], name="two")
    with pytest.raises(OptionError, match=r"1 case is only in one of the runs: c\."):
        lab.diff(one, two)
    diff = lab.diff(one, two, only_common=True)
    assert (diff.a, diff.b, diff.cases) == ("mine (one)", "mine (two)", 2)
    other = stored({"mine": BASE}, [CASES[0], CASES[1], Case("c", "another")], name="three")
    with pytest.raises(OptionError, match="same id and another message: c"):
        lab.diff(one, other)


def test_a_run_of_many_variants_must_be_told_which(stored):
    run = stored({"one": BASE, "two": BASE})
    with pytest.raises(OptionError, match="say which one"):
        lab.diff(run, run)


def test_diff_has_the_same_numbers_in_all_its_forms(stored):
    run = stored({"old": BASE, "new": {"a": "Flat rye bread", "b": "Lisbon"}})
    diff = lab.diff(run["old"], run["new"])
    values = json.loads(json.dumps(diff.to_dict()))
    assert values["changed"] == 2 and f"{values['metrics']['chrf']['mean_b']:.1f}" in str(diff)
    for cell in diff.table().rows[0]:
        assert cell.replace("<", "&lt;") in diff._repr_html_()
    assert [line[0] for line in diff.changes().rows] == ["a", "b"]


@pytest.fixture
def two(stored):
    return stored({"titles": {"a": "Flat bread", "b": "Trip"}, "plain": {"a": "Bread", "b": "Trip"}})


@pytest.mark.parametrize(
    "ask",
    [
        lambda run: run["titels"],
        lambda run: run.titles("titels"),
        lambda run: run.table(["plain", "titels"]),
        lambda run: run.table(variants="titels"),
        lambda run: run.table(against="titels"),
        lambda run: run.rank("titels"),
        lambda run: run.scores()["titels", "chrf"],
        lambda run: lab.diff("titels", run["plain"]),
        lambda run: lab.diff(run["plain"], "titels"),
        lambda run: run.freeze("titels", "nowhere"),
        lambda run: lab.rate(run, "plain", "titels"),
    ],
)
def test_unknown_variant_is_told_with_the_nearest_name(two, ask):
    with pytest.raises(OptionError, match="The run has no variant 'titels'") as caught:
        ask(two)
    assert caught.value.nearest == ["titles"]
    assert caught.value.hint == "Did you mean 'titles'? There are: titles, plain."


def test_unknown_metric_is_told_with_the_nearest_name(two):
    found = lab.diff(two["plain"], two["titles"], metrics=["chrf", "keywords"])
    for ask in (
        lambda: found["chr"],
        lambda: two.scores(["chrf"])["titles", "chr"],
        lambda: lab.diff(two["plain"], two["titles"], metrics=["chr"]),
    ):
        with pytest.raises(OptionError, match="'chr'") as caught:
            ask()
        assert "chrf" in caught.value.nearest


def test_name_stands_for_a_variant_of_the_other_run(two):
    assert lab.diff("plain", two["titles"]).to_dict() == lab.diff(two["plain"], two["titles"]).to_dict()
    with pytest.raises(OptionError, match="of which run is not said"):
        lab.diff("plain", "titles")


def test_table_shows_the_variants_that_are_named(two):
    table = two.table(["plain"])
    assert table.columns == ["case", "message", "plain"]
    assert [line[2] for line in table.rows] == ["Bread", "Trip", "(too_long)"]
    with pytest.raises(OptionError, match="Not shown: variant 'titles'"):
        two.table(["plain"], against="titles")


def test_one_case_is_one_case(stored):
    run = stored({"titles": {"a": "Flat bread"}}, CASES[:1])
    assert run.summary() == "1 case × 1 variant: 1 made"
    assert "over 1 case." in str(run.scores(["keywords"]))


@pytest.mark.parametrize(
    "ask",
    [
        lambda run, path: run.scores(5),
        lambda run, path: run.scores("chrff"),
        lambda run, path: run.table(limit="x"),
        lambda run, path: run.table(limit=-1),
        lambda run, path: lab.diff(5, 6),
        lambda run, path: lab.diff(run["plain"], run["titles"], margins={"chrff": 1}),
        lambda run, path: lab.diff(run["plain"], run["titles"], margins={"chrf": 0}),
        lambda run, path: lab.diff(run["plain"], run["titles"], margins={"chrf": float("nan")}),
        lambda run, path: lab.register_metric("short", 5),
        lambda run, path: lab.register_metric("", len),
        lambda run, path: lab.register_metric("short", len, of="planet"),
        lambda run, path: lab.register_metric("short", len, better="often"),
        lambda run, path: lab.register_metric("chrf", len),
        lambda run, path: run.report(5),
        lambda run, path: run.report(path / "no" / "report.html"),
        lambda run, path: run.report(path / "report.txt"),
        lambda run, path: lab.load(run.path / "rows.jsonl"),
        lambda run, path: lab.load(5),
    ],
)
def test_what_cannot_be_done_is_said_with_what_to_do(two, tmp_path, ask):
    with pytest.raises(OptionError) as caught:
        ask(two, tmp_path)
    assert caught.value.hint
    assert "short" not in lab.metrics.METRICS


def test_single_metric_needs_no_list(two):
    assert str(two.scores("chrf")) == str(two.scores(["chrf"]))
