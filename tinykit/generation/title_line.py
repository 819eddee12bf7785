"""A light constraint for titles: one line of bounded length without markup, as masks over the vocabulary.

Needs no grammar library. What each token would do to a title is worked out once per tokenizer, so that a
step costs a few passes of numpy over the vocabulary.
"""

from __future__ import annotations

import numbers
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tinykit.errors import BackendError, OptionError
from tinykit.tokenizer import Tokenizer

Mask = npt.NDArray[np.bool_]

# '#' is allowed after a letter or a digit: C#. The quotes are those that models put around a whole title.
_MARKUP = frozenset('*#`[]<>"“”„«»')


@dataclass(frozen=True)
class TitleLine:
    """One line without markup and with limits.

    Attributes:
        max_words: Words at most, between spaces.
        max_chars: Characters at most, a leading space not counted. The last word may be cut.
        stop: Texts that end the title; they may hold what the title may not.
    """

    max_words: int = 12
    max_chars: int = 80
    stop: tuple[str, ...] = ("</title>",)

    def __post_init__(self) -> None:
        for name in ("max_words", "max_chars"):
            value = getattr(self, name)
            is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
            if not is_whole or not 1 <= value <= 1000:
                raise OptionError(
                    f"{name} must be a whole number from 1 to 1000, not {value!r}.",
                    hint="Leave it out for the default.",
                    name=name,
                    value=value,
                )
        if not isinstance(self.stop, tuple) or not all(isinstance(s, str) and s for s in self.stop):
            raise OptionError(
                f"stop must be a tuple of texts that are not empty, not {self.stop!r}.",
                hint='For example: stop=("</title>",)',
                name="stop",
                value=self.stop,
            )


class TitleTable:
    """What the tokens of one vocabulary would do to a title.

    Args:
        tokenizer: The model's.
        eos_ids: Tokens of which each ends the title.
        vocab_size: Of the model's logits.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: Sequence[int], vocab_size: int) -> None:
        self.tokenizer = tokenizer
        self.vocab_size = vocab_size
        self.eos_ids = sorted({index for index in eos_ids if 0 <= index < vocab_size})
        self.texts = tokenizer.token_bytes()[:vocab_size]
        self.texts += [b""] * (vocab_size - len(self.texts))
        for index in self.eos_ids:
            self.texts[index] = b""
        self.columns = _Columns(self.texts)
        self._openers: dict[tuple[bytes, ...], _Openers] = {}
        self._following: dict[bytes, list[int]] = {}

    def matcher(self, line: TitleLine) -> TitleMatcher:
        """A matcher at the beginning of a title."""
        # a stop string that begins like any text needs no way around the rules
        stops = tuple(stop.encode() for stop in line.stop if stop[0] in _MARKUP or _is_control(stop[0]))
        if stops not in self._openers:
            self._openers[stops] = _Openers(self.texts, stops)
        return TitleMatcher(self, line, self._openers[stops])

    def following(self, rest: bytes) -> list[int]:
        """Tokens with which `rest` may go on: parts of it, and those that begin with all of it."""
        if rest not in self._following:
            same = np.flatnonzero(self.columns.first == rest[0])
            self._following[rest] = [
                int(index)
                for index in same
                if (text := self.texts[index]) and (rest.startswith(text) or text.startswith(rest))
            ]
        return self._following[rest]


@dataclass(frozen=True)
class _State:
    """A title so far; `chars` and `words` without a leading space."""

    chars: int = 0
    words: int = 0
    last: str = ""  # character
    tail: bytes = b""  # of a character that is not whole yet
    rests: tuple[bytes, ...] = ()  # of the stop strings that have begun
    is_over: bool = False

    def after(self, data: bytes) -> _State | None:
        """The title with `data` after it, None if a title cannot hold it."""
        text, tail = _decoded(self.tail + data)
        if text is None:
            return None
        chars, words, last = self.chars - bool(self.tail), self.words, self.last
        for char in text:
            is_hash = char == "#" and last.isalnum()
            if not is_hash and (char in _MARKUP or _is_control(char) or char == last == " "):
                return None
            chars += bool(last) or char != " "
            words += char != " " and last in ("", " ")
            last = char
        return _State(chars + bool(tail), words, last, tail)


class _Columns:
    """What each of some texts adds to a title: plain ASCII by whole arrays, the others one by one."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        ends = np.cumsum(lengths)
        starts = ends - lengths
        data = np.frombuffer(b"".join(texts), np.uint8)
        before = np.concatenate([np.zeros(1, np.uint8), data[:-1]]) if len(data) else data
        is_first = np.zeros(len(data), np.bool_)
        is_first[starts[lengths > 0]] = True
        before = np.where(is_first, 0, before)

        def count(where: Mask) -> npt.NDArray[np.int64]:
            sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(where)])
            return np.asarray(sums[ends] - sums[starts])

        space, is_hash = data == ord(" "), data == ord("#")
        bad = _BAD[data] & ~(is_hash & _ALNUM[before]) | (space & (before == ord(" ")))
        self.first = np.zeros(len(texts), np.uint8)
        self.first[lengths > 0] = data[starts[lengths > 0]]
        self.chars = lengths.astype(np.int16)
        self.inner_words = count(~space & (before == ord(" "))).astype(np.int16)
        self.is_clean = count(bad) == 0
        self.is_hash = (count(bad & ~(is_hash & is_first)) == 0) & (self.first == ord("#"))
        for index in np.flatnonzero(count(data >= 128)):
            self._correct(int(index), texts[int(index)])
        self.begins_space = self.first == ord(" ")

    def _correct(self, index: int, text: bytes) -> None:
        is_hash = text.startswith(b"#")
        # behind a letter, so that what is counted is what it adds there
        after = _State(last="a").after(text)
        self.is_clean[index], self.is_hash[index] = (
            after is not None and not is_hash,
            after is not None and is_hash,
        )
        if after is not None:
            self.chars[index], self.inner_words[index] = after.chars, after.words

    def fitting(self, state: _State, line: TitleLine) -> Mask:
        """Which of the texts may follow."""
        chars, words = self.chars, self.inner_words
        mask: Mask = self.is_clean | self.is_hash if state.last.isalnum() else self.is_clean.copy()
        if state.last in ("", " "):
            words = words + ~self.begins_space
        if state.last == "":
            chars = chars - self.begins_space
        if state.last == " ":
            mask &= ~self.begins_space
        mask &= chars <= line.max_chars - state.chars
        mask &= words <= line.max_words - state.words
        return mask


class _Openers:
    """Tokens in which a stop string begins, perhaps after the end of the title."""

    def __init__(self, texts: Sequence[bytes], stops: tuple[bytes, ...]) -> None:
        begins = re.compile(b"|".join(re.escape(stop[:1]) for stop in stops) or b"(?!)").search
        cuts = ((index, _cut(text, stops)) for index, text in enumerate(texts) if begins(text))
        found = {index: cut for index, cut in cuts if cut is not None}
        self.found = found
        self.ids = np.array(list(found), np.intp)
        heads = [head for head, _, _ in found.values()]
        self.columns = _Columns(heads)
        self.is_bare = np.array([not head for head in heads], np.bool_)


def _cut(text: bytes, stops: tuple[bytes, ...]) -> tuple[bytes, tuple[bytes, ...], bool] | None:
    """What comes before a stop string, what is left of those that begin there, and whether one is whole."""
    for at in range(len(text)):
        part = text[at:]
        is_over = any(part.startswith(stop) for stop in stops)
        rests = tuple(stop[len(part) :] for stop in stops if stop.startswith(part) and stop != part)
        if is_over or rests:
            return text[:at], () if is_over else rests, is_over
    return None


class TitleMatcher:
    """One title on its way."""

    def __init__(self, table: TitleTable, line: TitleLine, openers: _Openers) -> None:
        self._table = table
        self._line = line
        self._openers = openers
        self._states = [_State()]
        self._mask: Mask | None = None

    @property
    def is_finished(self) -> bool:
        """The title is over, or as long as it may be."""
        state = self._states[-1]
        is_full = state.chars >= self._line.max_chars and not state.tail and not state.rests
        return state.is_over or is_full

    def allowed(self) -> Mask:
        """Per token id, shape (vocab_size,): may it come next? Do not write into it."""
        if self._mask is None:
            self._mask = self._compute(self._states[-1])
            self._mask.flags.writeable = False
        return self._mask

    def _compute(self, state: _State) -> Mask:
        table = self._table
        if state.rests:
            mask = np.zeros(table.vocab_size, np.bool_)
            for rest in state.rests:
                mask[table.following(rest)] = True
        elif state.tail:
            mask = np.zeros(table.vocab_size, np.bool_)
            # whatever begins within a character; so few that each is looked at
            within = np.flatnonzero((table.columns.first & 0xC0) == 0x80)
            mask[[int(i) for i in within if self._next(state, int(i)) is not None]] = True
        elif state.is_over:
            mask = np.zeros(table.vocab_size, np.bool_)
            mask[table.eos_ids] = True
        else:
            mask = table.columns.fitting(state, self._line)
            mask &= table.columns.chars > 0  # control tokens
            mask[self._openers.ids] = self._openers.columns.fitting(state, self._line) | self._openers.is_bare
            mask[table.eos_ids] = True
        return mask

    def forced(self) -> list[int]:
        """The rest of a stop string, once one has begun."""
        rests = self._states[-1].rests
        if len(rests) != 1:
            return []
        ids = self._table.tokenizer.encode(rests[0].decode("utf-8", "replace"))
        texts = self._table.texts
        return ids if b"".join(texts[i] for i in ids if i < len(texts)) == rests[0] else []

    def accept(self, token_id: int) -> None:
        """Go on by one token.

        Raises:
            BackendError: It is not allowed; nothing has changed.
        """
        state = self._states[-1]
        after = self._next(state, token_id) if 0 <= token_id < self._table.vocab_size else None
        if after is None:
            raise BackendError(
                f"Token {token_id} does not fit a title of one line after {len(self._states) - 1} tokens."
            )
        self._states.append(after)
        self._mask = None

    def _next(self, state: _State, token_id: int) -> _State | None:
        """The state after a token, None if it is not allowed."""
        text = self._table.texts[token_id]
        if token_id in self._table.eos_ids:
            return None if state.tail or state.rests else replace(state, is_over=True)
        if state.is_over or not text:
            return None
        if state.rests:
            return _ending(state, text)
        head, rests, is_over = (
            self._openers.found.get(token_id, (text, (), False)) if not state.tail else (text, (), False)
        )
        after = state.after(head)
        if after is None or after.chars > self._line.max_chars or after.words > self._line.max_words:
            return None
        return replace(after, rests=rests, is_over=is_over)

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""
        if not 0 <= count < len(self._states):
            raise ValueError(
                f"{count} tokens are to be taken back, and {len(self._states) - 1} were accepted"
            )
        if count:
            del self._states[-count:]
            self._mask = None


def _ending(state: _State, text: bytes) -> _State | None:
    """The state within a stop string that goes on with `text`."""
    is_over = any(text.startswith(rest) for rest in state.rests)
    rests = tuple(rest[len(text) :] for rest in state.rests if rest.startswith(text) and rest != text)
    return replace(state, rests=() if is_over else rests, is_over=is_over) if is_over or rests else None


def _is_control(char: str) -> bool:
    """Line ends and other characters that do not print."""
    return unicodedata.category(char) in ("Cc", "Zl", "Zp")


def _decoded(data: bytes) -> tuple[str | None, bytes]:
    """The whole characters, and the bytes of one that is not whole yet; None if it cannot become text."""
    try:
        return data.decode(), b""
    except UnicodeDecodeError as error:
        is_cut = error.reason == "unexpected end of data"
        return (data[: error.start].decode(), data[error.start :]) if is_cut else (None, b"")


_BAD = np.array([chr(b) in _MARKUP or b < 32 or b == 127 for b in range(256)])
_ALNUM = np.array([b < 128 and chr(b).isalnum() for b in range(256)])
