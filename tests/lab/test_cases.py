"""Cases out of everything that users have, with ids that stay."""

import json
from dataclasses import replace

import pytest

from tinykit.errors import OptionError
from tinykit.lab import datasets
from tinykit.lab.cases import message_id, read_cases, write_cases
from tinykit.lab.datasets import Case
from tinykit.tokenizer import Message

CHAT = {"id": "c1", "title": "Bread", "messages": [
    {"role": "system", "content": "be nice"}, {"role": "user", "content": "my bread is flat"},
]}  # fmt: skip


class Frame:
    """What pandas and polars have in common, as far as it matters."""

    def __init__(self, rows):
        self._rows = rows
        self.columns = list(rows[0])

    def to_dict(self, kind):
        assert kind == "records"
        return self._rows


SOURCES = {
    "texts": (["fix it"], Case(message_id("fix it"), "fix it")),
    "dict": ([{"id": 7, "message": "fix it", "language": "en"}], Case("7", "fix it", language="en")),
    "case": ([Case("a", "b", tags=("c",))], Case("a", "b", tags=("c",))),
    "pair": ([("fix it", "A fix")], Case(message_id("fix it"), "fix it", references=("A fix",))),
    "pair without title": ([("hi", None)], Case(message_id("hi"), "hi", expect_none=True)),
    "export": ([CHAT], Case("c1", "my bread is flat", references=("Bread",))),
    "turns": ([CHAT["messages"]], Case(message_id("my bread is flat"), "my bread is flat")),
    "messages": ([[Message("user", "fix it")]], Case(message_id("fix it"), "fix it")),
    "frame": (
        Frame([{"message": "fix it", "references": "A fix | The fix", "language": float("nan")}]),
        Case(message_id("fix it"), "fix it", references=("A fix", "The fix")),
    ),
}


@pytest.mark.parametrize(("source", "case"), SOURCES.values(), ids=SOURCES)
def test_read_cases(source, case):
    assert read_cases(source) == [case]


FILES = {
    "cases.jsonl": ('{"message": "fix it", "title": null}\n', {"expect_none": True}),
    "cases.json": (json.dumps([{"message": "fix it", "keywords": [["fix", "mend"]]}]), {"keywords": (("fix", "mend"),)}),
    "cases.csv": ("message,tags,expect_none\nfix it,a|b,no\n", {"tags": ("a", "b")}),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_read_cases_of_files(tmp_path, name):
    text, fields = FILES[name]
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_cases(tmp_path / name) == [replace(Case(message_id("fix it"), "fix it"), **fields)]


def test_ids_do_not_depend_on_the_place():
    first, second = read_cases(["a b", "c d"]), read_cases(["c d", "x y", "a b"])
    assert {case.id for case in first} < {case.id for case in second}


def test_the_same_message_twice_is_two_cases():
    one, two = read_cases(["a b", "a b"])
    assert two.id == f"{one.id}-2"


def test_titles_can_be_left_out_and_the_message_may_be_called_otherwise():
    rows = [{"question": "fix it", "title": "A fix"}]
    assert read_cases(rows, message="question", titles_count=False) == [Case(message_id("fix it"), "fix it")]


def test_the_shipped_cases_survive_a_round_trip(tmp_path):
    write_cases(datasets.titles(), tmp_path / "cases.jsonl")
    assert read_cases(tmp_path / "cases.jsonl") == datasets.titles()
    assert datasets.load(tmp_path / "cases.jsonl") == datasets.titles()


def test_a_lone_surrogate_survives_too(tmp_path):
    cases = read_cases(["fix \ud800 this", "東京"])
    write_cases(cases, tmp_path / "cases.jsonl")
    assert datasets.load(tmp_path / "cases.jsonl") == cases
    assert "東京" in (tmp_path / "cases.jsonl").read_text(encoding="utf-8")


WRONG = {
    "no message": ([{"text": "x"}], "Row 1 has the fields text"),
    "message is no text": (["a", {"message": 3}], "Row 2 has a message that is int"),
    "number": ([3], "Row 1 is '3'"),
    "id twice": ([{"id": "a", "message": "x"}, {"id": "a", "message": "y"}], "'a' comes twice"),
    "odd flag": ([{"message": "x", "expect_none": "perhaps"}], "expect_none"),
    "empty": ([], "no cases"),
    "no list": (3, "must be a list"),
}


@pytest.mark.parametrize(("source", "words"), WRONG.values(), ids=WRONG)
def test_read_cases_names_what_is_wrong(source, words):
    with pytest.raises(OptionError, match=words):
        read_cases(source)
