"""onnxruntime-genai: one generator that is rewound to what two prompts have in common."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from tinykit.peers.engines.base import Answer, Setup, cut, shared
from tinykit.peers.work import prompt_text

_CONTEXT = 2048
_NEVER = 3  # a token that this model does not write: <repo_name>


class Engine:
    """A generator and the tokens that it has seen."""

    def __init__(self, setup: Setup) -> None:
        library: Any = import_module("onnxruntime_genai")
        config = library.Config(setup.files)
        options = {"intra_op_num_threads": setup.threads}
        self._ends = set(json.loads(_read(setup.files))["model"]["eos_token_id"])
        # it shall not end by itself where a fixed number of tokens is wanted; `title` looks for the end
        model = {"decoder": {"session_options": options}, "eos_token_id": [_NEVER]}
        overlay = {"model": model, "search": {"max_length": _CONTEXT}}
        config.overlay(json.dumps(overlay))
        self._model = library.Model(config)
        self._tokenizer = library.Tokenizer(self._model)
        params = library.GeneratorParams(self._model)
        params.set_search_options(max_length=_CONTEXT, do_sample=False)
        self._generator = library.Generator(self._model, params)
        self._seen: list[int] = []

    def title(self, message: str, max_tokens: int, stop: Sequence[str]) -> Answer:
        """One answer."""
        started = time.perf_counter()
        prompt = [int(token) for token in self._tokenizer.encode(prompt_text(message))]
        kept = min(shared(prompt, self._seen), len(prompt) - 1)
        if self._seen:
            self._generator.rewind_to(kept)
        self._generator.append_tokens(prompt[kept:])
        stream = self._tokenizer.create_stream()
        text, new = "", list[int]()
        ttft_s: float | None = None
        while len(new) < max_tokens and not self._is_over(text, new, stop):
            self._generator.generate_next_token()
            new.append(int(self._generator.get_next_tokens()[0]))
            ttft_s = ttft_s if ttft_s is not None else time.perf_counter() - started
            text += stream.decode(new[-1])
        self._seen = [*prompt, *new][:-1]
        return Answer(cut(text, stop), ttft_s, len(new), len(prompt))

    def titles(self, messages: Sequence[str], max_tokens: int, stop: Sequence[str]) -> list[Answer]:
        """One by one."""
        return [self.title(message, max_tokens, stop) for message in messages]

    def _is_over(self, text: str, new: Sequence[int], stop: Sequence[str]) -> bool:
        return bool(new and stop) and (new[-1] in self._ends or any(end in text for end in stop))


def _read(folder: str) -> str:
    from pathlib import Path

    return (Path(folder) / "genai_config.json").read_text(encoding="utf-8")
