"""What a judge model reads, and a judge that is ready to be asked.

A judge is an encoder that reads a question, its options and a text (the state) at once, and gives one
logit for each option. The encoding is that of Julia-1, file julia/data.py of
https://huggingface.co/SupersonicLabs/Julia-1.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tinykit.backends.base import EncoderInfo
from tinykit.errors import ClosedError, ForwardInterrupted, OptionError
from tinykit.generation.aside import Aside, Asides
from tinykit.generation.questions import Answer, Question
from tinykit.generation.request import Watcher
from tinykit.generation.turns import Turns

MAX_TOKENS = 8192  # of the whole input
_HEAD_TOKENS = 256  # for the question and the options together
_OPTION_TOKENS = 48
_MIN_LEFT = 16  # tokens of the head that options leave to the question, or they are shortened
_MIN_OPTION, _MIN_QUESTION = 4, 8  # tokens; an option's include its mark
_MAX_TOKEN_CHARS = 64  # no vocabulary that we know has longer tokens: what lies beyond is never read

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Marks:
    """A judge's special tokens: ids, and the text of the one that must not occur in its input."""

    mask_id: int
    class_id: int
    separator_id: int
    pad_id: int
    mask_text: str


@dataclass(frozen=True)
class Row:
    """One question as a judge reads it: token ids, where its options begin, the number of its kind."""

    ids: tuple[int, ...]
    markers: tuple[int, ...]
    kind: int


def state_text(state: object) -> str:
    """The state as a judge reads it: text as it is, everything else as Python's `json.dumps` writes it.

    Raises:
        OptionError: it cannot be written as JSON.
    """
    if isinstance(state, str):
        return state
    try:
        return json.dumps(state)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            f"The state must be text or what JSON can hold: {error}.",
            hint="Pass str(state), or a dict of plain values.",
            name="state",
            value=state,
        ) from error


def encode_question(
    question: Question,
    state_ids: Sequence[int],
    encode: Encode,
    marks: Marks,
    *,
    max_tokens: int = MAX_TOKENS,
) -> Row:
    """A question, its options and the state as token ids.

    Class token, kind and question, separator; for each option a mask token and at most 48 tokens; separator;
    as much of the state as there is room for; separator. Question and options share 256 tokens: options that
    leave the question fewer than 16 are cut to equal shares of at least 4, and the question keeps at least 8.
    """

    asked = text_ids(f"{question.word} question: {question.text}", encode, marks)
    options = [
        [marks.mask_id, *text_ids(f" {text}", encode, marks)[:_OPTION_TOKENS]] for text in question.texts
    ]
    left = _HEAD_TOKENS - sum(map(len, options))
    if left < _MIN_LEFT:
        share = max(_MIN_OPTION, (_HEAD_TOKENS - _MIN_LEFT) // len(options))
        options = [option[:share] for option in options]
        left = _HEAD_TOKENS - sum(map(len, options))
    ids = [marks.class_id, *asked[: max(_MIN_QUESTION, left)], marks.separator_id]
    markers = []
    for option in options:
        markers.append(len(ids))
        ids += option
    ids.append(marks.separator_id)
    room = max(0, max_tokens - len(ids) - 1)
    return Row((*ids, *state_ids[:room], marks.separator_id), tuple(markers), question.kind)


def text_ids(text: str, encode: Encode, marks: Marks) -> list[int]:
    """Token ids of a text, with a space for the mask token, which marks options and nothing else."""
    if marks.mask_text:
        text = text.replace(marks.mask_text, " ")
    return [index for index in encode(text) if index != marks.mask_id]


class Encoder(Protocol):
    """A loaded judge model: `tinykit.backends.onnx_encoder` has one."""

    info: EncoderInfo

    def option_logits(self, rows: Sequence[Row], pad_id: int) -> list[list[float]]:
        """One logit for each option of each row."""
        ...

    def interrupt(self) -> None:
        """Let a call that is running raise ForwardInterrupted."""
        ...

    def close(self) -> None:
        """Release the model."""
        ...


class Judge:
    """A judge model that is ready to be asked; callable from several threads, which take turns.

    Args:
        backend: The loaded model.
        encode: Its tokenizer.
        marks: Its special tokens.
        turns: Who is next; one for all judges of a model that is shared.
        release: Lets go of the model; it is closed if nothing is given.
    """

    def __init__(
        self,
        backend: Encoder,
        encode: Encode,
        marks: Marks,
        *,
        turns: Turns | None = None,
        release: Callable[[], object] | None = None,
    ) -> None:
        self.backend = backend
        self._encode = encode
        self._marks = marks
        self._turns = Turns() if turns is None else turns
        self._release = release
        self._is_closed = False
        self._asides = Asides()
        self._asking: Aside | None = None

    def twin(self, *, turns: Turns, release: Callable[[], object]) -> Judge:
        """A judge for somebody else on the same model."""
        return Judge(self.backend, self._encode, self._marks, turns=turns, release=release)

    def answer(self, state: object, questions: Mapping[str, Question]) -> dict[str, Answer]:
        """The answers to questions about one state, by the same names; none if there are no questions.

        A state that is too long is cut at its end.

        Raises:
            OptionError: the state is neither text nor what JSON can hold.
            ForwardInterrupted: it was cancelled.
            BackendError: the model failed, or gave a wrong number of logits.
        """
        logits = self.logits(state, list(questions.values()))
        return {
            name: question.answer(scores)
            for (name, question), scores in zip(questions.items(), logits, strict=True)
        }

    def logits(
        self, state: object, questions: Sequence[Question], *, watcher: Watcher | None = None
    ) -> list[list[float]]:
        """One logit for each option of each question; `watcher` may end it. Raises: as `answer`."""
        if not questions:
            return []
        max_tokens = min(MAX_TOKENS, self.backend.info.context_length)
        read = state_text(state)[: max_tokens * _MAX_TOKEN_CHARS]
        state_ids = text_ids(read, self._encode, self._marks)
        rows = [
            encode_question(question, state_ids, self._encode, self._marks, max_tokens=max_tokens)
            for question in questions
        ]
        with self._asides.begin(watcher) as aside:
            return self._turns.take(lambda: self._asked(rows, aside))

    def _asked(self, rows: Sequence[Row], aside: Aside) -> list[list[float]]:
        while True:
            self.require_open()
            self._asking = aside  # first, so that who cancels later than the look below interrupts
            try:
                aside.check()
                return self.backend.option_logits(rows, self._marks.pad_id)
            except ForwardInterrupted:
                aside.check()  # else it was meant for somebody else who has just left the model
            finally:
                self._asking = None

    def require_open(self) -> None:
        """Raise ClosedError after `close`."""
        if self._is_closed:
            raise ClosedError("This model was closed.", hint="Make a new TinySession.")

    def cancel(self) -> int:
        """End the calls that are running or wait, from any thread; returns how many that were."""
        return self._asides.cancel(self._stop)

    def interrupt(self, watcher: Watcher) -> None:
        """Let what runs for a watcher see soon that it was cancelled."""
        asking = self._asking
        if asking is not None and asking.watcher is watcher:
            self.backend.interrupt()

    def _stop(self, aside: Aside) -> None:
        if self._asking is aside:
            self.backend.interrupt()

    def close(self) -> None:
        """Let go of the model; closing twice is harmless."""
        self._is_closed = True
        self._turns.take(self._release or self.backend.close)
