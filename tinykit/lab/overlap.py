"""How much two texts share: chrF, ROUGE-L, longest common runs. For every script, without a library."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tinykit.lab.datasets import Case
from tinykit.scripts import is_unspaced
from tinykit.wordlists import SMALL_WORDS

_ORDERS = 6
_BETA_SQUARED = 4.0  # recall counts twice as much as precision
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_WINDOW = 20_000  # characters of a message; more would take long and change nothing


def chrf(case: Case, title: str | None) -> float | None:
    """chrF against the best reference; no title counts 0.

    Popović, "chrF: character n-gram F-score for automatic MT evaluation", WMT 2015; the same numbers as
    sacrebleu's with its defaults.
    """
    if case.expect_none or not case.references:
        return None
    return max(chrf_of(title or "", reference) for reference in case.references) if title else 0.0


def chrf_of(text: str, reference: str) -> float:
    """chrF of a text, from 0 to 1; n-grams of one to six characters, spaces left out."""
    ours, theirs = "".join(text.split()), "".join(reference.split())
    precisions, recalls = [], []
    for order in range(1, _ORDERS + 1):
        found, wanted = _grams(ours, order), _grams(theirs, order)
        if found and wanted:
            matches = (found & wanted).total()
            precisions.append(matches / found.total())
            recalls.append(matches / wanted.total())
    if not precisions:
        return 0.0
    precision, recall = sum(precisions) / len(precisions), sum(recalls) / len(recalls)
    divisor = _BETA_SQUARED * precision + recall
    return (1 + _BETA_SQUARED) * precision * recall / divisor if divisor else 0.0


def _grams(text: str, order: int) -> Counter[str]:
    return Counter(text[at : at + order] for at in range(len(text) - order + 1))


def rouge_l(case: Case, title: str | None) -> float | None:
    """ROUGE-L (F1 of the longest common subsequence of words) against the best reference.

    Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004. Words of every script count; letters
    of scripts without spaces are words of their own.
    """
    if case.expect_none or not case.references:
        return None
    ours = tokens(title or "")
    return max(_rouge_l(ours, tokens(reference)) for reference in case.references)


def _rouge_l(ours: Sequence[str], theirs: Sequence[str]) -> float:
    common = _common_subsequence(ours, theirs)
    return 2 * common / (len(ours) + len(theirs)) if common else 0.0


def _common_subsequence(ours: Sequence[str], theirs: Sequence[str]) -> int:
    row = [0] * (len(theirs) + 1)
    for one in ours:
        before = 0
        for at, other in enumerate(theirs, start=1):
            before, row[at] = row[at], before + 1 if one == other else max(row[at], row[at - 1])
    return row[-1]


def copy_ratio(case: Case, title: str | None) -> float | None:
    """Share of the title that stands in the message as one run of words."""
    words = tokens(title or "")
    return longest_run(words, tokens(case.message[:_WINDOW])) / len(words) if words else None


def longest_run(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """Words of the longest run that two texts have in common."""
    best = 0
    row = [0] * (len(theirs) + 1)
    for one in ours:
        before = 0
        for at, other in enumerate(theirs, start=1):
            before, row[at] = row[at], before + 1 if one == other else 0
            best = max(best, row[at])
    return best


def novel_words(case: Case, title: str | None) -> float | None:
    """Share of the title's content words that the message does not have, in any form; a hint, no verdict."""
    words = [word for word in tokens(title or "") if word not in SMALL_WORDS]
    if not words:
        return None
    text = fold(case.message)
    return sum(_stem(word) not in text for word in words) / len(words)


def _stem(word: str) -> str:
    """The beginning that other forms of a word share."""
    return word[: max(4, len(word) - 3)]


def copies_prompt(case: Case, row: Any, recipe: Any) -> float | None:
    """Whether a title is, wholly or in the main, an example of the prompt and not of the message."""
    examples = [
        tokens(example) for example in prompt_examples((recipe.system, recipe.template, recipe.prefill))
    ]
    words = tokens(row.title or "")
    if not words or not examples:
        return None
    message = tokens(case.message[:_WINDOW])
    for example in examples:
        run = longest_run(words, example)
        if run >= max(2, 0.8 * len(words)) and run > longest_run(words, message):
            return 1.0
        if words == example and longest_run(words, message) < len(words):
            return 1.0
    return 0.0


_EXAMPLES = re.compile(
    r"<title>\s*([^<\n]{2,120}?)\s*</title>"
    r"|\"([^\"\n]{2,120})\"|“([^”\n]{2,120})”|«([^»\n]{2,120})»|‘([^’\n]{2,120})’"
    r"|^[ \t]*(?:title|titel|titre|título|ответ|output|answer|->|→|[-*•])[ \t]*:?[ \t]*(\S[^\n]{1,120})$",
    re.IGNORECASE | re.MULTILINE,
)


def prompt_examples(texts: Iterable[str]) -> list[str]:
    """What a prompt gives as examples of titles: quoted, in title tags, or after a label or a bullet."""
    found = [
        next(filter(None, match.groups())).strip() for text in texts for match in _EXAMPLES.finditer(text)
    ]
    return list(dict.fromkeys(example for example in found if "{message}" not in example))


def tokens(text: str) -> list[str]:
    """Words of a text, folded; each letter of a script without spaces is one."""
    found: list[str] = []
    for word in _WORD.findall(fold(text)):
        start = 0
        for at, char in enumerate(word):
            if is_unspaced(char):
                if start < at:
                    found.append(word[start:at])
                found.append(char)
                start = at + 1
        if start < len(word):
            found.append(word[start:])
    return found


def fold(text: str) -> str:
    """NFKC and case-folded, as both sides of a comparison are."""
    return unicodedata.normalize("NFKC", text).casefold()
