"""What differs between two titles, word by word, marked by signs and weight and never by color alone.

In text and Markdown a word that went is ``[-so-]`` and one that came is ``{+so+}``; in HTML they are struck
out and bold and underlined.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from typing import Literal, NamedTuple

from tinykit.scripts import is_unspaced

Sign = Literal["=", "-", "+"]
_TAGS = {
    "-": ("del", "text-decoration: line-through"),
    "+": ("ins", "text-decoration: underline; font-weight: bold"),
}
_SIGNS = {"-": ("[-", "-]"), "+": ("{+", "+}")}

NOTE = "Marked words are in one of the titles only: [-gone-] or struck out, {+new+} or bold and underlined."


class Part(NamedTuple):
    """A piece of a text that stayed (``=``), went (``-``) or came (``+``)."""

    sign: Sign
    text: str


class Marked(str):
    """A text whose parts are marked; as a plain string it has the signs in it."""

    parts: tuple[Part, ...]
    unmarked: str

    def __new__(cls, parts: Iterable[Part], unmarked: str) -> Marked:
        """The text of these parts, and what it is without marks."""
        found = tuple(parts)
        self = super().__new__(cls, "".join(map(_signed, found)))
        self.parts, self.unmarked = found, unmarked
        return self

    def to_html(self) -> str:
        """The text with elements around what differs, escaped."""
        return "".join(map(_tagged, self.parts))


def _signed(part: Part) -> str:
    if part.sign == "=":
        return part.text
    body = part.text.strip()
    left, right = _SIGNS[part.sign]
    return part.text.replace(body, f"{left}{body}{right}", 1) if body else part.text


def _tagged(part: Part) -> str:
    body = html.escape(part.text.strip())
    if part.sign == "=" or not body:
        return html.escape(part.text)
    tag, style = _TAGS[part.sign]
    lead, _, tail = part.text.partition(part.text.strip())
    return f'{lead}<{tag} style="{style}">{body}</{tag}>{tail}'


def marked(before: str, after: str, *, shows_gone: bool = True) -> str:
    """`after`, with what it has and `before` has not marked.

    Texts are compared word by word; of scripts that put no spaces between words, letter by letter. Texts that
    are the same come back as they are.

    Args:
        before, after: The two texts.
        shows_gone: Whether words that only `before` has are there too, struck out.
    """
    if before == after:
        return after
    ours, theirs = _tokens(before), _tokens(after)
    matcher = SequenceMatcher(None, [t.strip() for t in ours], [t.strip() for t in theirs], autojunk=False)
    parts: list[Part] = []
    for kind, i1, i2, j1, j2 in matcher.get_opcodes():
        if kind == "equal":
            parts.append(Part("=", "".join(theirs[j1:j2])))
            continue
        if shows_gone and i1 < i2:
            parts.append(Part("-", "".join(ours[i1:i2])))
        if j1 < j2:
            parts.append(Part("+", "".join(theirs[j1:j2])))
    return Marked(_spaced(_merged(parts)), after)


def marked_pair(a: str, b: str) -> tuple[str, str]:
    """Two texts beside each other: what only the first one has is gone, what only the second has is new."""
    if a == b:
        return a, b
    turned = marked(b, a, shows_gone=False)
    parts = turned.parts if isinstance(turned, Marked) else ()
    gone = Marked((Part("-" if part.sign == "+" else "=", part.text) for part in parts), a)
    return gone, marked(a, b, shows_gone=False)


def _tokens(text: str) -> list[str]:
    """Words with the space behind them; letters of unspaced scripts one by one."""
    found: list[str] = []
    for word in re.findall(r"\S+\s*|^\s+", text):
        for is_single, chars in groupby(word, key=is_unspaced):
            run = list(chars)
            found += run if is_single else ["".join(run)]
    return found


def _merged(parts: Sequence[Part]) -> list[Part]:
    return [
        Part(sign, "".join(part.text for part in group))
        for sign, group in groupby(parts, key=lambda part: part.sign)
    ]


def _spaced(parts: Sequence[Part]) -> list[Part]:
    """Words that went, with the spaces around them that the other text has not."""
    found: list[Part] = []
    for at, part in enumerate(parts):
        if part.sign != "-":
            found.append(part)
            continue
        before = found[-1].text if found else ""
        after = parts[at + 1].text if at + 1 < len(parts) else ""
        lead = " " if _touch(before, part.text) else ""
        tail = " " if _touch(part.text, after) else ""
        if part.text.strip():
            found.append(Part("-", f"{lead}{part.text}{tail}"))
    return found


def _touch(left: str, right: str) -> bool:
    """Whether two texts need a space between them."""
    if not left or not right or left[-1].isspace() or right[0].isspace():
        return False
    return not (is_unspaced(left[-1]) and is_unspaced(right[0]))
