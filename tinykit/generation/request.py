"""What goes into a generation and what comes out."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tinykit.errors import OptionError

FinishReason = Literal["stop", "length", "cancelled"]
DEFAULT_MAX_TOKENS = 256
_MAX_TOKENS_LIMIT = 1024


def checked_max_tokens(value: object) -> int:
    """A budget of new tokens between 1 and 1,024: larger numbers are lowered to 1,024.

    Raises:
        OptionError: not a whole number, or below 1.
    """
    number = _number(value)
    if not (number >= 1) or (number != math.inf and number != int(number)):
        raise OptionError(
            f"max_tokens must be a whole number from 1 to {_MAX_TOKENS_LIMIT}, not {value!r}.",
            name="max_tokens",
            value=value,
        )
    return int(min(number, _MAX_TOKENS_LIMIT))


def _number(value: object) -> float:
    """The number as Python's own, NaN if it is none."""
    if isinstance(value, bool):
        return math.nan
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else math.nan


def checked_stop(stop: str | Sequence[str]) -> tuple[str, ...]:
    """Stop strings as a tuple; one string counts as one.

    Raises:
        OptionError: not text, or an empty string, which would stop at once.
    """
    strings = (stop,) if isinstance(stop, str) or not isinstance(stop, Iterable) else tuple(stop)
    if not all(isinstance(text, str) and text for text in strings):
        raise OptionError(f"stop must be texts that are not empty, not {stop!r}.", name="stop", value=stop)
    return strings


@dataclass(frozen=True)
class GenerationOptions:
    """How to generate: greedy, up to `max_tokens` new tokens or the first of the `stop` strings.

    The first new token is none of the ids in `banned_first`, which is how a second answer is asked for.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    banned_first: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_tokens", checked_max_tokens(self.max_tokens))
        object.__setattr__(self, "stop", checked_stop(self.stop))


@dataclass(frozen=True)
class Request:
    """One generation.

    `prefix_tokens` is how many of the prompt's first tokens other requests share (a recipe's fixed part):
    the engine then keeps the state of that prefix only. With None it keeps that of the whole exchange,
    which the next turn of a chat extends.
    """

    prompt_ids: tuple[int, ...]
    options: GenerationOptions = field(default_factory=GenerationOptions)
    prefix_tokens: int | None = None


@dataclass(frozen=True)
class Usage:
    """Tokens of one generation; `kv_reused_tokens` of the prompt were not computed again."""

    prompt_tokens: int
    completion_tokens: int
    kv_reused_tokens: int


@dataclass(frozen=True)
class Timings:
    """Seconds of one generation.

    `queue_s` is the wait for other requests of the same model; `ttft_s`, the time to the first token, and
    `total_s` are counted from the call.
    """

    queue_s: float
    prefill_s: float
    ttft_s: float
    decode_s: float
    total_s: float


@dataclass(frozen=True)
class Chunk:
    """A piece of generated text and the ids of the tokens that completed it; either may be empty."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Completion:
    """Generated text with how it came about; ``str()``, ``format()``, ``len()`` and ``in`` are the text's."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Speed after the first token; None for fewer than two tokens."""
        steps = len(self.token_ids) - 1
        return steps / self.timings.decode_s if steps > 0 and self.timings.decode_s > 0 else None

    def __str__(self) -> str:
        return self.text

    def __format__(self, spec: str) -> str:
        return format(self.text, spec)

    def __len__(self) -> int:
        return len(self.text)

    def __contains__(self, part: str) -> bool:
        return part in self.text

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Completion):
            return (self.text, self.token_ids) == (other.text, other.token_ids)
        return self.text == other if isinstance(other, str) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows: the text."""
        printer.text(self.text)
