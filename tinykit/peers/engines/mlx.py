"""mlx-lm with its prompt cache, trimmed to what two prompts have in common. Meant for Apple silicon."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from tinykit.peers.engines.base import Answer, Setup, cut, shared
from tinykit.peers.work import prompt_text


class Engine:
    """A model with one prompt cache; it computes where mlx computes by default."""

    def __init__(self, setup: Setup) -> None:
        library: Any = import_module("mlx_lm")
        self._caching: Any = import_module("mlx_lm.models.cache")
        self._stream: Any = library.stream_generate
        self._model, self._tokenizer = library.load(setup.files)
        self._cache = self._caching.make_prompt_cache(self._model)
        self._seen: list[int] = []

    def title(self, message: str, max_tokens: int, stop: Sequence[str]) -> Answer:
        """One answer."""
        started = time.perf_counter()
        prompt = list(self._tokenizer.encode(prompt_text(message), add_special_tokens=False))
        kept = min(shared(prompt, self._seen), len(prompt) - 1)
        self._caching.trim_prompt_cache(self._cache, len(self._seen) - kept)
        text, new = "", list[int]()
        ttft_s: float | None = None
        pieces = self._stream(
            self._model, self._tokenizer, prompt[kept:], max_tokens=max_tokens, prompt_cache=self._cache
        )
        for piece in pieces:
            ttft_s = ttft_s if ttft_s is not None else time.perf_counter() - started
            new.append(int(piece.token))
            text += piece.text
            if stop and any(end in text for end in stop):
                break
        pieces.close()
        self._seen = [*prompt, *new][: self._cache[0].offset]
        return Answer(cut(text, stop), ttft_s, len(new), len(prompt))

    def titles(self, messages: Sequence[str], max_tokens: int, stop: Sequence[str]) -> list[Answer]:
        """One by one."""
        return [self.title(message, max_tokens, stop) for message in messages]
