"""OpenVINO GenAI: paged attention with its prefix cache, continuous batching, prompt lookup if asked for."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from tinykit.peers.engines.base import Answer, Setup
from tinykit.peers.work import prompt_text

_CACHE_GB = 1
_GUESSES, _NGRAM = 3, 3  # of prompt lookup


class Engine:
    """A pipeline; one with continuous batching where several prompts shall run at once."""

    def __init__(self, setup: Setup) -> None:
        self._genai: Any = import_module("openvino_genai")
        self._has_lookup = bool(setup.options.get("lookup"))
        scheduler = self._genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = _CACHE_GB
        scheduler.max_num_seqs = max(setup.batch, 1)
        more: dict[str, Any] = {"prompt_lookup": True} if self._has_lookup else {}
        self._pipeline = self._genai.LLMPipeline(
            setup.files, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=setup.threads, **more
        )

    def title(self, message: str, max_tokens: int, stop: Sequence[str]) -> Answer:
        """One answer."""
        found = self._pipeline.generate([prompt_text(message)], self._config(max_tokens, stop))
        metrics = found.perf_metrics
        ttft_s = metrics.get_ttft().mean / 1000
        return Answer(
            found.texts[0], ttft_s, metrics.get_num_generated_tokens(), metrics.get_num_input_tokens()
        )

    def titles(self, messages: Sequence[str], max_tokens: int, stop: Sequence[str]) -> list[Answer]:
        """All answers; the scheduler takes in as many as `batch` at once."""
        config = self._config(max_tokens, stop)
        found = self._pipeline.generate([prompt_text(message) for message in messages], config)
        return [Answer(text, None, 0, None) for text in found.texts]

    def _config(self, max_tokens: int, stop: Sequence[str]) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.do_sample = False
        config.apply_chat_template = False
        if stop:
            config.stop_strings = set(stop)
        else:
            config.ignore_eos = True
        if self._has_lookup:
            config.num_assistant_tokens, config.max_ngram_size = _GUESSES, _NGRAM
        return config
