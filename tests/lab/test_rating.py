"""Blind rating, driven without a browser: keys, sides, undo, resuming, stopping, and what comes out."""

import io
import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.test_differences import many, stored
from tinykit import lab
from tinykit.errors import OptionError
from tinykit.lab import rating as module
from tinykit.lab.votes import Vote, append_vote, read_votes

__all__ = ["stored"]  # the fixture
ROOT = Path(__file__).parents[2]


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(module, "monotonic", found)
    return found


@pytest.fixture
def run(stored):
    """Two variants and a baseline, 40 cases, of which 8 have the same title in both."""
    cases = many(40)
    good = {case.id: f"good title {case.id}" for case in cases}
    bad = {case.id: good[case.id] if at % 5 == 0 else f"bad title {case.id}" for at, case in enumerate(cases)}
    worst = {case.id: f"worst title {case.id}" for case in cases}
    return stored({"alpha": good, "beta": bad, "gamma": worst}, cases)


def better(question):
    """A rater who likes what is good."""
    order = ["good", "bad", "worst"]
    left, right = (order.index(title.split()[0]) for title in (question.left, question.right))
    return "left" if left < right else "right"


def test_nothing_that_is_shown_tells_who_made_it(run):
    rating = lab.rate(run, "alpha", "beta")
    shown = []
    while rating.question is not None:
        shown += [rating.text(), rating.status, repr(rating), str(rating.question)]
        rating.vote("tie")
    assert len(shown) == 4 * 32
    for name in ("alpha", "beta"):
        assert not [text for text in [*shown, rating.text()] if name in text]


def test_identical_titles_are_not_asked_and_count_as_ties(run):
    rating = lab.rate(run, "alpha", "beta")
    assert rating.total == 32 and "(8 identical, not asked)" in rating.status
    for _ in range(32):
        assert rating.vote(better(rating.question))
    assert rating.question is None and not rating.vote("left")
    results = rating.results()
    pair = results["alpha", "beta"]
    assert (pair.prefer_a, pair.prefer_b, pair.tied, pair.identical, pair.unasked) == (32, 0, 0, 8, 0)
    first, second = results.strengths
    odds = (32.5 + 4) / (0.5 + 4)  # half of the ties each, and half a vote to begin with
    assert first.variant == "alpha" and first.strength - second.strength == pytest.approx(
        math.log(odds), abs=1e-6
    )
    assert results.winner == "alpha" and pair.verdict == "alpha preferred (32 to 0)"


def test_sides_are_by_chance_and_balanced_at_any_time(run):
    rating, sides = lab.rate(run, "alpha", "beta"), []
    while rating.question is not None:
        sides.append(rating.question.left.startswith("good"))
        rating.vote("left")
    for count in range(4, 33, 4):
        assert sum(sides[:count]) * 2 == count
    assert sides != [sides[0], not sides[0]] * 16  # it does not just alternate
    other, theirs = lab.rate(run, "alpha", "beta", rater="someone"), []
    while other.question is not None:
        theirs.append(other.question.left.startswith("good"))
        other.vote("left")
    assert theirs != sides


KEYS = {"1": "left", "2": "right", "0": "tie", "x": "both bad", "s": "skip"}


@pytest.mark.parametrize(("key", "choice"), KEYS.items(), ids=KEYS)
def test_each_key_is_on_disk_when_press_returns(run, clock, key, choice):
    rating = lab.rate(run, "alpha", "beta", rater="ann")
    question = rating.question
    clock.now_s += 2.5
    assert rating.press(key)
    vote = json.loads((run.path / "votes.jsonl").read_bytes())
    assert (vote["choice"], vote["rater"], vote["seconds"]) == (choice, "ann", 2.5)
    assert {vote["left"], vote["right"]} == {"alpha", "beta"} and vote["at"].endswith("+00:00")
    assert (vote["title_left"], vote["title_right"]) == (question.left, question.right)
    assert rating.question != question


def test_a_second_press_within_300_ms_does_not_count(run, clock):
    rating = lab.rate(run, "alpha", "beta")
    assert rating.press("1") and not rating.press("1")
    clock.now_s += 0.299
    assert not rating.press("2") and rating.rated == 1
    assert not rating.press("u")
    clock.now_s += 0.002
    assert rating.press("u") and rating.rated == 0
    clock.now_s += 0.1
    assert not rating.press("1")  # undo counts as a press
    assert not rating.press("?") and not rating.press("")


def test_undo_reaches_to_the_first_vote_also_after_a_restart(run):
    rating = lab.rate(run, "alpha", "beta")
    asked = []
    for at in range(6):
        asked.append(rating.question)
        rating.vote(("left", "skip")[at % 2])
    for back in range(3):
        assert rating.undo() and rating.question == asked[5 - back]
    again = lab.rate(run, "alpha", "beta")
    assert again.rated == 3 and again.question == asked[3]
    for back in range(3):
        assert again.undo() and again.question == asked[2 - back]
    assert again.rated == 0 and not again.undo()
    assert again.results().raters == {}


def test_a_new_rating_goes_on_where_the_old_one_was(run):
    first = lab.rate(run, "alpha", "beta")
    seen = []
    for _ in range(10):
        seen.append(first.question)
        first.vote("left")
    second = lab.rate(run, "alpha", "beta")
    assert second.rated == 10 and second.question == first.question and second.question not in seen
    assert lab.rate(run, "beta", "alpha").rated == 10  # the order of names is no matter
    assert lab.rate(run, "alpha", "beta", rater="other").rated == 0


def test_a_killed_process_loses_no_vote(run):
    code = f"""
import os, signal
from tinykit import lab
rating = lab.rate(lab.load({str(run.path)!r}), "alpha", "beta")
for _ in range(7):
    rating.vote("left")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=120)
    assert done.returncode == -9
    assert lab.rate(run, "alpha", "beta").rated == 7


def test_a_torn_line_costs_its_own_vote_only(run):
    rating = lab.rate(run, "alpha", "beta")
    for _ in range(3):
        rating.vote("left")
    path = run.path / "votes.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    again = lab.rate(run, "alpha", "beta")
    assert again.rated == 2 and "line 3: not a vote" in again.notes[0]
    again.vote("right")
    assert lab.rate(run, "alpha", "beta").rated == 3
    assert "line 3" in str(again.results())


def test_votes_on_titles_that_have_changed_do_not_count(run, stored):
    rating = lab.rate(run, "alpha", "beta")
    rating.vote("left")
    path = run.path / "votes.jsonl"
    path.write_text(path.read_text().replace(" title ", " heading "))
    again = lab.rate(run, "alpha", "beta")
    assert again.rated == 0 and "1 vote on titles that have changed" in again.notes[0]


def test_status_says_when_one_can_stop(run):
    rating = lab.rate(run, "alpha", "beta")
    assert rating.status == "0 of 32 rated (8 identical, not asked); can stop: no, undecided"
    for _ in range(8):
        assert not rating.can_stop
        rating.vote(better(rating.question))
    assert re.search(r"no, undecided, about \d more votes like these$", rating.status)
    rating.vote(better(rating.question))
    assert rating.can_stop and rating.status.endswith("can stop: yes, the order is settled")
    assert rating.question is not None  # but one may go on
    assert rating.results()["alpha", "beta"].verdict == "alpha preferred (9 to 0)"


def test_what_cannot_be_settled_any_more_is_told(run):
    rating = lab.rate(run, "alpha", "beta")
    for _ in range(26):
        assert not rating.can_stop
        rating.vote("tie")
    assert rating.status.endswith("can stop: yes, what is left cannot settle it")
    assert rating.results().winner is None
    while rating.question is not None:
        rating.vote("both bad")
    assert rating.status.endswith("can stop: yes, all is rated")
    pair = rating.results()["alpha", "beta"]
    assert (pair.tied, pair.both_bad, pair.verdict) == (32, 6, "undecided: nothing was preferred")


def test_of_three_the_pairs_are_asked_that_decide_most(run):
    rating = lab.rate(run)
    assert rating.total == 32 + 40 + 40
    while not rating.can_stop:
        rating.vote(better(rating.question))
    results = rating.results()
    assert [one.variant for one in results.strengths] == ["alpha", "beta", "gamma"]
    assert rating.status.endswith("the order is settled") and rating.rated <= 30
    assert results["alpha", "beta"].is_decided and results["beta", "gamma"].is_decided
    counts = [pair.prefer_a + pair.prefer_b for pair in results.pairs]
    assert counts[1] < min(counts[0], counts[2])  # alpha and gamma are no neighbors


def test_stopping_early_saves_votes_and_finds_the_order_under_noise(run):
    chance, right, votes = random.Random(4), 0, []
    for number in range(6):
        rating = lab.rate(run, out=run.path / f"noisy-{number}.jsonl")
        while not rating.can_stop:
            best = better(rating.question)
            is_slip = chance.random() < 0.1
            rating.vote({"left": "right", "right": "left"}[best] if is_slip else best)
        votes.append(rating.rated)
        right += [one.variant for one in rating.results().strengths] == ["alpha", "beta", "gamma"]
    assert right >= 5 and sum(votes) / len(votes) < 112 / 2


def test_a_rater_who_always_takes_the_left_is_found_out_and_favors_nobody(run):
    rating = lab.rate(run, "alpha", "beta")
    while rating.question is not None:
        rating.vote("left")
    results = rating.results()
    assert (results.left, results.right) == (32, 0) and results.side_p < 0.001
    assert "Left was preferred 32 times of 32 (100 %, p 0.00): a side is favored." in str(results)
    assert results.winner is None and results["alpha", "beta"].prefer_a == 16


def test_several_raters_share_one_vote_a_case(run):
    for name in ("ann", "bob", "cy"):
        rating = lab.rate(run, "alpha", "beta", rater=name)
        while rating.question is not None:
            best = better(rating.question)
            rating.vote(best if name != "cy" else {"left": "right", "right": "left"}[best])
    results = rating.results()
    assert results["alpha", "beta"].prefer_a == 32 and results.raters == {"ann": 32, "bob": 32, "cy": 32}
    assert results.agreed == (0, 32) and "96 votes of 3 raters" in str(results)


def test_results_say_the_same_in_all_forms(run):
    rating = lab.rate(run)
    while not rating.can_stop:
        rating.vote(better(rating.question))
    rating.vote("skip")
    results = rating.results()
    values = json.loads(json.dumps(results.to_dict()))
    assert values["winner"] == "alpha" and values["skipped"] == 1 and len(values["pairs"]) == 3
    text, page, chart = str(results), results._repr_html_(), results.plot()
    for one in results.strengths:
        for number in (f"{one.strength:.2f}", f"{one.low:.2f} to {one.high:.2f}"):
            assert number in text and number in page
        assert f"{one.strength:+.2f}" in chart.text() and f"{one.strength:+.2f}" in chart.html()
    assert "preferred to the next one" in chart.text() and "1 skipped." in text
    assert [row[-1] for row in results.pair_table().rows] == [pair.verdict for pair in results.pairs]


def test_results_of_no_votes_are_empty_and_not_an_error(run):
    results = lab.rate(run, "alpha", "beta").results()
    assert results.winner is None and "0 votes of 0 raters" in str(results)
    assert results.plot().text() and json.dumps(results.to_dict())


def test_a_title_against_none_is_asked(stored):
    run = stored({"one": {"a": "x", "b": None}, "two": {"a": None, "b": None}})
    rating = lab.rate(run, "one", "two")
    assert rating.total == 1 and {rating.question.left, rating.question.right} == {"x", "(no title)"}


def test_failed_titles_are_left_out(stored):
    run = stored({"one": {"a": "FAILED", "b": "x"}, "two": {"a": "y", "b": "z"}})
    assert lab.rate(run, "one", "two").total == 1


@pytest.mark.parametrize("names", [("alpha",), ("alpha", "alpha"), ("alpha", "beta", "alpha")], ids=str)
def test_one_variant_is_not_enough(run, names):
    with pytest.raises(OptionError, match="two or more different variants"):
        lab.rate(run, *names)


def test_unknown_names_and_answers_are_told(run):
    with pytest.raises(OptionError, match="no variant 'delta'"):
        lab.rate(run, "alpha", "delta")
    with pytest.raises(OptionError, match="left, right, tie, both bad or skip"):
        lab.rate(run, "alpha", "beta").vote("undo")


def vote(choice="left", case="a", **fields):
    return Vote(case, "x", "y", "X", "Y", choice, fields.pop("rater", "me"), 1.0, "now")


def test_the_file_is_replayed(tmp_path):
    path = tmp_path / "deep" / "votes.jsonl"
    for one in (
        vote(),
        vote("right", "b"),
        vote("tie", rater="you"),
        vote("undo"),
        vote("undo", "c"),
        vote("skip"),
    ):
        append_vote(path, one)
    found, notes = read_votes(path)
    assert [(v.rater, v.case, v.choice) for v in found] == [
        ("me", "b", "right"), ("you", "a", "tie"), ("me", "a", "skip"),
    ] and not notes  # fmt: skip
    for line in (b"[]\n", b'{"case": 1}\n', b"\xff\n", b"{}"):
        with path.open("ab") as file:
            file.write(line)
    assert len(read_votes(path)[1]) == 4
    append_vote(path, vote("tie", "z"))
    assert read_votes(path)[0][-1].case == "z"


def test_terminal_asks_by_keys(run, monkeypatch):
    monkeypatch.setattr(module, "GUARD_S", 0)
    keys, shown = iter("1?\n2 0XsuQ q"), []
    lab.rate(run, "alpha", "beta").ask(read_key=lambda: next(keys), write=shown.append)
    text = "\n".join(shown)
    choices = [v.choice for v in read_votes(run.path / "votes.jsonl")[0]]
    assert choices == ["left", "right", "tie", "both bad"]  # skip was taken back
    assert "1 1 is better" in text and "Keys: " in text and "The same call goes on." in text
    assert "alpha" not in text and "beta" not in text
    assert text.count("4 of 32 rated") >= 2


def test_terminal_ends_when_all_is_rated_or_the_pipe_does(run, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("1" * 5))
    rating = lab.rate(run, "alpha", "beta")
    rating.ask()
    assert rating.rated == 5 and "5 of 32 rated" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("2" * 50))
    rating.ask()
    assert rating.rated == 32 and "can stop: yes, all is rated" in capsys.readouterr().out


def test_what_the_terminal_shows_obeys_nothing(stored, capsys):
    cases = [lab.Case("a", "\x1b[31mred " + "long " * 1000)]
    run = stored({"one": {"a": "\x1b[2Jx"}, "two": {"a": "y"}}, cases)
    lab.rate(run, "one", "two").ask(read_key=lambda: "q")
    out = capsys.readouterr().out
    assert "\x1b" not in out and "characters)" in out and len(out) < 3000
