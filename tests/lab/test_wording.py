"""Length, script and language of titles; and titles as a set."""

import pytest

from tinykit.lab import collection, wording
from tinykit.lab.datasets import Case

EN = Case("en", "how do I fix the door of my car, it is stuck")
DE = Case("de", "wie repariere ich die Tür von meinem Auto, sie klemmt", language="de-DE")
JA = Case("ja", "車のドアを直す方法を教えてください", language="ja")

LANGUAGES = {
    "English for English": (EN, "How to fix the door", 1),
    "German for English": (EN, "Die Tür von dem Auto reparieren", 0),
    "no small words": (EN, "Car door", None),
    "German for German": (DE, "Die Tür und das Auto", 1),
    "English for German": (DE, "How to fix the door", 0),
    "Japanese for Japanese": (JA, "車のドアの修理", 1),
    "Japanese for English": (EN, "車のドアの修理", 0),
    "no title": (EN, None, None),
}


@pytest.mark.parametrize(("case", "title", "value"), LANGUAGES.values(), ids=LANGUAGES)
def test_language_match(case, title, value):
    assert wording.language_match(case, title) == value


def test_script_match():
    assert wording.script_match(EN, "Car door") == 1
    assert wording.script_match(EN, "Дверь машины") == 0
    assert wording.script_match(EN, "42") is wording.script_match(EN, None) is None


def test_length_in_words_and_characters():
    assert wording.words(EN, "Fix the door") == 3
    assert wording.words(JA, "車のドア修理") == 3  # six letters, 2.5 a word
    assert wording.characters(EN, "e\u0301te\u0301\u200b") == 3
    assert wording.words(EN, None) is wording.characters(EN, "") is None


CASES = [
    Case("a", "my rye bread comes out of the oven flat and dense"),
    Case("b", "plan three days in Lisbon with two kids"),
    Case("c", "the login test is flaky on slow runners"),
    Case("d", "hi", expect_none=True),
]


def test_distinct_counts_titles_that_are_the_same_but_for_case():
    assert collection.distinct(CASES, ["A b", "a  B", "c", None]) == [0, 0, 1, None]


def test_nearest_is_one_for_twins_and_low_for_strangers():
    first, second, third, none = collection.nearest(
        CASES, ["Flat rye bread", "Flat rye bread", "Lisbon", None]
    )
    assert first == second == pytest.approx(1.0) and third < 0.3 and none is None
    assert collection.nearest(CASES[:1], ["x"]) == [None]


def test_find_it_says_whether_a_title_leads_back_to_its_message():
    assert collection.find_it(CASES, ["Flat rye bread", "Lisbon with kids", "Flaky login test", None]) == [
        1,
        1,
        1,
        None,
    ]
    assert collection.find_it(CASES, ["Lisbon with kids", "Lisbon", None, None]) == [0, 1, 0, None]
    assert collection.find_it(CASES, ["xyzzy", "qqq", "Login", "Hi"]) == [0, 0, 1, None]


def test_find_it_shares_a_tie():
    twins = [Case("a", "fix the door"), Case("b", "fix the door"), Case("c", "Lisbon")]
    assert collection.find_it(twins, ["Fix the door", "Door", "Lisbon"]) == [0.5, 0.5, 1]
