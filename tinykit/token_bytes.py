"""What each token of a vocabulary adds to a text, as bytes: a token may hold half a character."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))


def byte_level(texts: Sequence[str]) -> list[bytes]:
    """Of GPT-2's kind, where each letter of a token stands for one byte.

    The alphabet: https://github.com/openai/gpt-2/blob/master/src/encoder.py (bytes_to_unicode).
    """
    others = (byte for byte in range(256) if byte not in _PRINTABLE)
    alphabet = dict.fromkeys(_PRINTABLE) | {256 + n: byte for n, byte in enumerate(others)}
    table = {letter: letter if byte is None else byte for letter, byte in alphabet.items()}
    whole = "".join(texts).translate(table).encode("latin-1", "replace")  # one byte per letter
    ends = itertools.accumulate(map(len, texts))
    return [whole[end - len(text) : end] for text, end in zip(texts, ends, strict=True)]


def sentencepiece(texts: Sequence[str]) -> list[bytes]:
    """Of SentencePiece's kind: ``▁`` is a space, and ``<0x0A>`` a byte."""
    return [
        bytes.fromhex(found[1]) if (found := _BYTE.fullmatch(text)) else text.replace("▁", " ").encode()
        for text in texts
    ]
