"""Which tokens may come next, so that the text has the form that was asked for.

The grammars are llguidance's (the extra ``grammar``). Its own shortcut for text that can only go on in one
way is switched off, since its length has no limit: ``a{1000}{1000}`` would take it ten seconds, and a
grammar of forty lines for ever. `Matcher.forced` finds such text here, a bounded number of bytes at a time.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tinykit.errors import BackendError, MissingPackageError, UnsupportedModelError
from tinykit.generation.constraint import Constraint
from tinykit.generation.grammar_errors import dead_end, invalid, too_slow
from tinykit.generation.grammar_text import to_lark
from tinykit.generation.title_line import TitleLine, TitleTable
from tinykit.optional import require
from tinykit.tokenizer import Tokenizer

__all__ = ["Constraint", "Grammars", "Mask", "Matcher", "TitleLine"]

Mask = npt.NDArray[np.bool_]

_KEPT = 32  # compiled grammars
_FORCED_BYTES = 64  # looked ahead at most per call, some 60 µs each
_STACK_BYTES = 128 << 20  # of address space; a thousand rules below each other take some megabytes
_COMPILE_S = 30  # llguidance's own limits end most of what is too large within two
_FEW = 256  # tokens; where more are allowed, not all of them begin with the same byte


class Matcher(Protocol):
    """What may come next in one text, token by token."""

    @property
    def is_finished(self) -> bool:
        """Nothing more may come, but an end-of-text token."""

    def allowed(self) -> Mask:
        """Per token id, shape (vocab_size,): may it come next? Do not write into it.

        End-of-text ids are allowed exactly where the text may end.

        Raises:
            OptionError: The constraint is too complex from here on.
        """

    def forced(self) -> list[int]:
        """Tokens that come next whatever the model says, in the tokenizer's own way to cut the text."""

    def accept(self, token_id: int) -> None:
        """Go on by one token.

        Raises:
            BackendError: It is not allowed; nothing has changed.
        """

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""


class Grammars:
    """Matchers for one model; compiled grammars are kept. Callable from several threads.

    Args:
        tokenizer: The model's.
        eos_ids: Tokens of which each ends the text.
        vocab_size: Of the model's logits, which may have room for more than the tokenizer's tokens.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: Sequence[int], vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = tuple(sorted({index for index in eos_ids if 0 <= index < vocab_size}))
        self._vocab_size = vocab_size
        self._lock = threading.Lock()
        self._words: _Words | None = None
        self._titles: TitleTable | None = None
        self._compiled: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def matcher(self, constraint: Constraint | TitleLine) -> Matcher:
        """A matcher at the beginning of a text; a `TitleLine` needs no llguidance.

        Raises:
            OptionError: The grammar is not valid, says where, or no text fits it.
            MissingPackageError: llguidance is not installed.
            UnsupportedModelError: The model's tokenizer is of a kind that llguidance does not know.
        """
        with self._lock:
            if isinstance(constraint, TitleLine):
                if self._titles is None:
                    self._titles = TitleTable(self._tokenizer, self._eos_ids, self._vocab_size)
                return self._titles.matcher(constraint)
            if self._words is None:
                self._words = _Words(self._tokenizer, self._eos_ids, self._vocab_size)
            core = self._core(constraint, self._words)
            matcher = _GrammarMatcher(core, self._words, constraint)
        matcher.allowed()
        return matcher

    def _core(self, constraint: Constraint, words: _Words) -> Any:
        key = (constraint.kind, constraint.text)
        if key in self._compiled:
            self._compiled.move_to_end(key)
        else:
            self._compiled[key] = _compile(constraint, words)
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return self._compiled[key].deep_copy()


def _llguidance() -> Any:
    return require("llguidance", extra="grammar", purpose="constraints (regex, choices, JSON, grammars)")


def _compile(constraint: Constraint, words: _Words) -> Any:
    """The compiled grammar, with its first step taken.

    In a thread of its own: llguidance goes down a grammar's rules by recursion, and a stack that is too
    small for it ends the process; besides, a thread can be waited for with a limit and with Ctrl-C.
    """
    library, grammar = _llguidance(), to_lark(constraint)
    done: list[Any] = []

    def compile_it() -> None:
        limits = library.LLParserLimits(verbose_errors=False)
        text = library.LLMatcher.grammar_from_lark(grammar)
        core = library.LLMatcher(words.tokens, text, log_level=0, limits=limits)
        if not core.is_error():
            core.compute_bitmask()
        done.append(core)

    usual = threading.stack_size(_STACK_BYTES)
    try:
        worker = threading.Thread(target=compile_it, name="tinykit-grammar", daemon=True)
        worker.start()
    finally:
        threading.stack_size(usual)
    worker.join(_COMPILE_S)
    if not done:
        raise too_slow(constraint, _COMPILE_S)
    if done[0].is_error():
        raise invalid(constraint, done[0].get_error())
    return done[0]


class _Words:
    """The vocabulary as llguidance sees it."""

    def __init__(self, tokenizer: Tokenizer, eos_ids: Sequence[int], vocab_size: int) -> None:
        self.eos_ids = list(eos_ids)
        self.vocab_size = vocab_size
        known = tokenizer.highest_id + 1
        ends = [index for index in eos_ids if index < known]
        # llguidance wants an end in any case: without one, a token is added after the last
        text = tokenizer.to_json() if ends else _with_an_end(tokenizer.to_json(), known)
        self.end_id = ends[0] if ends else known
        size = max(vocab_size, known + (not ends))
        try:
            self.tokens = _llguidance().LLTokenizer(text, n_vocab=size, eos_token=ends or [known])
        except MissingPackageError:
            raise
        except Exception as error:
            raise UnsupportedModelError(
                f"Constraints do not work with this model's tokenizer: {error}",
                hint="Tokenizers of bytes (GPT-2's kind) and of SentencePiece's kind are known.",
            ) from error
        self.spaced, self.unspaced = self._stripped(tokenizer)

    def bytes_of(self, token_id: int) -> bytes:
        """The token's bytes; none for a control token."""
        if self.tokens.is_special_token(token_id):
            return b""
        return bytes(self.tokens.decode_bytes([token_id]))

    def unspaced_id(self, token_id: int) -> int:
        """The token that stands for this one at the beginning of a text."""
        found = np.flatnonzero(self.spaced == token_id)
        return int(self.unspaced[found[0]]) if len(found) else token_id

    def _stripped(self, tokenizer: Tokenizer) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Tokens whose first space the tokenizer drops at the beginning of a text, and those without it."""
        texts = tokenizer.token_bytes()[: self.vocab_size]
        spaced = [index for index, text in enumerate(texts) if text.startswith(b" ")]
        words = [index for index in spaced if texts[index].strip()]
        if not words or tokenizer.decode(words[:1]).startswith(" "):
            return np.empty(0, np.intp), np.empty(0, np.intp)
        index_of = {text: index for index, text in reversed(list(enumerate(texts))) if text}
        unspaced = [index_of.get(texts[index][1:], -1) for index in spaced]
        return np.array(spaced, np.intp), np.array(unspaced, np.intp)


def _with_an_end(tokenizer_json: str, index: int) -> str:
    description = json.loads(tokenizer_json)
    end = {"id": index, "content": "<|end of text|>", "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    description["added_tokens"].append(end | flags)
    return json.dumps(description)


class _GrammarMatcher:
    """One text on its way through a compiled grammar."""

    def __init__(self, core: Any, words: _Words, constraint: Constraint) -> None:
        self._core = core
        self._words = words
        self._constraint = constraint
        self._taken: list[int] = []  # as the core took them, the end left out
        self._ended = False
        self._at_end = False  # as of the mask: the text may end here
        self._mask: Mask | None = None

    @property
    def is_finished(self) -> bool:
        return self._may_end() and int(np.count_nonzero(self.allowed())) == len(self._words.eos_ids)

    def allowed(self) -> Mask:
        if self._mask is None:
            self._mask = self._ends() if self._ended else self._compute()
            self._mask.flags.writeable = False
        return self._mask

    def _may_end(self) -> bool:
        self.allowed()
        return self._at_end

    def _compute(self) -> Mask:
        bits = self._bits()
        if self._core.is_error():
            raise dead_end(self._constraint, self._core.get_error(), self._text())
        self._at_end = bool(bits[self._words.end_id])
        mask = bits[: self._words.vocab_size]
        mask[self._words.end_id : self._words.end_id + 1] = False  # it may be an added one
        mask[self._words.eos_ids] = self._at_end
        if not self._taken and len(self._words.spaced):
            plain, unspaced = mask.copy(), self._words.unspaced
            mask[self._words.spaced] = plain[unspaced] & (unspaced >= 0)
        if not mask.any() and not self._at_end:
            raise dead_end(self._constraint, "no token of this model fits", self._text())
        return mask

    def _bits(self) -> Mask:
        """What llguidance allows, its own end of text included."""
        packed = np.frombuffer(self._core.compute_bitmask(), np.uint8)
        return np.unpackbits(packed, bitorder="little").view(np.bool_)

    def accept(self, token_id: int) -> None:
        if token_id in self._words.eos_ids:
            if self._ended or not self._may_end():
                raise self._refused(token_id)
            self._ended = True
        else:
            taken = self._words.unspaced_id(token_id) if not self._taken else token_id
            is_known = 0 <= token_id < self._words.vocab_size and taken >= 0
            if self._ended or not is_known or self._core.try_consume_tokens([taken]) != 1:
                raise self._refused(token_id)
            self._taken.append(taken)
        self._mask = None

    def rollback(self, count: int) -> None:
        if not 0 <= count <= len(self._taken) + self._ended:
            raise ValueError(f"{count} tokens are to be taken back, and {len(self._taken)} were accepted")
        if count and self._ended:
            self._ended = False
            count -= 1
            self._mask = None
        if count:
            if not self._core.rollback(count):
                raise BackendError(
                    f"The {self._constraint.kind} constraint cannot take tokens back.",
                    hint="Leave max_tokens= out of the grammar's rules, or switch drafting off.",
                )
            del self._taken[-count:]
            self._mask = None

    def forced(self) -> list[int]:
        if self._ended:
            return []
        data, at_end = self._forced_bytes()
        if not data:
            return []
        tokens = self._words.tokens
        ids = tokens.tokenize_bytes(data) if at_end else tokens.tokenize_partial(data, self._taken[-8:])[0]
        # in the unlikely case that the cut at the tokenizer's own places does not fit, the model decides
        return list(ids) if self._core.validate_tokens(list(ids)) == len(ids) else []

    def _forced_bytes(self) -> tuple[bytes, bool]:
        """The bytes that must come next, a limited number of them, and whether the text then ends."""
        data = b""
        mask, at_end = self.allowed(), False
        try:
            while len(data) < _FORCED_BYTES and not at_end:
                single = self._single_byte(mask)
                if single is None or self._core.try_consume_tokens([single]) != 1:
                    break
                data += self._words.bytes_of(single)
                at_end = self._core.is_stopped()
                mask = self._bits()
        finally:
            if data:
                self._core.rollback(len(data))
        return data, at_end

    def _single_byte(self, mask: Mask) -> int | None:
        """The token of one byte that all allowed tokens begin with, if there is one."""
        if np.count_nonzero(mask) > _FEW:
            return None
        texts = {index: self._words.bytes_of(index) for index in map(int, np.flatnonzero(mask))}
        starts = {text[:1] for text in texts.values()}
        if len(starts) != 1 or b"" in starts:
            return None
        return next((index for index, text in texts.items() if len(text) == 1), None)

    def _refused(self, token_id: int) -> BackendError:
        return BackendError(
            f"Token {token_id} does not fit the {self._constraint.kind} constraint after {self._text()!r}."
        )

    def _ends(self) -> Mask:
        mask = np.zeros(self._words.vocab_size, np.bool_)
        mask[self._words.eos_ids] = True
        return mask

    def _text(self) -> str:
        return str(self._words.tokens.decode_str(self._taken))
