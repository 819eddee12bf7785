import json

import pytest

from tinykit.errors import OptionError
from tinykit.recipes import RECIPES
from tinykit.tune.pairs import Pair, checked_pairs, read_pairs, split

TWO = [Pair("my login test is flaky", "Flaky login test", row=1), Pair("ok", None, row=2)]
ROWS = [{"message": pair.message, "title": pair.title} for pair in TWO]
TITLES = RECIPES["titles"]


class Frame:
    """As much of a pandas DataFrame as is used."""

    def __init__(self, records):
        self.records = records
        self.columns = list(records[0])

    def to_dict(self, orient):
        assert orient == "records"
        return self.records


class PolarsFrame(Frame):
    def to_dicts(self):
        return self.records


@pytest.mark.parametrize(
    "cases",
    [
        ROWS,
        [("my login test is flaky", "Flaky  login\ttest "), ("ok", None)],
        iter(ROWS),
        [Pair(pair.message, pair.title, row=99) for pair in TWO],
        Frame([ROWS[0], {**ROWS[1], "title": float("nan")}]),
        PolarsFrame(ROWS),
    ],
    ids=["dicts", "tuples", "iterator", "pairs", "pandas", "polars"],
)
def test_objects_are_read(cases):
    assert read_pairs(cases) == TWO


FILES = {
    "pairs.jsonl": "\n".join(json.dumps(row) for row in ROWS) + "\n\n",
    "pairs.json": json.dumps(ROWS),
    "bom.jsonl": "\ufeff" + "\n".join(json.dumps(row) for row in ROWS),
    "pairs.csv": 'message,title\n"my login test is flaky",Flaky login test\nok,\n',
    "PAIRS.CSV": "title,message\r\nFlaky login test,my login test is flaky\r\n,ok\r\n",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("as_text", [True, False], ids=["str", "Path"])
def test_files_are_read(tmp_path, name, as_text):
    path = tmp_path / name
    path.write_text(FILES[name], encoding="utf-8", newline="")
    assert read_pairs(str(path) if as_text else path) == TWO


def test_line_separators_inside_json_text_split_no_row(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"message": "one\u2028two", "title": null}\n', encoding="utf-8")
    assert read_pairs(path) == [Pair("one\u2028two", None, row=1)]


def test_language_and_category_are_kept():
    assert read_pairs([{**ROWS[0], "language": "de", "category": "coding", "other": 1}]) == [
        Pair("my login test is flaky", "Flaky login test", "de", "coding", 1)
    ]


BAD = {
    "number": (7, "list of .* not int"),
    "dict": ({"message": "a"}, "not dict"),
    "text in list": (["abc"], "Row 1 is 'abc'"),
    "no title": ([*ROWS, {"message": "a", "name": "b"}], "Row 3 has the fields message, name"),
    "three values": ([("a", "b", "c")], "Row 1"),
    "message is None": ([(None, "b")], "Row 1 has a message that is NoneType"),
    "title is a number": ([("a", 3)], "Row 1 has a title that is int"),
    "frame without title": (
        Frame([{"message": "a", "text": "b"}]),
        "no column 'title'; it has message, text",
    ),
    "wrong ending": ("pairs.txt", "must end in one of .jsonl"),
    "no file": ("nowhere/pairs.jsonl", "cannot be read"),
}


@pytest.mark.parametrize(("cases", "message"), BAD.values(), ids=BAD)
def test_what_is_no_pair_is_named(cases, message):
    with pytest.raises(OptionError, match=message):
        read_pairs(cases)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"message": "a", "title": "b"}\n{"mess', "line 2, is not valid JSON"),
        ("a.json", '{"message": "a"}', "must hold a list"),
        ("a.json", "[" * 100_000, "is not valid JSON"),
        ("a.csv", "text,title\na,b\n", "Row 1 has the fields text, title"),
    ],
    ids=["torn_line", "object", "nested", "header"],
)
def test_damaged_files_are_named(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OptionError, match=message):
        read_pairs(path)


def test_file_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_bytes("message,title\nGrüße,Gruß\n".encode("latin-1"))
    with pytest.raises(OptionError, match="cannot be read"):
        read_pairs(path)


def good(count):
    return [(f"message number {i} about things", f"Number {i} things") for i in range(count)]


def test_duplicates_are_dropped_and_counted():
    found = checked_pairs([*good(21), ("Message number 3  about THINGS", "Later title")], TITLES)
    assert len(found.pairs) == 21
    assert found.pairs[3].title == "Number 3 things"
    assert found.left_out == {"duplicates": 1}


def test_nothing_left_out_is_nothing_said():
    assert checked_pairs(good(20), TITLES).left_out == {}


UNFIT = {
    "too few": (good(19), "19 different pairs are too few"),
    "few after duplicates": (good(10) * 4, "10 different pairs"),
    "empty messages": ([*good(20), ("", "x"), (" \n", "y")], "2 rows have no message: 21, 22"),
    "long title": ([*good(20), ("a", "word " * 13)], "1 row has a title that is too long: 21"),
    "long word": ([*good(20), ("a", "x" * 81)], "too long"),
    "empty title": ([*good(20), ("a", "  ")], "says nothing"),
    "word for none": ([*good(20), ("a", "-")], "says nothing"),
    "end mark": ([*good(20), ("a", "x</title>y")], "says nothing"),
    "many": ([*good(20), *[("", None)] * 9], r"9 rows have no message: 21, 22, 23, 24, 25, …\."),
}


@pytest.mark.parametrize(("cases", "message"), UNFIT.values(), ids=UNFIT)
def test_unfit_data_is_refused_with_its_rows(cases, message):
    with pytest.raises(OptionError, match=message):
        checked_pairs(cases, TITLES)


def test_no_title_needs_a_recipe_that_can_say_so():
    with pytest.raises(OptionError, match="want no title, which the recipe 'plain' cannot say: 21"):
        checked_pairs([*good(20), ("ok", None)], RECIPES["plain"])


@pytest.mark.parametrize(
    ("count", "share", "kept_out"), [(100, 0.1, 10), (20, 0.1, 4), (30, 0, 0), (5000, 0.1, 200)]
)
def test_split_keeps_out_a_share(count, share, kept_out):
    pairs = read_pairs(good(count))
    train, choose, score = split(pairs, share)
    assert len(choose) + len(score) == kept_out
    assert abs(len(choose) - len(score)) <= 1
    assert sorted((*train, *choose, *score), key=lambda pair: pair.row) == pairs


def test_split_does_not_depend_on_the_order():
    pairs = read_pairs(good(50))
    assert set(split(pairs, 0.2)[1]) == set(split(pairs[::-1], 0.2)[1])


@pytest.mark.parametrize("share", [-0.1, 0.6, float("nan")])
def test_split_share_is_checked(share):
    with pytest.raises(OptionError, match="held_out"):
        split(read_pairs(good(30)), share)
