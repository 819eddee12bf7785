"""One generation, apart from where its logits come from: what to say next, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from tinykit.backends.base import Logits
from tinykit.errors import TinykitError
from tinykit.generation.constraint import Constraint
from tinykit.generation.grammar import Matcher
from tinykit.generation.lookup import Lookup
from tinykit.generation.request import Request
from tinykit.generation.result import CancelledBy, Chunk, Completion, FinishReason, Timings, Usage
from tinykit.generation.sampling import Sampler, TokenLogprob, logprob
from tinykit.generation.stopping import StopStrings
from tinykit.tokenizer import Tokenizer


@dataclass
class Clock:
    """When the parts of a generation began, in seconds of `time.perf_counter`."""

    called: float = field(default_factory=lambda: time.perf_counter())
    started: float | None = None
    prefilled: float | None = None
    first: float | None = None
    ended: float | None = None

    def timings(self) -> Timings:
        """The seconds between them; what was never reached took none."""
        ended = self.ended or time.perf_counter()
        started = self.started or ended
        prefilled = self.prefilled or ended
        return Timings(
            queue_s=started - self.called,
            prefill_s=prefilled - started,
            ttft_s=self.first - self.called if self.first else None,
            decode_s=ended - (self.first or prefilled),
            total_s=ended - self.called,
        )


class Run:
    """A request on its way to a completion.

    Whoever drives it computes the prompt, then repeats: `take` the logits, feed `pending`, of whose last
    `rows` tokens the logits are wanted. `pending` holds the tokens that were said but not fed, then those
    that are only guessed; `standing` tells afterwards how many of the tokens fed last were right.

    Args:
        request: What to generate.
        tokenizer: The model's.
        eos_ids: Tokens that end a text.
        vocab_size: Length of a row of logits.
        room: Tokens that the model's context has left after the prompt.
        matcher: The request's constraint, ready to run.
        can_draft: False where a wrong guess could not be taken back.
        notes: What could not be done, for the completion.
    """

    def __init__(
        self,
        request: Request,
        *,
        tokenizer: Tokenizer,
        eos_ids: Collection[int],
        vocab_size: int,
        room: int,
        matcher: Matcher | None = None,
        can_draft: bool = True,
        notes: Sequence[str] = (),
    ) -> None:
        options = request.options
        self.request = request
        self.watcher = request.watcher
        self.clock = Clock()
        self.generated: list[int] = []
        self.pending: list[int] = []
        self.rows = 1
        self.standing = 0
        self.is_done = False
        self.is_left = False  # whoever drove it has gone, done or not
        self.cancelled_by: CancelledBy | None = None
        self.cancels_before = 0  # the engine's `cancel_count` when the run was made
        self.reused_tokens = 0
        self._eos_ids = eos_ids
        self._budget = min(options.max_tokens, room)
        self._matcher = matcher
        self._forced: list[int] = []  # said by the constraint, not yet taken
        self._sampler = Sampler(options.sampling, request.prompt_ids, vocab_size)
        draft = options.draft if can_draft else None
        self._lookup = (
            Lookup(request.prompt_ids, minimum=draft.minimum, maximum=draft.maximum) if draft else None
        )
        self._stops = StopStrings(options.stop)
        self._detokenizer = tokenizer.detokenizer()
        self._finish: FinishReason = "cancelled"
        self._notes = list(notes)
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._steps = self._forced_tokens = self._drafted = self._accepted = 0
        self._piece = _Piece()
        self._result: Completion | None = None

    @property
    def due_s(self) -> float | None:
        """When its time is up, in seconds of `time.perf_counter`; None if it has all the time it wants."""
        timeout_s, deadline_s = self.request.options.timeout_s, self.request.deadline_s
        if timeout_s is None:
            return deadline_s
        own_s = self.clock.called + timeout_s
        return own_s if deadline_s is None else min(own_s, deadline_s)

    def take(self, logits: Logits) -> list[Chunk]:
        """Say what follows from `logits`, shape (rows, vocab_size): those after the last tokens fed.

        Raises:
            BackendError: the logits are no numbers.
            OptionError: the constraint allows nothing that the model can say.
        """
        chunks: list[Chunk] = []
        fed, guessed = self.pending, self.rows - 1
        self._steps += bool(fed)
        at = len(fed) - guessed - 1  # the last token fed that is known to be right
        row, said = 0, []  # type: int | None, list[int]
        if self._budget <= 0:
            return [self._end("length")]
        while not self.is_done:
            token_id = self._next(None if row is None else logits[row])
            if token_id is None:
                break
            is_right = False
            if row is not None and at + 1 < len(fed):
                is_right = fed[at + 1] == token_id
                # after a wrong guess those behind it are wrong too; those that the end leaves open are none
                self._count_guess(is_right, 1 if is_right else len(fed) - at - 1, token_id)
            if token_id in self._eos_ids:
                chunks.append(self._end("stop"))
                break
            if is_right and row is not None:
                at, row = at + 1, row + 1
            else:
                row = None
                said.append(token_id)
            self._say(token_id, chunks)
        self.standing = at + 1
        if not self.is_done:
            if self._piece.token_ids:
                chunks.append(self._cut())
            self._plan(said)
        return chunks

    def cancel(self, by: CancelledBy) -> list[Chunk]:
        """End here, with what there is."""
        if self.is_done:
            return []
        self.cancelled_by = self.cancelled_by or by  # what was first; closing is the consequence
        return [self._end("cancelled")]

    def tell(self, chunks: Sequence[Chunk]) -> None:
        """Let who watches over the request hear of its pieces, where nobody reads them as a stream."""
        if self.watcher is not None:
            for chunk in chunks:
                self.watcher.hear(chunk)

    def result(self) -> Completion:
        """The completion; of a run that has not ended, what there is so far."""
        if self._result is None and self.is_done:
            self._result = self._new_result()  # once, since it may hold a parsed object and a note on it
        return self._result or self._new_result()

    def _new_result(self) -> Completion:
        text = "".join(self._texts)
        return Completion(
            text=text,
            token_ids=tuple(self.generated),
            finish_reason=self._finish,
            usage=Usage(
                prompt_tokens=len(self.request.prompt_ids),
                completion_tokens=len(self.generated),
                kv_reused_tokens=self.reused_tokens,
                decode_steps=self._steps,
                forced_tokens=self._forced_tokens,
                drafted_tokens=self._drafted,
                accepted_tokens=self._accepted,
            ),
            timings=self.clock.timings(),
            cancelled_by=self.cancelled_by,
            seed=self._sampler.seed,
            logprobs=tuple(self._logprobs),
            parsed=self._parsed(text),
            notes=tuple(self._notes),
        )

    def _next(self, logits: Logits | None) -> int | None:
        """The next token: what the constraint forces, else a pick from `logits`, else None: feed first."""
        if self._forced:
            self._forced_tokens += 1
            return self._forced.pop(0)
        if logits is None:
            return None
        allowed = self._matcher.allowed() if self._matcher else None
        if self.request.options.banned_first and not self.generated:
            allowed = np.ones(len(logits), np.bool_) if allowed is None else allowed.copy()
            allowed[list(self.request.options.banned_first)] = False
        token_id = self._sampler.pick(logits, allowed)
        if (count := self.request.options.logprobs) is not None and token_id not in self._eos_ids:
            found = logprob(logits, token_id, count)
            self._logprobs.append(found)
            self._piece.logprobs.append(found)
        return token_id

    def _count_guess(self, is_right: bool, guesses: int, token_id: int) -> None:
        self._drafted += guesses
        self._piece.drafted += guesses
        self._accepted += is_right
        self._piece.accepted += is_right
        if not is_right:
            self._piece.correction = token_id

    def _say(self, token_id: int, chunks: list[Chunk]) -> None:
        """Append a token, and see whether it ends the text."""
        if self.clock.first is None:
            self.clock.first = time.perf_counter()
        self.generated.append(token_id)
        self._sampler.accept(token_id)
        self._piece.token_ids.append(token_id)
        self._piece.text += self._stops.feed(self._detokenizer.feed(token_id))
        if self._has_stopped():
            chunks.append(self._end("stop"))
            return
        if self._matcher is not None:
            self._matcher.accept(token_id)
            if self._matcher.is_finished:
                chunks.append(self._end("stop"))
                return
            if not self._forced and self.request.options.logprobs is None:
                self._forced = self._matcher.forced()
        if len(self.generated) >= self._budget:
            chunks.append(self._end("length"))
        elif len(self._piece.token_ids) >= self.request.options.tokens_per_step:
            chunks.append(self._cut())

    def _plan(self, said: list[int]) -> None:
        """What to feed next: the tokens said, and guesses that the budget has room for."""
        guesses: list[int] = []
        if self._lookup is not None:
            self._lookup.extend(self.generated[self._lookup_seen :])
            self._lookup_seen = len(self.generated)
            room = min(self._budget - len(self.generated) - 1, self.request.options.tokens_per_step - 1)
            guesses = self._lookup.draft()[: max(0, room)]
        self.pending, self.rows = said + guesses, 1 + len(guesses)

    _lookup_seen = 0

    def _end(self, reason: FinishReason) -> Chunk:
        self._finish = reason
        self.is_done = True
        if not self._has_stopped():
            self._piece.text += self._stops.feed(self._detokenizer.flush()) + self._stops.flush()
            if self._has_stopped() and reason == "length":
                self._finish = "stop"
        self.clock.ended = time.perf_counter()
        return self._cut()

    def _has_stopped(self) -> bool:
        return self._stops.found is not None

    def _cut(self) -> Chunk:
        piece, self._piece = self._piece, _Piece()
        self._texts.append(piece.text)
        return Chunk(
            piece.text,
            piece.token_ids,
            logprobs=piece.logprobs,
            drafted_tokens=piece.drafted,
            accepted_tokens=piece.accepted,
            correction_token_id=piece.correction,
            is_last=self.is_done,
        )

    def _parsed(self, text: str) -> object:
        constraint = self.request.options.constraint
        if self._finish != "stop" or not isinstance(constraint, Constraint):
            return None
        try:
            return constraint.parse(text)
        except (TinykitError, ValueError) as error:
            self._notes.append(f"The answer does not meet its constraint: {error}")
            return None


class Cancelled(Exception):
    """Ends the steps of a run that was cancelled."""


def is_cancelled(run: Run) -> bool:
    """Whether a run was cancelled, or its time is up."""
    due_s = run.due_s
    if due_s is not None and time.perf_counter() >= due_s:
        run.cancelled_by = run.cancelled_by or "timeout"
    if run.watcher is not None and run.watcher.cancelled_by is not None:
        run.cancelled_by = run.cancelled_by or run.watcher.cancelled_by
    return run.cancelled_by is not None


def check_cancelled(run: Run) -> None:
    """Raise Cancelled if it was."""
    if is_cancelled(run):
        raise Cancelled


@dataclass
class _Piece:
    """What the next chunk will hold."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    correction: int | None = None
