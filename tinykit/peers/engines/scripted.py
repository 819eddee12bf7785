"""An engine for tests: it answers by rote, at once, and fails where it is told to."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tinykit.peers.engines.base import Answer, Setup, cut
from tinykit.peers.work import prompt_text


class Engine:
    """The first words of a message are its title.

    Its options: `fails` is where it fails ("load", "title" or "exit", which ends the process without a word);
    `ttft_s` is what it says of its first token; `prompt_tokens` how many more tokens it counts than others.
    """

    def __init__(self, setup: Setup) -> None:
        self._options = setup.options
        print("a library that talks on standard output")  # noqa: T201
        if self._options.get("fails") == "load":
            raise RuntimeError("no such weights")

    def title(self, message: str, max_tokens: int, stop: Sequence[str]) -> Answer:
        """One answer."""
        if self._options.get("fails") == "title":
            raise RuntimeError("out of tokens")
        if self._options.get("fails") == "exit":
            os._exit(9)
        words = [*message.split()[:4], "</title>"]
        count = len(words) if stop else max_tokens
        text = cut(" ".join(words[:max_tokens]), stop).strip()
        ttft_s = self._options.get("ttft_s", 0.001)
        more = self._options.get("prompt_tokens", 0)
        assert isinstance(ttft_s, float) and isinstance(more, int)
        return Answer(text, ttft_s, count, len(prompt_text(message).split()) + more)

    def titles(self, messages: Sequence[str], max_tokens: int, stop: Sequence[str]) -> list[Answer]:
        """All answers."""
        return [self.title(message, max_tokens, stop) for message in messages]
