"""Titles as a set: can they be told apart, and does each lead back to its own conversation?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tinykit.lab.datasets import Case
from tinykit.lab.overlap import fold

_ORDERS = (3, 4)
_WINDOW = 4000  # characters at either end of a message
_Floats = npt.NDArray[np.float64]


def distinct(cases: Sequence[Case], titles: Sequence[str | None]) -> list[float | None]:
    """Whether no other case has the same title."""
    counts = Counter(" ".join(fold(title).split()) for title in titles if title)
    return [float(counts[" ".join(fold(title).split())] == 1) if title else None for title in titles]


def nearest(cases: Sequence[Case], titles: Sequence[str | None]) -> list[float | None]:
    """How much a title looks like the one of all others that is nearest to it, from 0 to 1."""
    present = [at for at, title in enumerate(titles) if title]
    found: list[float | None] = [None] * len(titles)
    if len(present) < 2:
        return found
    index = Index([titles[at] or "" for at in present])
    for place, at in enumerate(present):
        likeness = index.likeness(titles[at] or "")
        likeness[place] = -1.0
        found[at] = float(max(0.0, likeness.max()))
    return found


def find_it(cases: Sequence[Case], titles: Sequence[str | None]) -> list[float | None]:
    """Whether a title picks its own message out of those of all cases; a tie counts as its share.

    Messages are compared by their runs of three and four characters, rare ones counting more. No reference
    is needed. It depends on how many cases there are and how alike, and words that are copied find their
    message best: compare variants on the same cases, and look at `copy_ratio` too.
    """
    wanting = [at for at, case in enumerate(cases) if not case.expect_none]
    found: list[float | None] = [None] * len(titles)
    if len(wanting) < 2:
        return found
    index = Index([_ends(cases[at].message) for at in wanting])
    for place, at in enumerate(wanting):
        title = titles[at]
        found[at] = _share(index.likeness(title), place) if title else 0.0
    return found


def _share(likeness: _Floats, place: int) -> float:
    best = likeness.max()
    if best <= 0 or likeness[place] < best - 1e-12:
        return 0.0
    return 1.0 / int((likeness >= best - 1e-12).sum())


class Index:
    """Texts by their character n-grams, weighted by TF-IDF, with unit length."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._size = len(texts)
        counts = [_grams(text) for text in texts]
        seen = Counter(gram for count in counts for gram in count)
        self._weight = {gram: 1 + np.log((1 + self._size) / (1 + n)) for gram, n in seen.items()}
        places: dict[str, list[int]] = defaultdict(list)
        values: dict[str, list[float]] = defaultdict(list)
        for place, count in enumerate(counts):
            weights = self._weights(count)
            length = np.sqrt(sum(value**2 for value in weights.values())) or 1.0
            for gram, value in weights.items():
                places[gram].append(place)
                values[gram].append(value / length)
        self._postings = {gram: (np.array(places[gram]), np.array(values[gram])) for gram in places}

    def likeness(self, text: str) -> _Floats:
        """Cosine of a text with each of the index, shape (texts,)."""
        found = np.zeros(self._size)
        weights = self._weights(_grams(text))
        length = np.sqrt(sum(value**2 for value in weights.values())) or 1.0
        for gram, value in weights.items():
            places, values = self._postings[gram]
            found[places] += values * (value / length)
        return found

    def _weights(self, count: Counter[str]) -> dict[str, float]:
        known = ((gram, n) for gram, n in count.items() if gram in self._weight)
        return {gram: (1 + np.log(n)) * self._weight[gram] for gram, n in known}


def _grams(text: str) -> Counter[str]:
    padded = f" {' '.join(fold(text).split())} "
    return Counter(padded[at : at + order] for order in _ORDERS for at in range(len(padded) - order + 1))


def _ends(message: str) -> str:
    return message if len(message) <= 2 * _WINDOW else f"{message[:_WINDOW]} {message[-_WINDOW:]}"
