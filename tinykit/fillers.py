"""Words that ask for nothing: greetings, thanks, assent, laughter, tests, keyboard mash.

All lists are compared after `fold`, which drops case, accents, vowel signs and apostrophes, so one
spelling stands for several.
"""

import functools
import re
import unicodedata

from tinykit import wordlists

_LAUGHTER = re.compile(
    r"(?:h[aei]){2,}h?|(?:ja){2,}|(?:ха){2,}|(?:хи){2,}|k{3,}|ᄏ+|ᄒ+|ㅋ+|ㅎ+|ه{3,}|5{3,}|ᄒᄋ|ㅎㅇ"
)
_HOME_ROW_MASH = re.compile(r"(?=\w{5,})[asdfghjkl]*[sdfghjkl]{4,}[asdfghjkl]*")
_APOSTROPHES = str.maketrans("", "", "'’‘ʼ`´")
_RUNS = re.compile(r"(.)\1{2,}")
_WORD = re.compile(r"[^\W_]+")


def fold(text: str) -> str:
    """Text without case, accents, vowel signs and apostrophes, for comparing with the lists."""
    decomposed = unicodedata.normalize("NFKD", text.translate(_APOSTROPHES)).casefold()
    return "".join(char for char in decomposed if unicodedata.category(char)[0] != "M")


def words(text: str) -> list[str]:
    """Runs of letters and digits of a folded text."""
    return _WORD.findall(text)


def is_filler(word: str) -> bool:
    """Whether a folded word asks for nothing: a greeting, thanks, laughter, a number, keyboard mash."""
    return (
        word.isnumeric()
        or word in _filler_words()
        or _RUNS.sub(r"\1", word) in _filler_words()
        or _LAUGHTER.fullmatch(word) is not None
        or _HOME_ROW_MASH.fullmatch(word) is not None
    )


def is_pointer(word: str) -> bool:
    """Whether a folded English word only points at an attachment, as in "what is wrong here"."""
    return word in wordlists.POINTER_WORDS or is_filler(word)


def drop_phrases(text: str) -> str:
    """Folded text with small talk of several words, and of scripts without spaces, replaced by a space."""
    return _phrase_pattern().sub(" ", text)


@functools.cache
def _filler_words() -> frozenset[str]:
    return frozenset(words(fold(wordlists.FILLER_WORDS)))


@functools.cache
def _phrase_pattern() -> re.Pattern[str]:
    phrases = [" ".join(words(fold(phrase))) for phrase in wordlists.SMALL_TALK]
    spaced = sorted({phrase for phrase in phrases if phrase}, key=len, reverse=True)
    unspaced = sorted(set(fold(wordlists.UNSPACED_SMALL_TALK).split()), key=len, reverse=True)
    inner = "|".join(re.escape(phrase).replace(r"\ ", r"\W+") for phrase in spaced)
    return re.compile(rf"(?<!\w)(?:{inner})(?!\w)|" + "|".join(map(re.escape, unspaced)))
