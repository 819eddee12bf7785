"""Is a title true to its message: nothing invented, nothing said twice, the right script.

Pure functions for choosing between candidates: `check` names what is wrong with a title, the next
candidate is tried. They flag what can be seen without understanding, so a false name at the start of a
title, or a wrong claim in ordinary words, gets through.
"""

import itertools
import re
import unicodedata
from collections.abc import Iterator

from tinykit import wordlists
from tinykit.reasons import Reason
from tinykit.scripts import CASELESS, count_scripts, is_unspaced

_WINDOW = 16_384
_TITLE = 400  # characters of a title that are looked at
_TOKEN = re.compile(r"[^\W_](?:[\w.,+#'’/:@-]*[\w+#])?")
_WORD = re.compile(r"[^\W_]+")
_CASELESS = re.compile(f"[{CASELESS}]+")
_PART = re.compile(r"[^\W\d_]+|\d+")
_NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")
_AMOUNT = re.compile(
    r"v?(\d+(?:[.,:]\d+)*)(?:(k|m)|st|nd|rd|th|x|s|e|er|º|ª|gb|mb|kb|ms|cm|mm|km|kg|g|h|min|yo|日|月|年)?"
)
_COMPOUND = re.compile(r"[-/:@]|(?<!\d),|,(?!\d)|(?<!\b0)(?<=\d)[x×](?=\d)")
_SUPERSCRIPTS = str.maketrans("", "", "²³¹⁰⁴⁵⁶⁷⁸⁹")
_GROUPED = re.compile(r"(?<=\d)[ ,.'’\u00a0\u202f](?=\d{3}(?!\d))")
_GERMAN = re.compile(r"\b(?:der|die|und|nicht|ich|mit|ein|eine|einen|ist|für|auf|den|das|zu|im|nach)\b")

_NUMBER_OF_WORD = {word: number for number, words in wordlists.NUMBER_WORDS.items() for word in words.split()}


def check(title: str, source: str) -> tuple[Reason, ...]:
    """What speaks against a title of this message; empty if nothing does."""
    found = []
    if has_wrong_script(title, source):
        found.append(Reason.WRONG_SCRIPT)
    if invented(title, source):
        found.append(Reason.INVENTED)
    if is_unrelated(title, source):
        found.append(Reason.UNRELATED)
    if repeated(title):
        found.append(Reason.REPEATED)
    return tuple(found)


def invented(title: str, source: str) -> tuple[str, ...]:
    """Numbers, versions, identifiers and names of a title that are nowhere in its message.

    A number counts as known if its digits or its word are in the message. An identifier (a word with a
    digit, an underscore, a dot or a capital inside) and a name (a capitalized word that does not begin a
    sentence-case title, or a word in capitals) count as known if the message has them in any case, with
    other endings, as initials, as a word that implies them, or if they are names that anyone may use.
    Compounds are judged part by part. Names are not judged in title case and in German, where capitals
    say nothing.
    """
    message = _Message(source)
    return tuple(word for word in _specifics(title, message.is_german) if not message.knows(word))


def is_unrelated(title: str, source: str) -> bool:
    """Whether a title shares no word with its message, be it only the beginning of one."""
    text = _normal(_window(source))
    plain, known = _plain(text), set(_WORD.findall(text))
    words = [word for word in _WORD.findall(_normal(title[:_TITLE])) if word not in wordlists.SMALL_WORDS]
    if any(map(is_unspaced, title[:_TITLE])):
        words = _pairs(_plain(title[:_TITLE]))
        known |= set(_pairs(plain))
    return bool(plain and words) and not any(w in known or (len(w) > 3 and w[:4] in plain) for w in words)


def repeated(title: str) -> tuple[str, ...]:
    """Words that a title says twice running, or in pairs twice, or three times."""
    words = [_plain(word) for word in title[:_TITLE].split()]
    words = [word for word in words if word]
    pairs = list(itertools.pairwise(words))
    found = {first for first, second in pairs if first == second and first.isalpha()}
    found |= {" ".join(pair) for pair in pairs if pairs.count(pair) > 1}
    found |= {word for word in words if len(word) > 3 and words.count(word) > 2}
    found |= set(re.findall(r"([^\W\d_]{3,8}?)\1\1", title[:_TITLE]))
    return tuple(sorted(found))


def has_wrong_script(title: str, source: str) -> bool:
    """Whether a title is written in a script that its message does not call for.

    Either it has letters of a script that is not in the message (Latin excepted, and single Greek letters,
    which are signs), or the message is mostly in one script, the title has none of it, and says something
    that the message does not.
    """
    ours, theirs = count_scripts(title[:_TITLE]), count_scripts(_window(source))
    total = theirs.total()
    if not total or not ours:
        return False
    foreign = {script for script in ours if script not in theirs} - {"LATIN"}
    if ours["GREEK"] <= 2:
        foreign.discard("GREEK")
    if "KANA" in theirs:
        foreign.discard("HAN")
    if foreign:
        return True
    main, _ = theirs.most_common(1)[0]
    family = {"HAN", "KANA"} if main in {"HAN", "KANA"} else {main}
    share = sum(theirs[script] for script in family) / total
    # a message in Latin letters may be a log with a question in another script
    if main == "LATIN" or share <= 0.6 or family & ours.keys():
        return False
    known = _plain(_window(source))
    return not all(_plain(word) in known for word in title[:_TITLE].split())


class _Message:
    """A message's words and numbers, in the forms that a title may take them up."""

    def __init__(self, source: str) -> None:
        text = _normal(_window(source))
        self.is_german = len(set(_GERMAN.findall(text))) >= 2
        self._text = text
        self._squashed = _plain(text)
        split = _CASELESS.sub(" ", _normal(_window(source).translate(_SUPERSCRIPTS)))
        words = _WORD.findall(text) + _WORD.findall(split)
        parts = [part for word in words for part in _PART.findall(word)]
        self._words = {form for word in words + parts for form in (word, word.rstrip("s"))}
        numbers = {_trim(number) for number in _numbers(text)} | {part for part in parts if part.isdigit()}
        self._numbers = numbers | {part for number in numbers for part in number.split(".")}
        self._numbers |= {_NUMBER_OF_WORD[word] for word in words if word in _NUMBER_OF_WORD}
        self._initials = "".join(word[0] for word in words)

    def knows(self, word: str) -> bool:
        """Whether a number, identifier or name of a title stands in the message, or may be inferred."""
        text = _normal(word)
        plain = _plain(text)
        if (
            (len(plain) < 2 and not plain.isdigit())
            or {text, plain} & wordlists.COMMON_NAMES
            or plain in self._words
        ):
            return True
        if len(text) > 2 and re.search(rf"(?<![^\W_]){re.escape(text)}(?![^\W_])", self._text):
            return True
        if amount := _AMOUNT.fullmatch(text):
            return self._knows_number(amount[1], amount[2] or "")
        if any(plain in alias and self._words & alias for alias in wordlists.RELATED_NAMES):
            return True
        if len(plain) <= 3:
            return len(plain) == 3 and (plain in self._initials or plain in self._squashed)
        # endings differ (Postgres, PostgreSQL; Бабушка, бабушке), so the stem is enough
        stem = plain if any(char.isdigit() for char in plain) else plain[: max(4, len(plain) - 3)]
        if stem in self._squashed or (len(plain) < 6 and plain in self._initials):
            return True
        parts = [part for part in re.split(r"[._]", text) if part]
        return len(parts) > 1 and all(self.knows(part) for part in parts)

    def _knows_number(self, digits: str, unit: str) -> bool:
        if _trim(digits) in self._numbers or re.search(rf"(?<!\d){re.escape(digits)}(?!\d)", self._text):
            return True
        zeros = {"k": "000", "m": "000000"}.get(unit, "")
        return bool(zeros) and "." not in digits and digits + zeros in self._numbers


def _specifics(title: str, is_german: bool) -> Iterator[str]:
    """Words of a title that claim a fact: numbers, identifiers and, where capitals say so, names."""
    text = _CASELESS.sub(" ", unicodedata.normalize("NFKC", title[:_TITLE].translate(_SUPERSCRIPTS)))
    tokens = [re.sub(r"['’]\w{0,4}$", "", token) for token in _TOKEN.findall(text)]
    later = [token for token in tokens[1:] if len(token) > 3 and token[0].isalpha()]
    is_title_case = len(later) >= 2 and sum(token[0].isupper() for token in later) > 0.6 * len(later)
    for position, token in enumerate(tokens):
        parts = [token] if _normal(token) in wordlists.COMMON_NAMES else _COMPOUND.split(token)
        for word in parts:
            is_name = position > 0 and word[:1].isupper() and not (is_title_case or is_german)
            if (len(word) > 1 and is_name) or _is_identifier(word):
                yield word


def _is_identifier(word: str) -> bool:
    letters = [char for char in word if char.isalpha()]
    has_inner_capital = any(char.isupper() for char in word[1:]) and any(char.islower() for char in word)
    is_acronym = len(letters) > 1 and all(char.isupper() for char in letters)
    is_dotted = "." in word.strip(".") and len(letters) > 2
    has_digit = any(char.isdigit() for char in word)
    return has_digit or "_" in word or has_inner_capital or is_acronym or is_dotted


def _numbers(text: str) -> list[str]:
    return _NUMBER.findall(_GROUPED.sub("", text)) + _NUMBER.findall(text)


def _trim(number: str) -> str:
    """One spelling for one number: no separators between thousands, no zeros around it."""
    whole = re.sub(r"[.,]0+$", "", _GROUPED.sub("", number)).replace(",", ".")
    return whole.lstrip("0") or "0"


def _normal(text: str) -> str:
    """NFKC, case-folded, digits of any script as ASCII."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    if folded.isascii():
        return folded
    return "".join(str(unicodedata.decimal(char)) if char.isdecimal() else char for char in folded)


def _pairs(text: str) -> list[str]:
    return [text[at : at + 2] for at in range(len(text) - 1)]


def _plain(text: str) -> str:
    """Letters and digits only, normal."""
    return "".join(char for char in _normal(text) if char.isalnum())


def _window(text: str) -> str:
    return text if len(text) <= 2 * _WINDOW else f"{text[:_WINDOW]} {text[-_WINDOW:]}"
