"""What each token of a vocabulary adds to a text, as bytes: a token may hold half a character."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LETTERS = 512  # more than the alphabet has
_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))


def byte_level(texts: Sequence[str]) -> list[bytes]:
    """Of GPT-2's kind, where each letter of a token stands for one byte.

    The alphabet: https://github.com/openai/gpt-2/blob/master/src/encoder.py (bytes_to_unicode).
    """
    import numpy as np

    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    table = np.full(_LETTERS, ord("?"), np.uint8)  # of letters outside of the alphabet
    table[:256] = range(256)
    table[256 : 256 + len(others)] = others
    letters = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    whole = table[np.minimum(letters, _LETTERS - 1)].tobytes()  # one byte per letter
    ends = itertools.accumulate(map(len, texts))
    return [whole[end - len(text) : end] for text, end in zip(texts, ends, strict=True)]


def sentencepiece(texts: Sequence[str]) -> list[bytes]:
    """Of SentencePiece's kind: ``▁`` is a space, and ``<0x0A>`` a byte."""
    return [
        bytes.fromhex(found[1]) if (found := _BYTE.fullmatch(text)) else text.replace("▁", " ").encode()
        for text in texts
    ]
