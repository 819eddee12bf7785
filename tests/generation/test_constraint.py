import json

import pytest
from pydantic import BaseModel, field_validator

from tinykit.errors import OptionError
from tinykit.generation.constraint import Constraint


class Note(BaseModel):
    title: str

    @field_validator("title")
    @classmethod
    def is_short(cls, value):
        if len(value) > 3:
            raise ValueError("too long")
        return value


def test_the_same_constraint_is_equal_and_hashable():
    assert Constraint.choices(["a", "b", "a"]) == Constraint.choices(("a", "b"))
    assert len({Constraint.json_schema({"type": "null"}), Constraint.json_schema('{"type": "null"}')}) == 1


@pytest.mark.parametrize(
    ("make", "value", "match"),
    [
        (Constraint.choices, [], "one or more texts"),
        (Constraint.choices, "yes", "one or more texts, not 'yes'"),
        (Constraint.choices, [1], "one or more texts"),
        (Constraint.choices, None, "one or more texts"),
        (Constraint.choices, ["\ud800"], "surrogate"),
        (Constraint.regex, None, "regex must be text"),
        (Constraint.regex, "a\udfff", "surrogate pair at character 2"),
        (Constraint.regex, "a" * 200_001, "200,001 characters"),
        (Constraint.lark, b"start", "lark must be text"),
        (Constraint.gbnf, 5, "gbnf must be text"),
        (Constraint.json_schema, 5, "JSON object, its text, a Path to it or a pydantic class, not 5"),
        (Constraint.json_schema, "[1]", "JSON object"),
        (Constraint.json_schema, "{", "not valid JSON"),
        (Constraint.json_schema, {"const": object()}, "cannot be written as JSON"),
        (Constraint.json_schema, {"const": float("nan")}, "cannot be written as JSON"),
        (Constraint.json_schema, int, "JSON object"),
    ],
)
def test_what_is_no_constraint(make, value, match):
    with pytest.raises(OptionError, match=match) as caught:
        make(value)
    assert len(str(caught.value)) < 300


def test_schema_from_a_file(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{"type": "array"}', encoding="utf-8")
    assert Constraint.json_schema(path) == Constraint.json_schema({"type": "array"})
    with pytest.raises(OptionError, match="not valid JSON") as caught:
        Constraint.json_schema(str(path))
    assert caught.value.hint == f"A file is given as a path: Path({str(path)!r})"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "x.json cannot be read: No such file or directory"),
        (b"\xff{}", "x.json cannot be read: 'utf-8' codec can't decode"),
        (b"{", "x.json is not valid JSON"),
        (b"[1]", "must be a JSON object"),
    ],
    ids=["none", "latin-1", "cut", "list"],
)
def test_file_that_holds_no_schema(tmp_path, content, said):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(OptionError) as caught:
        Constraint.json_schema(path)
    assert said in str(caught.value) and caught.value.name == "schema"


def test_schema_that_contains_itself():
    schema = {}
    schema["items"] = schema
    with pytest.raises(OptionError, match="cannot be written as JSON"):
        Constraint.json_schema(schema)


def test_parse():
    assert Constraint.regex("a+").parse("aa") == "aa"
    assert Constraint.choices(["a"]).parse("a") == "a"
    assert Constraint.json_schema({"type": "array"}).parse("[1]") == [1]
    assert Constraint.json_schema(Note).parse('{"title": "abc"}') == Note(title="abc")


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (Constraint.json_schema({"type": "array"}), "[1, 2"),
        (Constraint.json_schema(Note), '{"title": "ab'),
        (Constraint.choices(["yes"]), "ye"),
        (Constraint.json_schema({"type": "array"}), "[" * 100_000),
    ],
    ids=["json", "pydantic", "choices", "deep"],
)
def test_parse_of_an_answer_that_was_cut(constraint, text):
    with pytest.raises(OptionError, match="The answer is no") as caught:
        constraint.parse(text)
    assert "max_tokens" in caught.value.hint


def test_validators_of_the_class_speak_for_themselves():
    with pytest.raises(ValueError, match="too long"):
        Constraint.json_schema(Note).parse('{"title": "abcd"}')


def test_schema_keeps_its_order():
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    assert list(json.loads(Constraint.json_schema(schema).text)["properties"]) == ["b", "a"]
