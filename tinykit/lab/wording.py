"""Length, script and language of titles."""

from __future__ import annotations

import unicodedata

from tinykit import checks
from tinykit.lab.datasets import Case
from tinykit.language import evidence, is_english
from tinykit.scripts import count_scripts, count_words


def words(case: Case, title: str | None) -> float | None:
    """Words of the title; letters of Chinese, Japanese, Thai and the like count as a fraction of one."""
    return float(count_words(title)) if title else None


def characters(case: Case, title: str | None) -> float | None:
    """Characters of the title as a reader counts them: marks belong to the letter before."""
    if not title:
        return None
    return float(sum(not unicodedata.category(char).startswith(("M", "C")) for char in title))


def script_match(case: Case, title: str | None) -> float | None:
    """Whether the title is written in a script that its message calls for."""
    if not title or not count_scripts(title):
        return None
    return float(not checks.has_wrong_script(title, case.message))


def language_match(case: Case, title: str | None) -> float | None:
    """Whether title and message are both English or both not; None for titles that do not show it.

    Of titles in Latin letters only small words tell the language, and most titles have none; of others the
    script does. Two languages that are both not English are not told apart.
    """
    if not title:
        return None
    wanted = case.language.split("-")[0] == "en" if case.language else is_english(case.message)
    scripts = count_scripts(title)
    if scripts and scripts["LATIN"] * 2 < scripts.total():
        return float(not wanted)
    english, foreign = evidence(title)
    return None if english == foreign else float((english > foreign) == wanted)
