"""What an engine's file gives: a class `Engine` that loads once and writes titles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Setup:
    """What an engine is made with.

    Attributes:
        files: Its weights, a file or a folder; what a key of the registry is to tinykit.
        threads: Threads to compute with.
        batch: How many prompts it will be asked for at once.
        options: The extras, as in `tinykit.peers.engines.PEERS`.
    """

    files: str
    threads: int
    batch: int
    options: dict[str, object]


@dataclass(frozen=True)
class Answer:
    """What an engine wrote.

    Attributes:
        text: Without the text that stopped it.
        ttft_s: Seconds to the first token; None where the engine does not tell.
        tokens: How many it decoded, with those of the stop text.
        prompt_tokens: How many its own tokenizer made of the prompt; None where it does not tell.
    """

    text: str
    ttft_s: float | None
    tokens: int
    prompt_tokens: int | None


class Engine(Protocol):
    """A loaded engine."""

    def title(self, message: str, max_tokens: int, stop: Sequence[str]) -> Answer:
        """One answer, greedily; without `stop` exactly `max_tokens` tokens where the engine can."""

    def titles(self, messages: Sequence[str], max_tokens: int, stop: Sequence[str]) -> list[Answer]:
        """The answers to all, as many at once as the engine was set up for."""


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two prompts have in common."""
    return next(
        (at for at, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1]), min(len(a), len(b))
    )


def cut(text: str, stop: Sequence[str]) -> str:
    """The text before the first stop text."""
    return min((text.split(end)[0] for end in stop), key=len, default=text)
