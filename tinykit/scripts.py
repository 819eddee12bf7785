"""Writing systems: which script a letter belongs to, and how long a text is in words.

Python has no script property, but the first word of a letter's Unicode name says it. Chinese, Japanese
and Thai write no spaces, so a limit in words would never fire there: their letters count as a fraction.
"""

import functools
import math
import unicodedata
from collections import Counter
from collections.abc import Iterable

# Letters without capitals that stand next to Latin words without a space, as the inside of a character
# class: Thai, Lao, Myanmar, Khmer, Hangul, kana, Han.
CASELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
_FAMILIES = {"CJK": "HAN", "IDEOGRAPHIC": "HAN", "HIRAGANA": "KANA", "KATAKANA": "KANA"}
_LETTERS_PER_WORD = {"HAN": 2.5, "KANA": 2.5, "THAI": 5.0, "LAO": 5.0, "KHMER": 5.0, "MYANMAR": 5.0}


@functools.lru_cache(maxsize=8192)
def script_of(char: str) -> str | None:
    """Script of a letter in capitals ("LATIN", "HAN", "KANA", "ARABIC"); None for other characters."""
    if not char.isalpha():
        return None
    if char.isascii():
        return "LATIN"
    names = (
        unicodedata.name(char, "")
        .removeprefix("FULLWIDTH ")
        .removeprefix("HALFWIDTH ")
        .replace("-", " ")
        .split()
    )
    # MICRO SIGN, SUPERSCRIPT and MATHEMATICAL letters are symbols that belong to no language
    if not names or names[0] in {"MICRO", "MATHEMATICAL", "SUPERSCRIPT", "MODIFIER", "FEMININE", "MASCULINE"}:
        return None
    return _FAMILIES.get(names[0], names[0])


def count_scripts(text: Iterable[str]) -> Counter[str]:
    """How many letters of each script a text holds."""
    return Counter(script for script in map(script_of, text) if script)


def is_unspaced(char: str) -> bool:
    """Whether a letter belongs to a script that puts no spaces between words."""
    return script_of(char) in _LETTERS_PER_WORD


def count_words(text: str) -> int:
    """Length of a text in words; letters of unspaced scripts count as a fraction of one, rounded up."""
    spaced: list[str] = []
    weight = 0.0
    for char in text:
        per_word = _LETTERS_PER_WORD.get(script_of(char) or "")
        spaced.append(" " if per_word else char)
        weight += 1 / per_word if per_word else 0.0
    # rounded first, or ten times 1/2.5 is a hair more than four
    words = [word for word in "".join(spaced).split() if any(char.isalnum() for char in word)]
    return len(words) + math.ceil(round(weight, 6))
