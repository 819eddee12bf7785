"""Word marks: what differs is found and said by signs, by elements, and not by color; nothing is lost."""

import random
import re

import pytest

from tests.lab.test_differences import BASE, stored
from tinykit import lab
from tinykit.lab.marking import Marked, marked, marked_pair
from tinykit.lab.tables import Table, changes_table

__all__ = ["stored"]  # the fixture

PAIRS = {
    "replaced": ("Fix the red door", "Fix a blue door", "Fix [-the red-] {+a blue+} door"),
    "added and gone": ("Docker exit code 137", "Docker container exit code", "Docker {+container+} exit code [-137-]"),
    "at the end": ("a b c", "a b c d", "a b c {+d+}"),
    "at the start": ("a b", "b", "[-a-] b"),
    "all": ("My cat", "Dog", "[-My cat-] {+Dog+}"),
    "case": ("fix it", "Fix it", "[-fix-] {+Fix+} it"),
    "letters where there are no spaces": ("車のドア修理", "車の窓修理方法", "車の[-ドア-]{+窓+}修理{+方法+}"),
    "nothing before": ("", "New", "{+New+}"),
}  # fmt: skip


@pytest.mark.parametrize(("a", "b", "shown"), PAIRS.values(), ids=PAIRS)
def test_what_differs_is_marked(a, b, shown):
    found = marked(a, b)
    assert str(found) == shown == found and found.unmarked == b


def test_the_same_text_has_no_marks():
    assert marked("Fix it", "Fix it") == "Fix it" and not isinstance(marked("Fix it", "Fix it"), Marked)
    assert marked_pair("x", "x") == ("x", "x")


def test_beside_each_other_each_text_is_whole():
    a, b = marked_pair("Fix the red door", "Fix a blue door, now")
    assert (a, b) == ("Fix [-the red door-]", "Fix {+a blue door, now+}")
    assert (a.unmarked, b.unmarked) == ("Fix the red door", "Fix a blue door, now")


def test_any_two_texts_come_back_without_their_marks():
    chance = random.Random(3)
    for _ in range(500):
        a, b = (
            "".join(chance.choice("ab c東京 .") for _ in range(chance.randrange(12))).strip() for _ in "ab"
        )
        for left, right in (marked_pair(a, b), (marked_pair(b, a)[::-1])):
            for text, whole in ((left, a), (right, b)):
                assert re.sub(r"\[-|-\]|\{\+|\+\}", "", text) == whole
        assert re.sub(r"\[-.*?-\]", "", marked(a, b)).replace("{+", "").replace(
            "+}", ""
        ).split() == b.split() or ("東" in a + b or "京" in a + b)


def test_html_marks_by_elements_and_escapes():
    page = changes_table("c", ("case", "a", "b"), [("x", "Fix <b>", "Fix <i> & go")]).to_html()
    assert '<del style="text-decoration: line-through">&lt;b&gt;</del>' in page
    assert 'font-weight: bold">&lt;i&gt; &amp; go</ins>' in page
    assert not re.search(r"#[0-9a-f]{3,6}\b|background|color:(?!.*currentColor)", page)


def test_every_form_of_a_table_has_the_marks_but_csv():
    table = changes_table("c", ("case", "a", "b"), [("x", "red door", "blue door"), ("y", None, "new")])
    assert "[-red-] door" in str(table) and "{+blue+} door" in str(table) and "[-gone-]" in str(table)
    assert r"\[-red-\] door" in table.to_markdown()
    assert table.to_csv().splitlines()[1:] == ["x,red door,blue door", "y,(none),new"]
    assert "[-gone-]" not in str(changes_table("c", ("case", "a", "b"), [("y", None, "new")]))


def test_a_marked_lone_surrogate_does_no_harm():
    assert "\\ud800" in Table("T", ["a", "b"], [["x", marked("y", "\ud800")]]).to_html()


def test_changes_of_a_diff_and_of_a_table_are_marked(stored):
    run = stored({"old": BASE, "new": {"a": "Flat rye bread", "b": "Plan a trip to Lisbon", "c": "Hi"}})
    rows = lab.diff(run["old"], run["new"]).changes().rows
    assert [list(row) for row in rows] == [
        ["a", "[-My-] rye bread [-is flat-]", "{+Flat+} rye bread"], ["c", "(none)", "Hi"],
    ]  # fmt: skip
    table = run.table(against="old")
    assert [row[3] for row in table.rows] == ["{+Flat+} rye bread", "Plan a trip to Lisbon", "Hi"]
    assert table.rows[0][2] == BASE["a"] and "not in the title of old" in str(table)
    assert "{+" not in str(run.table())
