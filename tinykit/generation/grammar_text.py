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
_MAX_INTEGER = 10**15 - 1  # fits a double, and ends; digits are the other thing that is repeated
_NUMBER_KEYS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum", "const"}
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

    Objects have no keys but those of their ``properties``, and whole numbers have at most 15 digits, unless
    the schema itself says something about it.
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
    if schema.get("type") == "integer" and not schema.keys() & (_NUMBER_KEYS | _CHOICE_KEYS | {"allOf"}):
        bounded |= {"minimum": -_MAX_INTEGER, "maximum": _MAX_INTEGER}
    return bounded


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
