"""What goes into a generation."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tinykit import settings
from tinykit.errors import OptionError, PromptTooLongError
from tinykit.generation.constraint import Constraint
from tinykit.generation.result import CancelledBy, Chunk
from tinykit.generation.sampling import Sampling
from tinykit.generation.title_line import TitleLine

DEFAULT_MAX_TOKENS = 256
DEFAULT_TOKENS_PER_STEP = 32
_MAX_TOKENS_LIMIT = 1024
_MAX_LOGPROBS = 20
_LONGEST_S = 1e9  # some thirty years; a larger number need not fit into a float


def checked_max_tokens(value: object) -> int:
    """A budget of new tokens between 0 and 1,024: larger numbers are lowered to 1,024.

    Raises:
        OptionError: not a whole number, or below 0.
    """
    number = _number(value)
    if not (number >= 0) or (number != math.inf and number != int(number)):
        raise OptionError(
            f"max_tokens must be a whole number from 0 (more than {_MAX_TOKENS_LIMIT:,} counts as "
            f"{_MAX_TOKENS_LIMIT:,}), not {value!r}.",
            hint="Leave it out for 256.",
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
    try:
        return float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:  # a fraction of large numbers
        return math.inf


def checked_stop(stop: str | Sequence[str]) -> tuple[str, ...]:
    """Stop strings as a tuple; one string counts as one.

    Raises:
        OptionError: not text, or an empty string, which would stop at once.
    """
    strings = (stop,) if isinstance(stop, str) or not isinstance(stop, Iterable) else tuple(stop)
    if not all(isinstance(text, str) and text for text in strings):
        raise OptionError(
            f"stop must be texts that are not empty, not {stop!r}.",
            hint='For example: stop="\\n" or stop=["\\n", "END"]',
            name="stop",
            value=stop,
        )
    return strings


@dataclass(frozen=True)
class Draft:
    """Prompt lookup: guess `minimum` to `maximum` tokens a step from what was said before."""

    minimum: int = 1
    maximum: int = 8

    def __post_init__(self) -> None:
        for name in ("minimum", "maximum"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
                raise OptionError(
                    f"draft needs whole numbers from 1, not {value!r}.",
                    hint="For example: draft=(1, 8); draft=False switches it off.",
                    name=name,
                    value=value,
                )
            object.__setattr__(self, name, int(value))
        if self.minimum > self.maximum:
            raise OptionError(
                f"draft goes from the smaller to the larger number, not {self.minimum} to {self.maximum}.",
                hint=f"Turn them around: draft=({self.maximum}, {self.minimum})",
                name="draft",
                value=(self.minimum, self.maximum),
            )


def checked_draft(value: object) -> Draft | None:
    """How to draft: None and False not at all, True as `Draft()`, a number up to so many, or (min, max).

    Raises:
        OptionError: anything else.
    """
    if value is None or isinstance(value, Draft):
        return value
    if isinstance(value, bool):
        return Draft() if value else None
    if isinstance(value, tuple | list) and len(value) == 2:
        return Draft(*value)
    if isinstance(value, numbers.Integral):
        return Draft(1, int(value)) if value else None
    raise OptionError(
        f"draft must be True, a number of tokens, or (min, max), not {value!r}.",
        hint="For example: draft=True, draft=8 or draft=(1, 8)",
        name="draft",
        value=value,
    )


def _checked_logprobs(value: object) -> int | None:
    """None for none, else how many alternatives to list beside each token's own.

    Raises:
        OptionError: not a whole number from 0 to 20.
    """
    if value is None or isinstance(value, bool):
        return 0 if value else None
    number = _number(value)
    if not (0 <= number <= _MAX_LOGPROBS) or number != int(number):
        raise OptionError(
            f"logprobs must be True or a whole number from 0 to {_MAX_LOGPROBS}, not {value!r}.",
            hint="True gives each token's own log-probability; 5 lists five alternatives beside it.",
            name="logprobs",
            value=value,
        )
    return int(number)


def checked_timeout_s(value: object) -> float | None:
    """Seconds as a number, None for no deadline.

    Raises:
        OptionError: not a number, or below 0.
    """
    if value is None:
        return None
    number = _number(value)
    if not number >= 0:
        raise OptionError(
            f"timeout_s must be a number of seconds from 0, not {value!r}.",
            hint="Leave it out for no deadline.",
            name="timeout_s",
            value=value,
        )
    return float(min(number, _LONGEST_S))


def checked_tokens_per_step(value: object = None) -> int:
    """The most tokens in one piece of a stream, 1 to 512: the argument, else the setting, else 32.

    Numbers outside are brought to the nearest end, fractions are cut off, and of a text its leading digits
    count. What is no number, or infinite, counts as 32, and does not ask the setting.

    Raises:
        OptionError: neither a number nor a text.
    """
    return int(settings.get("tokens_per_step", value))


def checked_switch(value: object, name: str) -> bool:
    """True or False, numpy's too: of a text like ``"no"`` nobody knows whether it was meant as either.

    Raises:
        OptionError: anything else.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise OptionError(
        f"{name} must be True or False, not {value!r}.",
        hint="For a text or a number, say what it means: value == 'yes'",
        name=name,
        value=value,
    )


@dataclass(frozen=True)
class GenerationOptions:
    """How to generate: greedy, up to `max_tokens` new tokens or the first of the `stop` strings.

    Attributes:
        max_tokens: New tokens at most; 0 computes the prompt alone, so that what follows is quick.
        stop: Texts that end the answer; they are not part of it.
        sampling: How a token is picked; greedy by default.
        constraint: What the answer may look like.
        draft: Guess tokens by prompt lookup.
        tokens_per_step: Tokens in one `Chunk` at most, 1 to 512: see `checked_tokens_per_step`.
        logprobs: None, or how many alternatives to list with each token.
        timeout_s: Seconds from the call after which it is cancelled.
        exact: Leave out whatever makes the last bits of the logits depend on how many tokens go in at once
            (drafting and batches, on most quantized weights).
        banned_first: Tokens that the first new one must not be, which is how a second answer is asked for.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    constraint: Constraint | TitleLine | None = None
    draft: Draft | None = None
    tokens_per_step: int = DEFAULT_TOKENS_PER_STEP
    logprobs: int | None = None
    timeout_s: float | None = None
    exact: bool = False
    banned_first: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_tokens", checked_max_tokens(self.max_tokens))
        object.__setattr__(self, "stop", checked_stop(self.stop))
        object.__setattr__(self, "draft", checked_draft(self.draft))
        object.__setattr__(self, "logprobs", _checked_logprobs(self.logprobs))
        object.__setattr__(self, "timeout_s", checked_timeout_s(self.timeout_s))
        object.__setattr__(self, "tokens_per_step", checked_tokens_per_step(self.tokens_per_step))
        object.__setattr__(self, "exact", checked_switch(self.exact, "exact"))


class Watcher(Protocol):
    """Who waits for a generation that runs among others: may end it, and hears of its pieces."""

    @property
    def cancelled_by(self) -> CancelledBy | None:
        """Not None ends the generation before its next step; `Engine.interrupt` makes that come soon."""
        ...

    def hear(self, chunk: Chunk) -> None:
        """Take a piece of a generation that is run in a batch; called between two steps."""
        ...


@dataclass(frozen=True)
class Request:
    """One generation.

    Attributes:
        prompt_ids: Token ids of the prompt.
        options: How to go on from it.
        prefix_tokens: How many of the prompt's first tokens other requests share (a recipe's fixed part): the
            engine then keeps the state of that prefix only. With None it keeps that of the whole prompt,
            which the next turn of a chat extends; that of the answer too where that changes no bit.
        slot: A conversation whose state is kept; its requests run one after the other.
        reuse: False computes the whole prompt, whatever is kept: for measurements.
        watcher: Who waits for it, where many are served at once.
        deadline_s: When it is cancelled, in seconds of `time.perf_counter`, whenever it began: for one of
            several requests that share their time.
    """

    prompt_ids: tuple[int, ...]
    options: GenerationOptions = field(default_factory=GenerationOptions)
    prefix_tokens: int | None = None
    slot: int | str | None = None
    reuse: bool = True
    watcher: Watcher | None = field(default=None, compare=False, repr=False)
    deadline_s: float | None = None


def check_prompt(request: Request, context_length: int) -> None:
    """Make sure that a model with such a context can go on from the prompt.

    Raises:
        OptionError: it has no tokens.
        PromptTooLongError: there is no room for a single new token.
    """
    if not request.prompt_ids:
        raise OptionError("The prompt has no tokens.", hint="Give at least one.", name="prompt_ids", value=())
    if len(request.prompt_ids) >= context_length:
        raise PromptTooLongError(
            f"The prompt has {len(request.prompt_ids):,} tokens; the model's context is "
            f"{context_length:,}, and at least one must be left for the answer.",
            hint="Shorten the text.",
            prompt_tokens=len(request.prompt_ids),
            context_length=context_length,
        )
