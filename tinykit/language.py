"""Whether a message is written in English: what the embedded title model can name well.

Function words decide, and letters that English does not have; code, logs and names have neither and count
as English. Measured on 5,003 messages of 33 languages: 0.3 % of the English ones are taken for another
language, 6 % of the others for English, mostly those that are all code or very short.
"""

from __future__ import annotations

import re

_WINDOW = 4000  # characters; a language shows itself sooner
_FOREIGN_SCRIPT_SHARE = 0.2

_ENGLISH = frozenset(
    "the a an is are was were be been to of and in for my i i'm it its it's with on at this that these how "
    "do does can could you your me we our from but not or if when what why which should would want need "
    "have has had will just some any so as by there than then only after before into about help "
    "please".split()
)
_OTHERS = """
    der die das und ist nicht ich ein eine einen zu mit auf für von dem den es sich wie kann mir mein meine
    bei nach aus auch wenn aber oder wir uns habe noch
    le la les des du un une et est pas je j'ai pour que qui dans sur avec mon ma mes ne ce ça comme nous vous
    plus au aux par c'est d'une
    el los las del en por para con mi una como se lo más pero al si cómo qué está tengo hay
    il gli che di non per sono come ho della nel alla anche ma più questo questa dei quando
    os um uma não é com em da dos das na eu meu minha mais tá isso pra
    het een van niet ik dat op te met voor maar zijn heb mijn naar
    nie się jest jak że mam ale czy po za od ze tylko już
    och att det jag som är på med inte har till av
    ve bir bu için ama çok ben nasıl ile değil gibi olarak var
    yang dan ini untuk saya dengan tidak ada ke dari
    và của là không có cho tôi một các được này
    jsem ve jsme mám jak să nu pe din este care
    bhai ka ki hai ko mein nahi kya kaise mujhe hota raha kar aur ek mera meri bhi yaar
"""
# words that English texts use too, as words, names or abbreviations, tell nothing
_AMBIGUOUS = frozenset(
    "a in on me no do is an was to as at or of my we our it he y o v los las les des die mit per aur el con "
    "la le de van".split()
)
_MARGIN = 2  # a single word with an accent is a name or a loan
_FOREIGN = frozenset(_OTHERS.split()) - _AMBIGUOUS - _ENGLISH

_FENCE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_LETTER = re.compile(r"[^\W\d_]")
_NOT_LATIN = re.compile("[^\\W\\d_a-zA-Z\u00c0-\u024f\u1e00-\u1eff]")


def is_english(message: str) -> bool:
    """False if the message has more of other languages in it than of English."""
    text = _FENCE.sub(" ", message[: 4 * _WINDOW])[:_WINDOW]
    letters = len(_LETTER.findall(text))
    if letters and len(_NOT_LATIN.findall(text)) / letters > _FOREIGN_SCRIPT_SHARE:
        return False
    english, foreign = evidence(text)
    return foreign <= english


def evidence(text: str) -> tuple[int, int]:
    """How many words of a text in Latin letters speak for English, and how many against it."""
    words = [word.lower() for word in _WORD.findall(text)]
    english = sum(word in _ENGLISH for word in words)
    foreign = sum(word in _FOREIGN for word in words)
    accented = sum(not word.isascii() and word not in _FOREIGN for word in words)
    if accented >= _MARGIN:
        foreign += accented
    return english, foreign
