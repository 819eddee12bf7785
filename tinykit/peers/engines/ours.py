"""tinykit itself: the engine of a session, asked as `TinySession.title` asks for its first answer."""

from __future__ import annotations

from collections.abc import Sequence

from tinykit.generation.batch import one_request, run_tasks
from tinykit.generation.request import Draft, GenerationOptions, Request
from tinykit.generation.result import Completion
from tinykit.peers.engines.base import Answer, Setup, shared
from tinykit.peers.work import PREFILL, SYSTEM
from tinykit.session import TinySession
from tinykit.tokenizer import Message

_DRAFT = Draft(1, 4)


class Engine:
    """A session's engine, with or without guesses."""

    def __init__(self, setup: Setup) -> None:
        dtype = setup.options.get("dtype")
        session = TinySession(
            setup.files, dtype=str(dtype) if dtype else None, threads=setup.threads, progress=False
        )
        self._engine = session.load().engine
        self._ends = self._engine.eos_ids
        self._batch = setup.batch
        self._draft = _DRAFT if setup.options.get("draft") else None
        self._prefix_tokens = shared(self._prompt("a"), self._prompt("9"))

    def title(self, message: str, max_tokens: int, stop: Sequence[str]) -> Answer:
        """One answer."""
        return _answer(self._engine.generate(self._request(message, max_tokens, stop)))

    def titles(self, messages: Sequence[str], max_tokens: int, stop: Sequence[str]) -> list[Answer]:
        """All answers, in shared steps."""
        tasks = (one_request(self._request(message, max_tokens, stop)) for message in messages)
        found = dict(run_tasks(self._engine, tasks, batch_size=self._batch))
        completions = [found[index] for index in range(len(messages))]
        return [_answer(one) for one in completions if isinstance(one, Completion)]

    def _prompt(self, message: str) -> list[int]:
        messages = [Message("system", SYSTEM), Message("user", message)]
        return self._engine.tokenizer.encode_chat(messages, prefill=PREFILL)

    def _request(self, message: str, max_tokens: int, stop: Sequence[str]) -> Request:
        # all tokens are wanted where nothing stops them: also those after the end of the text
        self._engine.eos_ids = self._ends if stop else frozenset()
        options = GenerationOptions(max_tokens, tuple(stop), draft=self._draft)
        return Request(tuple(self._prompt(message)), options, self._prefix_tokens)


def _answer(completion: Completion) -> Answer:
    usage = completion.usage
    return Answer(completion.text, completion.timings.ttft_s, len(completion.token_ids), usage.prompt_tokens)
