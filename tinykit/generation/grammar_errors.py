"""What is wrong with a constraint, in the user's own lines and columns."""

from __future__ import annotations

import re

from tinykit.errors import OptionError
from tinykit.generation.constraint import Constraint

_TITLES = {
    "regex": "regex",
    "choices": "list of choices",
    "json": "JSON schema",
    "lark": "Lark grammar",
    "gbnf": "GBNF grammar",
}
_PLACE = re.compile(r"(?:at )?(\d+)\((\d+)\): ")
_TOO_COMPLEX = re.compile(
    r"\bfuel\b|too complex|TooComplex|\blimits?\b|too (?:deep|many|large|big)", re.IGNORECASE
)
_SIMPLER = "Make it smaller: fewer repetitions, less nesting, fewer alternatives."
_SYNTAX = {
    "regex": "Syntax: https://docs.rs/regex/latest/regex/#syntax",
    "json": "Supported: https://github.com/guidance-ai/llguidance/blob/main/docs/json_schema.md",
    "lark": "Syntax: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md",
}
_SHOWN_CHARS = 200
_ENDLESS = "Let it match something: a rule needs an alternative that does not lead back to itself."


def invalid(constraint: Constraint, message: str) -> OptionError:
    """The error for a grammar that llguidance does not take."""
    if "NoExtension" in message:
        return _error(constraint, "allows no text at all, not even an empty one.", _ENDLESS)
    if _TOO_COMPLEX.search(message):
        return _error(constraint, f"is too complex: {_reason(message)}.", _SIMPLER)
    place = _PLACE.match(message)
    if constraint.kind == "regex":
        where = _regex_place(constraint.text, message)
    else:
        where = f" at line {place[1]}, column {place[2]}" if place and constraint.kind == "lark" else ""
    return _error(constraint, f"is not valid{where}: {_reason(message)}.", _SYNTAX.get(constraint.kind))


def too_slow(constraint: Constraint, seconds: float) -> OptionError:
    """The error for a grammar that llguidance does not come to an end with."""
    return _error(constraint, f"is too complex: it takes longer than {seconds:.0f} s to compile.", _SIMPLER)


def too_many_rules(constraint: Constraint, count: int, limit: int) -> OptionError:
    """The error for a grammar with more rules than may lie below each other."""
    return _error(
        constraint, f"is too complex: it has {count:,} rules or references; {limit:,} is the limit.", _SIMPLER
    )


def dead_end(constraint: Constraint, message: str, text: str) -> OptionError:
    """The error for a text that cannot go on."""
    where = f"cannot go on after {text[-_SHOWN_CHARS:]!r}" if text else "cannot begin"
    return _error(constraint, f"{where}: {_reason(message)}.", _SIMPLER)


def _error(constraint: Constraint, what: str, hint: str | None = None) -> OptionError:
    title = _TITLES[constraint.kind]
    shown = constraint.text if len(constraint.text) <= 80 else constraint.text[:79] + "…"
    if constraint.kind == "regex":
        title = f"{title} {shown!r}"
    return OptionError(f"The {title} {what}", hint=hint, name=constraint.kind, value=constraint.text)


def _reason(message: str) -> str:
    """The message without place, source lines and state."""
    place = _PLACE.match(message)
    message = message[place.end() :] if place else message
    if parse_error := re.search(r"^error: (.*)", message, re.MULTILINE):
        return parse_error[1]  # of a regex, below the lines that show it
    first = message.partition("\n")[0].partition(";")[0]  # what follows is about llguidance's own options
    first = first.removeprefix("failed to compile JSON schema: ")
    first = first.partition(" (in regex): ")[2] or first
    return first[:_SHOWN_CHARS].rstrip(". ")


def _regex_place(pattern: str, message: str) -> str:
    """Where in the pattern, from the caret below its line; patterns of several lines are shown otherwise."""
    shown = re.search(r"^    (.*)\n    ( *)\^", message, re.MULTILINE)
    if shown is None or "\n" in pattern:
        return ""
    return f" at character {len(shown[2]) + 1}"
