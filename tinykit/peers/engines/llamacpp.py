"""llama.cpp through the wheel xllamacpp: its server in this process, without a socket, prompt cache on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from tinykit.peers.engines.base import Answer, Setup
from tinykit.peers.work import prompt_text

_CONTEXT = 1536  # tokens for each prompt that runs at once


class Engine:
    """A server with a slot for each prompt that shall run at once."""

    def __init__(self, setup: Setup) -> None:
        library: Any = import_module("xllamacpp")
        params = library.CommonParams()
        params.model.path = setup.files
        params.n_ctx = _CONTEXT * setup.batch
        params.n_parallel = self._batch = setup.batch
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = setup.threads
        params.n_gpu_layers = 0
        params.fit_params = False
        params.verbosity = 0
        self._server = library.Server(params)

    def title(self, message: str, max_tokens: int, stop: Sequence[str]) -> Answer:
        """One answer."""
        found = self._server.handle_completions(
            {
                "prompt": prompt_text(message),
                "max_tokens": max_tokens,
                "temperature": 0,
                "stop": list(stop),
                "cache_prompt": True,
                "ignore_eos": not stop,
            }
        )
        reply = json.loads(found) if isinstance(found, str | bytes) else found
        if "choices" not in reply:
            raise RuntimeError(f"llama.cpp answered {json.dumps(reply)[:300]}")
        usage = reply["usage"]
        ttft_s = reply["timings"]["prompt_ms"] / 1000
        return Answer(reply["choices"][0]["text"], ttft_s, usage["completion_tokens"], usage["prompt_tokens"])

    def titles(self, messages: Sequence[str], max_tokens: int, stop: Sequence[str]) -> list[Answer]:
        """All answers, from as many callers as there are slots."""
        with ThreadPoolExecutor(self._batch) as pool:
            return list(pool.map(lambda message: self.title(message, max_tokens, stop), messages))
