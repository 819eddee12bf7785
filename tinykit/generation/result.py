"""What comes out of a generation: pieces of text while it runs, a completion at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self

from tinykit.errors import TinykitError
from tinykit.generation.sampling import TokenLogprob
from tinykit.markup import Bundle, block, bundle, note

FinishReason = Literal["stop", "length", "cancelled", "error"]
CancelledBy = Literal["interrupt", "cancel", "timeout", "close"]


class Chunk(str):
    """A piece of generated text, a `str` like any other, that knows where it came from.

    The text may be empty, while a character or a stop string is not whole.

    Attributes:
        token_ids: The tokens of this step, those whose text is held back among them.
        logprobs: One entry for each token if they were asked for, else empty.
        drafted_tokens: Tokens guessed for this step, of which `accepted_tokens` were right.
        correction_token_id: What the model said in place of the first wrong guess.
        is_last: Whether the generation has ended with this piece.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    drafted_tokens: int
    accepted_tokens: int
    correction_token_id: int | None
    is_last: bool

    def __new__(
        cls,
        text: str,
        token_ids: Sequence[int] = (),
        *,
        logprobs: Sequence[TokenLogprob] = (),
        drafted_tokens: int = 0,
        accepted_tokens: int = 0,
        correction_token_id: int | None = None,
        is_last: bool = False,
    ) -> Self:
        """A `str` is made here, not in `__init__`."""
        self = super().__new__(cls, text)
        self.token_ids, self.logprobs = tuple(token_ids), tuple(logprobs)
        self.drafted_tokens, self.accepted_tokens = drafted_tokens, accepted_tokens
        self.correction_token_id, self.is_last = correction_token_id, is_last
        return self

    @property
    def text(self) -> str:
        """The text as a plain string."""
        return str.__str__(self)


@dataclass(frozen=True)
class Usage:
    """Tokens of one generation, and the calls of the model that they took.

    Of the prompt, `kv_reused_tokens` were not computed again. Of the completion, `forced_tokens` were the
    only ones that a constraint allowed, and `accepted_tokens` of `drafted_tokens` were guessed right; none
    of both needed a decode step of its own.
    """

    prompt_tokens: int
    completion_tokens: int
    kv_reused_tokens: int
    decode_steps: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def acceptance_rate(self) -> float | None:
        """Share of the drafted tokens that was right; None if nothing was drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None


@dataclass(frozen=True)
class Timings:
    """Seconds of one generation.

    `queue_s` is the wait for other requests of the same model or slot; `ttft_s`, the time to the first token
    (None if there was none), and `total_s` are counted from the call. In a batch, `prefill_s` is this
    prompt's own and `decode_s` is shared with the others.
    """

    queue_s: float
    prefill_s: float
    ttft_s: float | None
    decode_s: float
    total_s: float


@dataclass(frozen=True, eq=False)
class Completion:
    """Generated text with how it came about; ``str()``, ``format()``, ``len()`` and ``in`` are the text's.

    Attributes:
        text: The answer, without the stop string that ended it.
        token_ids: Its tokens, those of a stop string at its end among them.
        finish_reason: ``stop`` (end of text, stop string, or the constraint was met), ``length`` (the budget
            or the context was used up), ``cancelled``, or ``error`` (in a batch: see `error`).
        usage: Counts of tokens.
        timings: Seconds.
        cancelled_by: ``interrupt``, ``cancel``, ``timeout`` or ``close``, if it was cancelled.
        seed: Of the draws; with it the same request gives the same text. None for greedy decoding.
        logprobs: One entry for each token, if they were asked for.
        parsed: What the text means under its constraint: the object of a JSON schema, an instance of a
            pydantic model. None without one, and for a text that was cut off.
        notes: What was asked for and could not be done, with the reason.
        error: What went wrong with this one of a batch.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    cancelled_by: CancelledBy | None = None
    seed: int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    parsed: Any = None
    notes: tuple[str, ...] = ()
    error: TinykitError | None = None

    @classmethod
    def nothing(
        cls,
        *,
        prompt_tokens: int = 0,
        cancelled_by: CancelledBy | None = None,
        error: TinykitError | None = None,
    ) -> Self:
        """The completion of what was never begun: cancelled, or failed with `error`."""
        return cls(
            "", (), "error" if error else "cancelled", Usage(prompt_tokens, 0, 0),
            Timings(0.0, 0.0, None, 0.0, 0.0), cancelled_by=cancelled_by, error=error,
        )  # fmt: skip

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Speed after the first token; None for fewer than two tokens."""
        steps = len(self.token_ids) - 1
        return steps / self.timings.decode_s if steps > 0 and self.timings.decode_s > 0 else None

    @property
    def note(self) -> str:
        """That the answer is not whole, in a few words; empty if it ended by itself."""
        if self.error is not None:
            return f"(failed: {self.error})"
        if self.finish_reason == "length":
            return f"(cut off after {len(self.token_ids)} tokens: no more were allowed)"
        if self.cancelled_by == "timeout":
            return "(stopped: the time was up)"
        return "(stopped before its end)" if self.finish_reason == "cancelled" else ""

    @property
    def stats(self) -> str:
        """Tokens, seconds and seed in one line."""
        usage, timings, speed = self.usage, self.timings, self.decode_tokens_per_s
        parts = [
            f"{usage.prompt_tokens} + {usage.completion_tokens} tokens",
            "" if timings.ttft_s is None else f"first after {timings.ttft_s:.3f} s",
            f"{timings.total_s:.3f} s in all",
            f"{speed:.0f} tokens/s" if speed else "",
            "" if self.seed is None else f"seed {self.seed}",
        ]
        return ", ".join(part for part in parts if part)

    @property
    def facts(self) -> dict[str, Any]:
        """What differs from run to run, for a display's metadata."""
        return {
            "finish_reason": self.finish_reason,
            "cancelled_by": self.cancelled_by,
            "seed": self.seed,
            "usage": asdict(self.usage),
            "timings": asdict(self.timings),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON, without `parsed`; of an error its text."""
        values = asdict(replace(self, parsed=None, error=None))
        del values["parsed"]
        return values | {"error": None if self.error is None else str(self.error)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The completion of such values, also after JSON has made lists of them.

        Raises:
            KeyError, TypeError: they are of no completion.
        """
        said = values["error"]
        return cls(
            text=values["text"],
            token_ids=tuple(values["token_ids"]),
            finish_reason=values["finish_reason"],
            usage=Usage(**values["usage"]),
            timings=Timings(**values["timings"]),
            cancelled_by=values["cancelled_by"],
            seed=values["seed"],
            logprobs=tuple(
                TokenLogprob(one["token_id"], one["logprob"], tuple((at, value) for at, value in one["top"]))
                for one in values["logprobs"]
            ),
            notes=tuple(values["notes"]),
            error=None if said is None else TinykitError(said),
        )

    def __str__(self) -> str:
        return self.text

    def __format__(self, spec: str) -> str:
        return format(self.text, spec)

    def __len__(self) -> int:
        return len(self.text)

    def __bool__(self) -> bool:
        return bool(self.text)

    def __contains__(self, part: str) -> bool:
        return part in self.text

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Completion):
            return (self.text, self.token_ids) == (other.text, other.token_ids)
        return self.text == other if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows of it in a list: the text."""
        printer.text(self.text)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        """What a notebook shows: the text, and a note if it is not whole; times are metadata."""
        text = "\n".join(part for part in (self.text, self.note) if part)
        return bundle(text, block(self.text) + (note(self.note) if self.note else ""), self.facts)
