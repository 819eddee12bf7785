"""Constraints as grammars in the Lark syntax of llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from tinykit.generation.constraint import Constraint
from tinykit.generation.gbnf import gbnf_to_lark
from tinykit.generation.grammar_errors import invalid, too_many_rules

# After the grammar, so that its own lines keep their numbers; the last of several wins.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'
_MAX_RULES = 1000  # they may lie below each other, and each takes stack when the grammar is compiled
_RULES = {
    "lark": re.compile(r"^[ \t]*[?!]?\w[^\s:]*[ \t]*:", re.MULTILINE),
    "gbnf": re.compile(r"::="),
    "json": re.compile(r'"\$ref"'),
}
# As json.dumps writes it. Free white space is what a small model likes to repeat until its tokens are spent.
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Digits are the other thing that is repeated. So many before and behind the point fit a double, and end.
_MAX_NUMBER, _NUMBER_STEP = 10**15 - 1, 1e-9
_NARROW = 1e-6  # a range in which the steps may be too few
_OBJECT_KEYS = {"properties", "required", "minProperties", "maxProperties"}
_OPEN_KEYS = {"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames"}
_CHOICE_KEYS = {"anyOf", "oneOf", "$ref", "$dynamicRef", "not", "if", "dependentSchemas"}
# where a schema holds others: by name, in a list, or one
_NAMED = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
_LISTED = {"allOf", "anyOf", "oneOf", "prefixItems"}
_SINGLE = {"items", "additionalProperties", "additionalItems", "contains", "not", "if", "then", "else"}


def to_lark(constraint: Constraint) -> str:
    """The grammar of `constraint`.

    Raises:
        OptionError: Too many rules, too deep a schema, or GBNF that is not valid; the rest is checked when it
            is compiled.
    """
    rules = len(_RULES[constraint.kind].findall(constraint.text)) if constraint.kind in _RULES else 0
    if rules > _MAX_RULES:
        raise too_many_rules(constraint, rules, _MAX_RULES)
    if constraint.kind == "regex":
        body = f"start: {_regex(constraint)}"
    elif constraint.kind == "choices":
        texts = [_literal(text) for text in json.loads(constraint.text)]
        body = f"start: /{'|'.join(texts)}/"
    elif constraint.kind == "json":
        body = f"start: %json {_bounded_json(constraint)}"
    elif constraint.kind == "gbnf":
        body = gbnf_to_lark(constraint.text)
    else:
        body = constraint.text
    return body + _OPTIONS


def _bounded_json(constraint: Constraint) -> str:
    try:
        return json.dumps(bounded_schema(json.loads(constraint.text)))
    except RecursionError:
        raise invalid(constraint, "too deep") from None


def _regex(constraint: Constraint) -> str:
    """Between slashes; what is escaped already stays."""
    parts = re.findall(r"\\.|[^\\]|\\$", constraint.text, re.DOTALL)
    if parts and parts[-1] == "\\":
        raise invalid(constraint, "it ends with a backslash")
    escapes = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}
    return f"/{''.join(escapes.get(part, part) for part in parts)}/"


def _literal(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else f"\\x{{{ord(c):X}}}" for c in text)


def bounded_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that allows less, so that a model comes to an end: what fits it fits `schema`.

    Objects have no keys but those of their ``properties``, unless the schema itself says something about it.
    Numbers have at most 15 digits before the point and 9 behind it, and no exponent; what the schema says of
    their range counts beside that.
    """
    asked = schema.get("x-guidance")
    style = {**_JSON_STYLE, **(asked if isinstance(asked, dict) else {})}
    # where objects are put together from parts, a part without the other's keys would allow nothing
    return {**_bounded(schema, close=not _combines_objects(schema)), "x-guidance": style}


def _bounded(schema: Any, *, close: bool) -> Any:
    if not isinstance(schema, dict):
        return schema
    bounded = {key: _each_schema(key, value, close=close) for key, value in schema.items()}
    if close and _is_plain_object(schema):
        bounded["additionalProperties"] = False
    return bounded | _number_bounds(schema)


def _number_bounds(schema: dict[str, Any]) -> dict[str, Any]:
    """What lets the numbers of a schema end, where it does not say so itself."""
    given = schema.get("type")
    kinds = given if isinstance(given, list) else [given]
    if schema.keys() & (_CHOICE_KEYS | {"allOf", "enum", "const"}) or not (
        "integer" in kinds or "number" in kinds
    ):
        return {}
    lows = [schema[key] for key in ("minimum", "exclusiveMinimum") if key in schema]
    highs = [schema[key] for key in ("maximum", "exclusiveMaximum") if key in schema]
    if not all(_is_within(limit) for limit in (*lows, *highs)):  # larger than ours, or no number
        return {}
    bounds: dict[str, Any] = {} if lows else {"minimum": -_MAX_NUMBER}
    bounds |= {} if highs else {"maximum": _MAX_NUMBER}
    width = min(highs, default=_MAX_NUMBER) - max(lows, default=-_MAX_NUMBER)
    if "number" in kinds and "multipleOf" not in schema and width >= _NARROW:
        bounds["multipleOf"] = _NUMBER_STEP
    return bounds


def _is_within(limit: object) -> bool:
    return isinstance(limit, int | float) and not isinstance(limit, bool) and abs(limit) < _MAX_NUMBER


def _each_schema(key: str, value: Any, *, close: bool) -> Any:
    if key in _NAMED and isinstance(value, dict):
        return {name: _bounded(part, close=close) for name, part in value.items()}
    if key in _LISTED and isinstance(value, list):
        return [_bounded(part, close=close) for part in value]
    return _bounded(value, close=close) if key in _SINGLE else value


def _is_plain_object(schema: dict[str, Any]) -> bool:
    known, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(known, dict) or not isinstance(required, list) or schema.keys() & _OPEN_KEYS:
        return False
    return "minProperties" not in schema and all(isinstance(name, str) and name in known for name in required)


def _combines_objects(schema: Any) -> bool:
    if not isinstance(schema, dict):
        return False
    parts = [key for key in schema if key in _CHOICE_KEYS]
    parts += schema["allOf"] if isinstance(schema.get("allOf"), list) else []
    if len(parts) + bool(schema.keys() & (_OBJECT_KEYS | _OPEN_KEYS)) > 1:
        return True
    return any(_combines_objects(part) for key, value in schema.items() for part in _schemas(key, value))


def _schemas(key: str, value: Any) -> Iterable[Any]:
    if key in _NAMED and isinstance(value, dict):
        return value.values()
    if key in _LISTED and isinstance(value, list):
        return value
    return (value,) if key in _SINGLE else ()
