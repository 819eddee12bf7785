import re

import pytest

from tinykit.generation.constraint import Constraint
from tinykit.generation.grammar_text import bounded_schema, to_lark

A, B = {"properties": {"a": {"type": "null"}}}, {"properties": {"b": {"type": "null"}}}
OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}


def closed(schema):
    return "'additionalProperties': False" in str(bounded_schema(schema))


@pytest.mark.parametrize(
    "schema",
    [
        OBJECT,
        {"type": "array", "items": OBJECT},
        {"anyOf": [A, B]},
        {"$ref": "#/$defs/x", "$defs": {"x": OBJECT}},
        {"properties": {"a": A}, "additionalProperties": True},
        {"allOf": [A]},
    ],
    ids=range(6),
)
def test_objects_are_closed(schema):
    assert closed(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [A, B]},
        {**A, "anyOf": [B]},
        {"$ref": "#/$defs/x", "$defs": {"x": OBJECT}, "required": ["b"]},
        {"$ref": "#/$defs/x", "$defs": {"x": OBJECT}, "allOf": [B]},
        {**A, "required": ["b"]},
        {**A, "patternProperties": {"^x": True}},
        {**A, "minProperties": 2},
        {"type": "object"},
        {"const": A},
        {"default": A, "examples": [A], "enum": [A]},
    ],
    ids=range(10),
)
def test_objects_that_may_need_other_keys_stay_open(schema):
    assert not closed(schema)


def test_a_property_may_have_the_name_of_a_keyword():
    schema = {"properties": {"properties": {"type": "integer"}, "type": {"type": "null"}}}
    bounded = bounded_schema(schema)
    assert set(bounded["properties"]) == {"properties", "type"}
    assert bounded["properties"]["properties"]["maximum"] == 10**15 - 1


def test_whole_numbers_end():
    assert bounded_schema({"type": "integer"})["minimum"] == -(10**15) + 1
    for limit in ({"minimum": 3}, {"exclusiveMaximum": 3}, {"enum": [1]}, {"multipleOf": 5}):
        assert limit.items() <= bounded_schema({"type": "integer", **limit}).items()
        assert len(bounded_schema({"type": "integer", **limit})) == 3  # type, limit, style


def test_the_schema_itself_is_not_changed():
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    before = str(schema)
    bounded_schema(schema)
    assert str(schema) == before


def test_style_can_be_asked_for():
    style = bounded_schema({"x-guidance": {"key_separator": ":"}})["x-guidance"]
    assert (style["key_separator"], style["item_separator"]) == (":", ", ")


@pytest.mark.parametrize("pattern", ["a/b", r"a\/b", "a\nb", "a\\\nb", r"\\/", r"[/]"])
def test_slashes_and_line_ends_of_a_regex(pattern):
    line = to_lark(Constraint.regex(pattern)).splitlines()[0]
    inner = re.fullmatch("start: /(.*)/", line)[1]
    assert not re.search(r"(?<!\\)(?:\\\\)*/", inner)


def test_lark_keeps_its_lines():
    text = 'start: "a"\n\n  # b'
    assert to_lark(Constraint.lark(text)).startswith(text + "\n")
