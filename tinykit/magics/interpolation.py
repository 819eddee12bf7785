"""``{{name}}`` in options and bodies of magics: the value of a variable, strictly.

A name, its attributes and its items, as in ``{{row.text}}`` or ``{{chats[0]["title"]}}``; no calls, no
arithmetic. What is not there is an error before any model is asked. Single braces and ``$`` are text.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Mapping
from typing import Any

from tinykit.errors import OptionError

_PLACE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_BRACES_HINT = "Two braces stand for a variable; write {{'{{'}} for the braces themselves."


def value_of(text: str, names: Mapping[str, Any]) -> Any:
    """The object itself if the text is one placeholder and nothing else; if not, the text with all filled in.

    Raises:
        OptionError: a placeholder that is no name, or whose value is not there or not fit for a text.
    """
    places = list(_PLACE.finditer(text))
    if len(places) == 1 and places[0][0] == text.strip():
        return _evaluated(places[0][1], names)
    return filled(text, names)


def filled(text: str, names: Mapping[str, Any]) -> str:
    """The text with the values of its placeholders.

    Raises:
        OptionError: as `value_of`.
    """
    return _PLACE.sub(lambda place: _as_text(place[1].strip(), _evaluated(place[1], names)), text)


def _as_text(source: str, value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    kind = type(value).__name__
    if value is None or isinstance(value, bytes | bytearray):
        raise OptionError(f"{{{{{source}}}}} is {value!r:.80}, which is no text.", name=source, value=value)
    if isinstance(value, list | tuple | set) or getattr(value, "ndim", None):
        raise OptionError(
            f"{{{{{source}}}}} is a {kind}, which does not fit into a text.",
            hint=f"Alone, as in %title {{{{{source}}}}}, each of its items is taken; "
            f"or name one of them: {{{{{source}[0]}}}}.",
            name=source,
            value=value,
        )
    return str(value)


def _evaluated(source: str, names: Mapping[str, Any]) -> Any:
    source = source.strip()
    try:
        tree = ast.parse(source, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise _no_name(source) from None
    return _value(tree.body, source, names)


def _value(node: ast.expr, source: str, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        if node.id not in names:
            known = [name for name, value in names.items() if not callable(value)]
            raise _missing("variable", node.id, source, known)
        return names[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Attribute) and not node.attr.startswith("_"):
        owner = _value(node.value, source, names)
        try:
            return getattr(owner, node.attr)
        except AttributeError:
            raise _missing("attribute", node.attr, source, dir(owner)) from None
    if isinstance(node, ast.Subscript):
        owner, key = _value(node.value, source, names), _key(node.slice, source)
        try:
            return owner[key]
        except (LookupError, TypeError) as error:
            near = [name for name in owner if isinstance(name, str)] if isinstance(owner, Mapping) else []
            raise _missing("item", str(key), source, near) from error
    raise _no_name(source)


def _key(node: ast.expr, source: str) -> Any:
    """A constant index: text, or a whole number with or without a sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _key(node.operand, source)
        if isinstance(number, int):
            return -number
    if (
        isinstance(node, ast.Constant)
        and isinstance(node.value, int | str)
        and not isinstance(node.value, bool)
    ):
        return node.value
    raise _no_name(source)


def _missing(kind: str, name: str, source: str, known: list[str]) -> OptionError:
    near = difflib.get_close_matches(name, [one for one in known if not one.startswith("_")], 1)
    return OptionError(
        f"{{{{{source}}}}}: there is no {kind} {name!r}.",
        hint=f"Did you mean {near[0]!r}?" if near else _BRACES_HINT,
        name=name,
        value=source,
    )


def _no_name(source: str) -> OptionError:
    return OptionError(
        f"{{{{{source:.60}}}}} is not the name of a variable, with attributes or items at most.",
        hint=_BRACES_HINT,
        name=source,
        value=source,
    )
