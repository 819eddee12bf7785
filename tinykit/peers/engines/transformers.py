"""transformers in fp32 on torch, with the state of the prompts' common beginning kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from tinykit.peers.engines.base import Answer, Setup, cut, shared
from tinykit.peers.work import prompt_text


class Engine:
    """A model, its tokenizer, and the state of what all prompts begin with."""

    def __init__(self, setup: Setup) -> None:
        self._torch: Any = import_module("torch")
        library: Any = import_module("transformers")
        self._torch.set_num_threads(setup.threads)
        self._tokenizer = library.AutoTokenizer.from_pretrained(setup.files)
        self._tokenizer.padding_side = "left"
        self._tokenizer.pad_token = self._tokenizer.pad_token or self._tokenizer.eos_token
        self._model = library.AutoModelForCausalLM.from_pretrained(setup.files, dtype="float32").eval()
        self._cache_type = library.DynamicCache
        self._batch = setup.batch
        self._prefix = shared(self._ids("a"), self._ids("9"))
        self._cache: Any = None

    def title(self, message: str, max_tokens: int, stop: Sequence[str]) -> Answer:
        """One answer: the prompt in one step, the tokens one by one."""
        started = time.perf_counter()
        ids = self._ids(message)
        new: list[int] = []
        ttft_s: float | None = None
        with self._torch.inference_mode():
            cache, fed = self._begun(ids), ids[self._prefix :]
            while len(new) < max_tokens:
                logits = self._model(
                    self._torch.tensor([fed]), past_key_values=cache, logits_to_keep=1
                ).logits
                fed = [int(logits[0, -1].argmax())]
                new += fed
                ttft_s = ttft_s if ttft_s is not None else time.perf_counter() - started
                text = self._tokenizer.decode(new)
                if stop and (new[-1] == self._tokenizer.eos_token_id or any(end in text for end in stop)):
                    break
            cache.crop(self._prefix)
        return Answer(cut(text, stop), ttft_s, len(new), len(ids))

    def titles(self, messages: Sequence[str], max_tokens: int, stop: Sequence[str]) -> list[Answer]:
        """Batches as `generate` takes them, padded to their longest prompt."""
        found = []
        more = {"stop_strings": list(stop), "tokenizer": self._tokenizer} if stop else {}
        for start in range(0, len(messages), self._batch):
            texts = [prompt_text(message) for message in messages[start : start + self._batch]]
            given = self._tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
            with self._torch.inference_mode():
                rows = self._model.generate(
                    **given, max_new_tokens=max_tokens, do_sample=False, **more,
                    pad_token_id=self._tokenizer.pad_token_id,
                )  # fmt: skip
            new = rows[:, given["input_ids"].shape[1] :]
            texts = self._tokenizer.batch_decode(new, skip_special_tokens=True)
            found += [Answer(cut(text, stop), None, 0, None) for text in texts]
        return found

    def _ids(self, message: str) -> list[int]:
        return list(self._tokenizer(prompt_text(message), add_special_tokens=False)["input_ids"])

    def _begun(self, ids: Sequence[int]) -> Any:
        """A state that has seen the beginning."""
        if self._cache is None:
            self._cache = self._cache_type()
            fed = self._torch.tensor([list(ids[: self._prefix])])
            self._model(fed, past_key_values=self._cache, logits_to_keep=1)
        return self._cache
