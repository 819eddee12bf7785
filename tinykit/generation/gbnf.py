"""Grammars in llama.cpp's GBNF, rewritten for llguidance.

Written after the format's description, https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md.
llguidance reads text in two stages, words (its terminals, which are regexes) and rules over words. All that
does not refer to itself becomes part of a word here, since a word is matched exactly, while rules must do
with the longest word at each place.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from tinykit.errors import OptionError

_MAX_DEPTH = 100  # of brackets
_MAX_TIMES = 10_000  # of one repetition; more is no text that a small model writes
_SPACE = re.compile(r"(?:[ \t]+|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:\s+|#[^\r\n]*)*")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_CHAR = re.compile(r"\\x[0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\[\\\"nrt\[\]^-]|[^\\\r\n]")
_TOKEN = re.compile(r"(!?)<(?:\[(\d+)\]|([^<>\s\[\]]+))>")
_TIMES = re.compile(r"\{\s*(\d{1,6})\s*(?:(,)\s*(\d{1,6})?\s*)?\}")
_MAX_WORD = 5_000  # parts of a word, with all that it refers to written out
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass
class _Node:
    """Part of a rule's right side: text as it is in Lark, a name, or a group of alternatives."""

    text: str = ""
    name: str = ""
    at: int = 0
    is_token: bool = False
    alternatives: list[list[_Node]] = field(default_factory=list)
    times: str = ""  # how often, as Lark writes it


def gbnf_to_lark(text: str) -> str:
    """The grammar in llguidance's Lark.

    Raises:
        OptionError: It is not valid; the error says in which line and column.
    """
    rules = _Parser(text).rules()
    return _Writer(rules).write()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def rules(self) -> dict[str, _Node]:
        rules: dict[str, _Node] = {}
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            start = self._at
            name = self._take(_NAME, "the name of a rule")[0]
            self._skip(_SPACE)
            self._take(re.compile("::="), f"'::=' after {name!r}")
            self._skip(_SPACE_AND_LINES)
            if name in rules:
                raise self._error(f"a second rule {name!r}", start)
            rules[name] = self._group(_SPACE)
            self._skip(_SPACE)
            if self._at < len(self._text):
                self._take(re.compile(r"\r?\n|\r"), "the end of the line")
            self._skip(_SPACE_AND_LINES)
        if "root" not in rules:
            raise self._error("no rule 'root', with which a grammar begins", 0)
        self._check_names(rules, list(rules.values()))
        return rules

    def _check_names(self, rules: dict[str, _Node], nodes: list[_Node]) -> None:
        while nodes:
            node = nodes.pop()
            if node.name and node.name not in rules:
                raise self._error(f"no rule {node.name!r}", node.at)
            nodes += [part for sequence in node.alternatives for part in sequence]

    def _group(self, space: re.Pattern[str]) -> _Node:
        """Alternatives up to a closing bracket or the end of the line."""
        node = _Node(alternatives=[self._sequence(space)])
        while self._peek() == "|":
            self._at += 1
            self._skip(_SPACE_AND_LINES)
            node.alternatives.append(self._sequence(space))
        return node

    def _sequence(self, space: re.Pattern[str]) -> list[_Node]:
        nodes: list[_Node] = []
        while self._peek() and self._peek() not in "|)\r\n":
            node = self._item()
            self._skip(space)
            nodes.append(self._repeated(node, space))
        return nodes

    def _item(self) -> _Node:
        char, start = self._peek(), self._at
        if char == '"':
            return _Node(text=self._literal())
        if char == "[":
            return _Node(text=self._class())
        if char == ".":
            self._at += 1
            return _Node(text="/(?s:.)/")
        if char == "(":
            return self._bracket()
        if char in "<!":
            return self._token()
        return _Node(name=self._take(_NAME, 'a text in "", a class in [], a name or a bracket')[0], at=start)

    def _bracket(self) -> _Node:
        start = self._at
        self._at += 1
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"more than {_MAX_DEPTH} brackets within each other", start)
        self._skip(_SPACE_AND_LINES)
        node = self._group(_SPACE_AND_LINES)
        if self._peek() != ")":
            raise self._error("a '(' that is not closed", start)
        self._at += 1
        self._depth -= 1
        return node

    def _repeated(self, node: _Node, space: re.Pattern[str]) -> _Node:
        while (char := self._peek()) and char in "*+?{":
            node = _Node(alternatives=[[node]], times=self._times(char))
            self._skip(space)
        return node

    def _times(self, char: str) -> str:
        if char != "{":
            self._at += 1
            return char
        start = self._at
        found = self._take(_TIMES, "a repetition such as {2} or {2,5}")
        low, high = int(found[1]), int(found[3] or found[1])
        if max(low, high) > _MAX_TIMES or high < low:
            raise self._error(
                f"{found[0]}, where numbers from 0 to {_MAX_TIMES:,} in order are allowed", start
            )
        return f"{{{low},{found[3] or ''}}}" if found[2] else f"{{{low}}}"

    def _literal(self) -> str:
        start = self._at
        self._at += 1
        chars = []
        while self._peek() != '"':
            chars.append(self._char(start, "text"))
        self._at += 1
        return f"/{''.join(map(_escaped, chars))}/" if chars else '""'

    def _class(self) -> str:
        start = self._at
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        parts = []
        while self._peek() != "]":
            first = last = self._char(start, "class")
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                last = self._char(start, "class")
            if last < first:
                raise self._error(f"a class that goes from {first!r} down to {last!r}", start)
            parts.append(f"{_escaped(first)}-{_escaped(last)}" if first != last else _escaped(first))
        self._at += 1
        if not parts:
            if not negated:
                raise self._error("an empty class []", start)
            return "/(?s:.)/"
        return f"/[{'^' if negated else ''}{''.join(parts)}]/"

    def _char(self, start: int, what: str) -> str:
        if self._peek() in ("", "\n", "\r"):
            raise self._error(f"a {what} that is not closed", start)
        found = self._take(_CHAR, "a known escape after the backslash")[0]
        if found[0] != "\\":
            return found
        if found[1] not in "xuU":
            return _LETTERS.get(found[1], found[1])
        number = int(found[2:], 16)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise self._error(f"{found}, which is no character", self._at - len(found))
        return chr(number)

    def _token(self) -> _Node:
        start = self._at
        found = self._take(_TOKEN, "a token such as <think> or <[12]>")
        if found[1] and not found[2]:
            raise self._error(f"{found[0]}; exclude a token by its number, as in !<[12]>", start)
        number = f"[{'^' if found[1] else ''}{found[2]}]" if found[2] else found[3]
        return _Node(text=f"<{number}>", is_token=True)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _take(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        found = pattern.match(self._text, self._at)
        if found is None:
            there = repr(self._peek()) if self._peek() else "the end"
            raise self._error(f"{there} where {what} is expected", self._at)
        self._at = found.end()
        return found

    def _error(self, what: str, at: int) -> OptionError:
        line = self._text.count("\n", 0, at) + 1
        column = at - self._text.rfind("\n", 0, at)
        return OptionError(
            f"The GBNF grammar is not valid at line {line}, column {column}: {what}.",
            hint="Syntax: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md",
            name="gbnf",
            value=self._text,
        )


def _escaped(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}"


class _Writer:
    """Rules as Lark: names in capitals are words, the others are rules over words."""

    def __init__(self, rules: dict[str, _Node]) -> None:
        self._rules = rules
        self._words = self._word_rules()
        order = {name: number for number, name in enumerate(rules)}
        self._names = {
            name: f"{'W' if name in self._words else 'r'}_{number}" for name, number in order.items()
        }
        self._lines: list[str] = []
        self._hoisted = 0

    def write(self) -> str:
        self._lines = [f"start: {self._names['root']}"]
        for name, rule in self._rules.items():
            right = self._word(rule) if name in self._words else self._rule(rule)
            self._lines.append(f"{self._names[name]}: {right}")
        return "\n".join(self._lines)

    def _word_rules(self) -> dict[str, float]:
        """Rules that refer, in the end, to words alone, found from the leaves up, and their sizes."""
        words: dict[str, float] = {}
        known = -1
        while known < len(words):
            known = len(words)
            # rules mostly come before those that they refer to
            for name in reversed([name for name in self._rules if name not in words]):
                size = self._word_size(self._rules[name], words)
                if size <= _MAX_WORD:
                    words[name] = size
        return words

    def _word_size(self, node: _Node, words: dict[str, float]) -> float:
        """Parts of the word that this is, or infinity if it is none."""
        if node.name:
            return words.get(node.name, math.inf)
        if node.is_token:
            return math.inf
        parts = (part for sequence in node.alternatives for part in sequence)
        return 1 + sum(self._word_size(part, words) for part in parts)

    def _is_word(self, node: _Node) -> bool:
        return self._word_size(node, self._words) <= _MAX_WORD

    def _word(self, node: _Node) -> str:
        if not node.alternatives:
            return self._names[node.name] if node.name else node.text
        sequences = (" ".join(map(self._word, sequence)) or '""' for sequence in node.alternatives)
        return f"({' | '.join(sequences)}){node.times}"

    def _rule(self, node: _Node) -> str:
        if not node.alternatives:
            return self._names[node.name] if node.name else node.text
        return f"({' | '.join(map(self._rule_sequence, node.alternatives))}){node.times}"

    def _rule_sequence(self, nodes: list[_Node]) -> str:
        """Neighbors that are words become one word."""
        parts: list[str] = []
        run: list[_Node] = []
        for node in [*nodes, None]:
            if node is not None and self._is_word(node):
                run.append(node)
                continue
            if run:
                parts.append(self._hoist(run))
                run = []
            if node is not None:
                parts.append(self._rule(node))
        return " ".join(parts) or '""'

    def _hoist(self, nodes: list[_Node]) -> str:
        self._hoisted += 1
        name = f"H_{self._hoisted}"
        self._lines.append(f"{name}: {' '.join(map(self._word, nodes))}")
        return name
