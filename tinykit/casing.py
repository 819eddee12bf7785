"""Spelling a title's words as the message spells them: OAuth, GRPC, mysqldump."""

import itertools
import re
from collections.abc import Iterator

from tinykit.scripts import CASELESS
from tinykit.wordlists import ACRONYMS, SMALL_FIRST_NAMES

_RUN = re.compile(rf"[^\W_{CASELESS}]+")
_WINDOW = 131_072


def match_casing(title: str, source: str) -> str:
    """The title with each word in the message's spelling, as far as capitals go.

    For each run of letters and digits the first rule that fits: it stands in the message as it is, so it
    stays; the message has it with a capital inside, so that spelling is taken; the message has it as an
    acronym and is not shouting, so a capitalized word gets its capitals back; it begins small and has a
    capital inside that neither the message nor the world knows (iOS), so it becomes small; it stays.
    """
    words = list(_runs(source))
    verbatim = set(words)
    mixed: dict[str, str] = {}
    for word in words:
        if _has_inner_capital(word):
            mixed.setdefault(word.casefold(), word)
    acronyms = set() if _is_shouting(words) else {word for word in verbatim if _is_acronym(word)}

    def respell(match: re.Match[str]) -> str:
        word = match[0]
        if word in verbatim:
            return word
        if spelling := mixed.get(word.casefold()):
            return spelling
        if _is_capitalized(word) and word.upper() in acronyms:
            return word.upper()
        if word[0].islower() and any(map(str.isupper, word)) and word not in SMALL_FIRST_NAMES:
            return word.lower()
        return word

    return _RUN.sub(respell, title)


def _runs(source: str) -> Iterator[str]:
    text = source if len(source) <= 2 * _WINDOW else f"{source[:_WINDOW]} {source[-_WINDOW:]}"
    return (match[0] for match in _RUN.finditer(text))


def _has_inner_capital(word: str) -> bool:
    return any(char.isupper() for char in word[1:]) and any(char.islower() for char in word)


def _is_capitalized(word: str) -> bool:
    # "S3" is written alike as a capitalized word and as an acronym, so it needs a small letter
    return word[0].isupper() and any(map(str.islower, word[1:])) and not any(map(str.isupper, word[1:]))


def _is_all_capitals(word: str) -> bool:
    letters = [char for char in word if char.isalpha()]
    return len(letters) > 1 and all(map(str.isupper, letters))


def _is_acronym(word: str) -> bool:
    """Two or more letters, all capitals, and known, or with a digit, or without a vowel."""
    has_digit, has_vowel = any(map(str.isdigit, word)), any(char in "AEIOU" for char in word)
    return _is_all_capitals(word) and (word in ACRONYMS or has_digit or not has_vowel)


def _is_shouting(words: list[str]) -> bool:
    capitals = [_is_all_capitals(word) for word in words]
    return any(first and second for first, second in itertools.pairwise(capitals))
