"""Answers as the API has them: whole, or as server-sent events.

https://platform.openai.com/docs/api-reference/chat/object and …/chat/streaming
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from tinykit import __version__
from tinykit.generation.result import Completion
from tinykit.generation.sampling import TokenLogprob
from tinykit.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"
_LOWEST = -9999.0  # what the API writes for tokens that are as good as impossible; JSON has no infinity


def as_json(value: object) -> bytes:
    """UTF-8; half a surrogate pair, which that cannot hold, stays the escape that it came as."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + as_json(value) + b"\n\n"


class Tokens:
    """What the tokens of a model are as text, for log-probabilities."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _bytes(self) -> list[bytes]:
        return self._tokenizer.token_bytes()

    def logprobs(self, found: Iterable[TokenLogprob]) -> dict[str, Any]:
        """The field `logprobs` of a choice."""
        content = [
            {
                **self._token(one.token_id, one.logprob),
                "top_logprobs": [self._token(token_id, value) for token_id, value in one.top],
            }
            for one in found
        ]
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        """A control token has no text, and neither has a row of the logits without a token."""
        data = self._bytes[token_id] if token_id < len(self._bytes) else b""
        return {
            "token": data.decode("utf-8", "replace"),
            "logprob": max(_LOWEST, logprob),
            "bytes": list(data) or None,
        }


class Wire:
    """One answer's objects: they have its id, its time and its model in common."""

    def __init__(self, model: str, tokens: Tokens | None) -> None:
        """Begin an answer; without `tokens` it has no log-probabilities."""
        self._tokens = tokens
        self._common = {
            "id": f"chatcmpl-{secrets.token_hex(16)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"tinykit-{__version__}",
        }

    def whole(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """An answer that was waited for."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": one.text, "refusal": None},
                "logprobs": self._logprobs(one.logprobs),
                "finish_reason": one.finish_reason,
            }
            for index, one in enumerate(completions)
        ]
        return {
            **self._common,
            "object": "chat.completion",
            "choices": choices,
            "usage": usage(completions),
        }

    def piece(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        logprobs: Sequence[TokenLogprob] = (),
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        """A piece of the choice `index`."""
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(logprobs) if logprobs else None,
            "finish_reason": finish_reason,
        }
        return {**self._common, "object": "chat.completion.chunk", "choices": [choice]}

    def usage_piece(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """The last piece, if usage was asked for."""
        return {
            **self._common,
            "object": "chat.completion.chunk",
            "choices": [],
            "usage": usage(completions),
        }

    def _logprobs(self, found: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        return None if self._tokens is None else self._tokens.logprobs(found)


def usage(completions: Sequence[Completion]) -> dict[str, Any]:
    """Tokens of an answer: the prompt counts once, however many choices were made of it."""
    prompt = completions[0].usage.prompt_tokens
    completion = sum(one.usage.completion_tokens for one in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": completions[0].usage.kv_reused_tokens},
    }


def model_object(key: str, created: int) -> dict[str, Any]:
    """A model of `/v1/models`."""
    return {"id": key, "object": "model", "created": created, "owned_by": "tinykit"}
