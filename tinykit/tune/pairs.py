"""Pairs of message and title to train on: read from what users have, and checked before any work is done."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinykit.errors import OptionError
from tinykit.plurals import counted
from tinykit.recipes import Recipe
from tinykit.rows import read_rows
from tinykit.scripts import count_words
from tinykit.tune.exports import first_exchange, is_chat

MIN_PAIRS = 20
_MIN_HELD_OUT, _MAX_HELD_OUT = 4, 200
_SHOWN_ROWS = 5


@dataclass(frozen=True)
class Pair:
    """A message and the title it should get; None if it should get none.

    Attributes:
        message: The message as its author wrote it.
        title: Its title.
        language: BCP-47 tag, for scores by language.
        category: Kind of message, for scores by category.
        row: Where it came from, counted from 1.
    """

    message: str
    title: str | None
    language: str = ""
    category: str = ""
    row: int = 0


@dataclass(frozen=True)
class PairSet:
    """Checked pairs, and how many rows were left out for which reason."""

    pairs: tuple[Pair, ...]
    left_out: Mapping[str, int]


def read_pairs(cases: Any) -> list[Pair]:
    """Pairs from a list, a DataFrame or a file; only their form is checked.

    Args:
        cases: ``(message, title)``, ``{"message", "title"}``, `Pair`s or chats of an export in a list; a
            DataFrame of pandas or polars with the columns `message` and `title`; the path of a JSONL, CSV
            or JSON file with the same. The title None (null; an empty cell) says that no title is right.
            Of a chat the first user message counts; chats without a title of their own are left out.

    Raises:
        OptionError: something in it is no pair; the message names the row.
    """
    return [pair for pair in _pairs(read_rows(cases, columns=("message", "title"))) if pair is not None]


def checked_pairs(cases: Any, recipe: Recipe) -> PairSet:
    """Pairs that this recipe can be trained on, each message once.

    Raises:
        OptionError: rows that are no pair, empty messages, titles that the recipe would reject, or fewer
            than 20 pairs.
    """
    found = _pairs(read_rows(cases, columns=("message", "title")))
    pairs = [pair for pair in found if pair is not None]
    _check(pairs, recipe)
    unique: dict[str, Pair] = {}
    for pair in pairs:
        unique.setdefault(" ".join(pair.message.casefold().split()), pair)
    kept = tuple(unique.values())
    if len(kept) < MIN_PAIRS:
        raise OptionError(
            f"{len(kept)} different pairs are too few to train on; at least {MIN_PAIRS} are needed.",
            hint="Some hundred make a difference, some thousand a good model.",
            name="cases",
            value=len(kept),
        )
    left_out = {"duplicates": len(pairs) - len(kept), "chats without a title": len(found) - len(pairs)}
    return PairSet(kept, {reason: count for reason, count in left_out.items() if count})


def _check(pairs: Sequence[Pair], recipe: Recipe) -> None:
    """Raise for rows that nothing, or nothing good, can be learned from."""
    _refuse("no message", [pair for pair in pairs if not pair.message.strip()])
    _refuse(
        "a title that is too long",
        [pair for pair in pairs if _is_too_long(pair, recipe)],
        f"The recipe {recipe.name!r} has at most {recipe.max_words} words, {recipe.max_chars} characters.",
    )
    _refuse(
        "a title that says nothing",
        [pair for pair in pairs if _is_hollow(pair, recipe)],
        "Where no title is right, the title must be None (null in JSON, an empty cell in CSV).",
    )
    if recipe.no_task_answer is None:
        _refuse(
            f"want no title, which the recipe {recipe.name!r} cannot say",
            [pair for pair in pairs if pair.title is None],
            "Give the recipe a no_task_answer, or leave these rows out.",
        )


def split(pairs: Sequence[Pair], share: float) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Pairs to train on, to choose the best state by, and to score; the same message always falls alike.

    `share` of the pairs is kept out of the training, half of it for either purpose; 0 keeps out none.
    """
    if not 0 <= share <= 0.5:
        raise OptionError(f"held_out must be from 0 to 0.5, got {share!r}.", name="held_out", value=share)
    wanted = min(max(round(len(pairs) * share), _MIN_HELD_OUT), _MAX_HELD_OUT) if share else 0
    kept_out = sorted(pairs, key=order)[:wanted]
    rows = {id(pair) for pair in kept_out}
    return [pair for pair in pairs if id(pair) not in rows], kept_out[::2], kept_out[1::2]


def order(pair: Pair) -> int:
    """A number that only the message decides; the pairs with the lowest are kept out of the training."""
    return zlib.crc32(pair.message.encode("utf-8", "replace"))


def _pairs(rows: Iterable[Any]) -> list[Pair | None]:
    return [_pair(row, number) for number, row in enumerate(rows, start=1)]


def _pair(row: Any, number: int) -> Pair | None:
    """A row as a pair; None for a chat that has nothing to learn from."""
    if isinstance(row, Pair):
        return replace(row, row=number)
    if is_chat(row) and "message" not in row:
        found = first_exchange(row)
        return Pair(found[0], " ".join(found[1].split()), row=number) if found else None
    if isinstance(row, Mapping):
        if "message" not in row or "title" not in row:
            raise _no_pair(number, f"has the fields {', '.join(map(str, row))}")
        message, title = row["message"], row["title"]
        labels = {name: str(row.get(name) or "") for name in ("language", "category")}
    elif isinstance(row, Sequence) and not isinstance(row, str | bytes) and len(row) == 2:
        (message, title), labels = row, {}
    else:
        raise _no_pair(number, f"is {str(row)[:60]!r}")
    if not isinstance(message, str):
        raise _no_pair(number, f"has a message that is {type(message).__name__}, not text")
    if title is not None and not isinstance(title, str):
        raise _no_pair(number, f"has a title that is {type(title).__name__}, not text")
    return Pair(message, None if title is None else " ".join(title.split()), row=number, **labels)


def _no_pair(number: int, what: str) -> OptionError:
    return OptionError(
        f"Row {number} {what}; a pair has 'message' and 'title'.",
        hint='For example: {"message": "my login test is flaky", "title": "Flaky login test"}',
        name="cases",
        value=number,
    )


def _refuse(what: str, pairs: Sequence[Pair], hint: str | None = None) -> None:
    if pairs:
        rows = ", ".join(str(pair.row) for pair in pairs[:_SHOWN_ROWS])
        more = ", …" if len(pairs) > _SHOWN_ROWS else ""
        many = f"{counted(len(pairs), 'row')} {'has' if len(pairs) == 1 else 'have'}"
        raise OptionError(f"{many} {what}: {rows}{more}.", hint=hint, name="cases", value=len(pairs))


def _is_too_long(pair: Pair, recipe: Recipe) -> bool:
    title = pair.title or ""
    return len(title) > recipe.max_chars or count_words(title) > recipe.max_words


def _is_hollow(pair: Pair, recipe: Recipe) -> bool:
    """Whether a title is empty, the recipe's word for none, or would end before it is over."""
    title = pair.title
    return title is not None and (
        not title or title == recipe.no_task_answer or any(stop in title for stop in recipe.stop)
    )
