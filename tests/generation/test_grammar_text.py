import re

import numpy as np
import pytest

from tests import tiny_models as tiny
from tests.generation.test_engine import EOS, tokenizer
from tests.generation.test_streaming import ids
from tinykit.backends.scripted import ScriptedBackend
from tinykit.generation.constraint import Constraint
from tinykit.generation.engine import Engine
from tinykit.generation.grammar_text import bounded_schema, to_lark
from tinykit.generation.request import GenerationOptions, Request

A, B = {"properties": {"a": {"type": "null"}}}, {"properties": {"b": {"type": "null"}}}
PROMPT = (5, 6)
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


M = 10**15 - 1


@pytest.mark.parametrize(
    ("schema", "added"),
    [
        ({"type": "integer"}, {"minimum": -M, "maximum": M}),
        ({"type": ["integer", "null"]}, {"minimum": -M, "maximum": M}),
        ({"type": "integer", "minimum": 3}, {"maximum": M}),
        ({"type": "integer", "exclusiveMaximum": 3}, {"minimum": -M}),
        ({"type": "integer", "multipleOf": 5}, {"minimum": -M, "maximum": M}),
        ({"type": "integer", "minimum": 0, "maximum": 9}, {}),
        ({"type": "number"}, {"minimum": -M, "maximum": M, "multipleOf": 1e-9}),
        ({"type": ["number", "null"]}, {"minimum": -M, "maximum": M, "multipleOf": 1e-9}),
        ({"type": "number", "minimum": 0, "maximum": 1}, {"multipleOf": 1e-9}),
        ({"type": "number", "multipleOf": 0.01}, {"minimum": -M, "maximum": M}),
        # nothing that could leave no number at all
        ({"type": "number", "minimum": 0.1234567891, "maximum": 0.1234567892}, {}),
        ({"type": "number", "minimum": 1e16}, {}),
        ({"type": "integer", "minimum": 10**400}, {}),
        ({"type": "number", "maximum": -1e300}, {}),
        ({"type": "integer", "minimum": "3"}, {}),
        ({"type": "number", "minimum": 3, "exclusiveMinimum": True}, {}),
        ({"type": "integer", "enum": [1]}, {}),
        ({"type": "number", "const": 1e20}, {}),
        ({"type": "integer", "anyOf": [{"minimum": 10**16}]}, {}),
        ({"type": [["integer"]]}, {}),
        ({"minimum": 3}, {}),
    ],
    ids=str,
)
def test_numbers_end(schema, added):
    bounded = bounded_schema(schema)
    del bounded["x-guidance"]
    assert bounded == schema | added


DIGITS = "9876543210"
NUMBERS = [
    {"type": "number"},
    {"type": "integer"},
    {"type": "integer", "minimum": 7},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "maximum": -0.5},
    {"type": "number", "multipleOf": 0.01},
    {"type": ["number", "null"]},
    {"anyOf": [{"type": "number"}, {"type": "null"}]},
    {"$ref": "#/$defs/n", "$defs": {"n": {"type": "number", "minimum": 0}}},
]


@pytest.mark.parametrize("liked", [DIGITS, DIGITS[::-1], "-.eE+" + DIGITS], ids=["9", "0", "."])
@pytest.mark.parametrize("schema", NUMBERS, ids=str)
def test_model_that_likes_digits_comes_to_an_end(schema, liked):
    """Of all tokens that are allowed it takes a digit if it can, and the end last."""
    pytest.importorskip("llguidance")
    scores = np.ones(len(tiny.VOCABULARY), np.float32)
    scores[EOS] = 0
    for at, character in enumerate(liked):
        scores[ids(character)] = 99 - at
    backend = ScriptedBackend(lambda seen: scores, vocab_size=len(tiny.VOCABULARY))
    engine = Engine(backend, tokenizer(), [EOS], cache_bytes=1 << 20)
    wanted = {"type": "object", "properties": {"n": schema}, "required": ["n"]}
    if "$defs" in schema:
        wanted["$defs"] = schema["$defs"]
    completion = engine.generate(
        Request(PROMPT, GenerationOptions(200, constraint=Constraint.json_schema(wanted)))
    )
    assert completion.finish_reason == "stop"
    assert isinstance(completion.parsed["n"], int | float)
    assert len(completion.text) <= len('{"n": }') + 26


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
