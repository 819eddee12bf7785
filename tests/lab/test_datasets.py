"""The cases that come with tinykit, and cases from a file."""

import json
from collections import Counter

import pytest

from tinykit.errors import OptionError
from tinykit.lab import datasets
from tinykit.lab.datasets import Case


def test_titles_holds_160_cases():
    cases = datasets.titles()
    assert len(cases) == len({case.id for case in cases}) == 160
    assert Counter(case.expect_none for case in cases) == {False: 147, True: 13}
    assert {case.category for case in cases} == {
        "coding", "data", "writing", "everyday", "long", "multilingual", "none", "adversarial",
    }  # fmt: skip
    assert all(bool(case.references) != case.expect_none for case in cases)
    assert all(bool(case.keywords) != case.expect_none for case in cases)
    assert isinstance(cases[0].keywords[0], tuple)


def test_load_needs_only_id_and_message(tmp_path):
    path = tmp_path / "cases.jsonl"
    path.write_text(
        '{"id": "a", "message": "x\\u2028y"}\n\n{"id": "b", "message": "", "expect_none": true}\n'
    )
    assert datasets.load(path) == [Case("a", "x\u2028y"), Case("b", "", expect_none=True)]


WRONG = {
    "no JSON": "{",
    "no object": "[1]",
    "unknown field": '{"id": "a", "message": "", "titel": 1}',
    "no message": '{"id": "a"}',
    "message is no text": '{"id": "a", "message": 1}',
}


@pytest.mark.parametrize("line", WRONG.values(), ids=WRONG)
def test_load_names_the_line_that_is_no_case(tmp_path, line):
    path = tmp_path / "cases.jsonl"
    path.write_text(json.dumps({"id": "fine", "message": "x"}) + "\n" + line)
    with pytest.raises(OptionError, match="line 2"):
        datasets.load(path)


def test_load_refuses_an_id_that_comes_twice(tmp_path):
    path = tmp_path / "cases.jsonl"
    path.write_text('{"id": "a", "message": "x"}\n{"id": "a", "message": "y"}\n')
    with pytest.raises(OptionError, match="'a' comes twice"):
        datasets.load(path)
