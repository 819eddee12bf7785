"""Scripts and lengths in words."""

import re

import pytest

from tinykit.scripts import CASELESS, count_scripts, count_words, is_unspaced, script_of


@pytest.mark.parametrize(
    ("char", "script"),
    [("a", "LATIN"), ("é", "LATIN"), ("Ａ", "LATIN"), ("ж", "CYRILLIC"), ("测", "HAN"), ("の", "KANA"), ("カ", "KANA"), ("ｶ", "KANA"),
     ("ー", "KANA"), ("々", "HAN"), ("한", "HANGUL"), ("ع", "ARABIC"), ("ก", "THAI"), ("1", None), (" ", None), ("µ", None), ("𝑥", None),
     ("🙂", None)],
)  # fmt: skip
def test_script_of(char, script):
    assert script_of(char) == script


@pytest.mark.parametrize(
    ("text", "words"),
    [("", 0), ("  ", 0), ("one", 1), ("one two", 2), ("a - b", 2), ("测", 1), ("测测测测测", 2), ("测" * 10, 4), ("node 测试", 2),
     ("สวัสดี", 1), ("Привет мир", 2)],
)  # fmt: skip
def test_count_words_counts_unspaced_letters_as_fractions(text, words):
    assert count_words(text) == words


def test_count_scripts_counts_letters_only():
    assert count_scripts("Docker エラー 12!") == {"LATIN": 6, "KANA": 3}


def test_is_unspaced():
    assert [is_unspaced(char) for char in "aж한测のก"] == [False, False, False, True, True, True]


def test_caseless_holds_unspaced_scripts_and_hangul():
    assert re.sub(f"[{CASELESS}]", "", "aéж1 测のカ한กｶ") == "aéж1 "
