"""Prompt lookup: what comes next is guessed from where the last tokens stood before.

A title repeats words of its message, an edited text most of the original; the model then confirms several
guessed tokens in one step. The idea is Apoorv Saxena's: https://github.com/apoorvumang/prompt-lookup-decoding
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tinykit.errors import OptionError

_LONGEST = 3  # tokens that are looked up; longer ones hardly ever tell more


class Lookup:
    """Drafts of the next tokens, from the prompt and the answer so far; constant time for each token."""

    def __init__(self, token_ids: Sequence[int], *, minimum: int = 1, maximum: int = 3) -> None:
        """Begin with the prompt; drafts have `minimum` to `maximum` tokens.

        Raises:
            OptionError: `minimum` is below 1 or above `maximum`.
        """
        if not 1 <= minimum <= maximum:
            raise OptionError(
                f"A draft's minimum must be from 1 to its maximum of {maximum}, not {minimum}.",
                hint="For example: draft=(1, 8)",
                name="draft_min",
                value=minimum,
            )
        self._minimum = minimum
        self._maximum = maximum
        self._token_ids: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # n-grams, and where what follows their latest begins
        self.extend(token_ids)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Add tokens that were accepted."""
        tokens = self._token_ids
        for token_id in token_ids:
            # what ends here is known from now on, since it now has a token that follows
            for size in range(1, min(_LONGEST, len(tokens)) + 1):
                self._ends[tuple(tokens[-size:])] = len(tokens)
            tokens.append(token_id)

    def draft(self) -> list[int]:
        """What followed the latest earlier place of the longest end of the text; empty if there is none.

        No more than the minimum where only the last token stood before.
        """
        tokens = self._token_ids
        for size in range(min(_LONGEST, len(tokens)), 0, -1):
            start = self._ends.get(tuple(tokens[-size:]))
            if start is not None:
                # in titles half of the first guesses after one known token were right, 8 % of the second
                found = tokens[start : start + (self._maximum if size > 1 else self._minimum)]
                return found if len(found) >= self._minimum else []
        return []


@dataclass(frozen=True)
class VerifiedToken:
    """A token of a step: its place in the answer, counted from 0, and on the first one the step's text."""

    index: int
    token_id: int
    text: str | None = None


@dataclass(frozen=True)
class VerifyEvent:
    """What became of a step's draft; a step without a draft counts as accepted.

    Attributes:
        kind: "reject" if the model continued otherwise before the end of the draft.
        drafted: Tokens that were guessed.
        accepted: Guesses that the model confirmed.
        tokens: Tokens that the step added to the answer.
        reject_index: The first guess that was wrong, counted from 0; None if none was.
        correction_token_id: What the model said in its place.
        logprob: The sum of the tokens' log-probabilities, where they were asked for.
        ttft_s: On the first event, the seconds to the first token.
    """

    kind: Literal["accept", "reject"]
    drafted: int
    accepted: int
    tokens: tuple[VerifiedToken, ...]
    reject_index: int | None = None
    correction_token_id: int | None = None
    logprob: float | None = None
    ttft_s: float | None = None

    @classmethod
    def of_step(
        cls,
        token_ids: Sequence[int],
        text: str,
        *,
        first_index: int,
        drafted: int = 0,
        accepted: int = 0,
        correction_token_id: int | None = None,
        logprob: float | None = None,
        ttft_s: float | None = None,
    ) -> VerifyEvent:
        """The event of a step that added `token_ids`; `first_index` is the answer's length before it.

        `correction_token_id` is the model's own token after the accepted ones, which may end the answer and
        so be none of `token_ids`; it counts where a guess was wrong.
        """
        is_rejected = accepted < drafted
        return cls(
            kind="reject" if is_rejected else "accept",
            drafted=drafted,
            accepted=accepted,
            tokens=tuple(
                VerifiedToken(first_index + place, token_id, None if place else text)
                for place, token_id in enumerate(token_ids)
            ),
            reject_index=accepted if is_rejected else None,
            correction_token_id=correction_token_id if is_rejected else None,
            logprob=logprob,
            ttft_s=ttft_s,
        )

    @property
    def is_valid(self) -> bool:
        """Whether the fields agree with each other; listeners are not told of others."""
        is_rejected = self.accepted != self.drafted
        return (
            0 <= self.accepted <= self.drafted
            and self.kind == ("reject" if is_rejected else "accept")
            and self.reject_index == (self.accepted if is_rejected else None)
            and (self.correction_token_id is not None) == is_rejected
            and not (self.logprob is not None and math.isnan(self.logprob))
            and self._has_running_tokens()
        )

    def _has_running_tokens(self) -> bool:
        first = self.tokens[0].index if self.tokens else 0
        return all(
            token.index == first + place and (token.text is None) == (place > 0)
            for place, token in enumerate(self.tokens)
        )
