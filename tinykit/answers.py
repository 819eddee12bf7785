"""What a session answers: completions, chats and streams, one at a time or many together."""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack, overload

from tinykit.call_options import CallOptions, generation_options, names_options, takes_call_options
from tinykit.errors import OptionError
from tinykit.generation.batch import DEFAULT_BATCH_SIZE, Task, samples
from tinykit.generation.engine import Engine
from tinykit.generation.judging import Judge
from tinykit.generation.lookup import VerifyEvent
from tinykit.generation.request import GenerationOptions, Request, checked_switch
from tinykit.generation.result import Chunk, Completion
from tinykit.generation.saving import restore_state, save_state
from tinykit.generation.slots import checked_slot
from tinykit.generation.stream import Stream
from tinykit.interrupts import with_partial
from tinykit.many import as_list, checked_count, failed_completion, prompt_messages, run_in_order
from tinykit.progress import Progress, ProgressEvent
from tinykit.tokenizer import Message


@dataclass(frozen=True)
class Asked:
    """A prompt with all that was asked about it, before a model has seen it."""

    turns: tuple[Message, ...]
    options: GenerationOptions
    slot: int | str | None = None
    reuse: bool = True

    def request(self, engine: Engine) -> Request:
        """The same in the engine's tokens."""
        prompt_ids = tuple(engine.tokenizer.encode_chat(self.turns))
        return Request(prompt_ids, self.options, slot=self.slot, reuse=self.reuse)


class Answers(ABC):
    """The part of `TinySession` that answers prompts and chats."""

    _progress: Progress

    @abstractmethod
    def _chat_engine(self) -> Engine:
        """The engine that chats; the model is loaded first."""

    @abstractmethod
    def _engines(self) -> list[Engine]:
        """The engines of the models that are loaded."""

    @abstractmethod
    def _judges(self) -> list[Judge]:
        """The judges that are loaded."""

    @overload
    def chat(
        self,
        messages: Sequence[Message | Mapping[str, str]],
        *,
        n: None = None,
        slot: int | str | None = None,
        reuse: bool = True,
        on_chunk: Callable[[Chunk], object] | None = None,
        on_verify: Callable[[VerifyEvent], object] | None = None,
        **options: Unpack[CallOptions],
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Message | Mapping[str, str]],
        *,
        n: int,
        slot: int | str | None = None,
        reuse: bool = True,
        **options: Unpack[CallOptions],
    ) -> list[Completion]: ...

    @takes_call_options
    def chat(
        self,
        messages: Sequence[Message | Mapping[str, str]],
        *,
        n: int | None = None,
        slot: int | str | None = None,
        reuse: bool = True,
        on_chunk: Callable[[Chunk], object] | None = None,
        on_verify: Callable[[VerifyEvent], object] | None = None,
        **options: Unpack[CallOptions],
    ) -> Completion | list[Completion]:
        """The model's answer to a chat; the keywords that the calls have in common are `CallOptions`.

        Args:
            messages: ``{"role": "system" | "user" | "assistant", "content": text}``, oldest first.
            n: So many answers as a list, from one pass over the prompt. Without a `temperature` all are the
                same, of which a `UserWarning` tells.
            slot: Keep the conversation's state under this number or name, until `free_slot`, or until newer
                slots need the memory that `cache_bytes` allows.
            reuse: False computes the whole prompt anew.
            on_chunk: Called with each piece of text, before the next is made.
            on_verify: Called with what became of each step's draft.
            options: How to generate.

        Raises:
            OptionError: an argument that cannot be used.
            PromptTooLongError: the chat leaves no room in the model's context.
            KeyboardInterrupt: Ctrl-C; its `partial` is the completion so far.
        """
        n = _checked_listeners(n, on_chunk=on_chunk, on_verify=on_verify)
        asked = self._asked(prompt_messages(messages), slot, reuse, options)
        _warn_if_alike(n, asked.options)
        return with_partial(lambda: self._answer(asked, n, on_chunk, on_verify), lambda: _unsaid(n))

    @overload
    def complete(
        self,
        prompt: str,
        *,
        system: str | None = None,
        n: None = None,
        slot: int | str | None = None,
        reuse: bool = True,
        on_chunk: Callable[[Chunk], object] | None = None,
        on_verify: Callable[[VerifyEvent], object] | None = None,
        **options: Unpack[CallOptions],
    ) -> Completion: ...

    @overload
    def complete(
        self,
        prompt: str,
        *,
        system: str | None = None,
        n: int,
        slot: int | str | None = None,
        reuse: bool = True,
        **options: Unpack[CallOptions],
    ) -> list[Completion]: ...

    @takes_call_options
    def complete(
        self,
        prompt: str,
        *,
        system: str | None = None,
        n: int | None = None,
        slot: int | str | None = None,
        reuse: bool = True,
        on_chunk: Callable[[Chunk], object] | None = None,
        on_verify: Callable[[VerifyEvent], object] | None = None,
        **options: Unpack[CallOptions],
    ) -> Completion | list[Completion]:
        """The answer to one message; `system` is put before it unless it is blank.

        Raises: as `chat`, and OptionError for an empty prompt.
        """
        n = _checked_listeners(n, on_chunk=on_chunk, on_verify=on_verify)
        asked = self._asked(prompt_messages(prompt, system), slot, reuse, options)
        _warn_if_alike(n, asked.options)
        return with_partial(lambda: self._answer(asked, n, on_chunk, on_verify), lambda: _unsaid(n))

    @takes_call_options
    def stream(
        self,
        prompt: str | Sequence[Message | Mapping[str, str]],
        *,
        system: str | None = None,
        slot: int | str | None = None,
        reuse: bool = True,
        **options: Unpack[CallOptions],
    ) -> Stream:
        """The answer to a message or a chat piece by piece; `.result` is the completion once it has ended.

        Leaving the loop or closing the stream cancels the rest.

        Raises: as `complete`.
        """
        return self._open(self._asked(prompt_messages(prompt, system), slot, reuse, options))

    @takes_call_options
    def complete_many(
        self,
        prompts: Iterable[str | Sequence[Message | Mapping[str, str]]],
        *,
        system: str | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        progress: bool | Callable[[ProgressEvent], None] | None = None,
        **options: Unpack[CallOptions],
    ) -> list[Completion]:
        """Answers to many messages or chats, in their order; what failed has its `error`, and loses no other.

        `timeout_s` counts for all of them together: those that are not done by then are cancelled. `progress`
        is another than the session's, for this call.

        Raises:
            OptionError: an option that cannot be used.
            KeyboardInterrupt: Ctrl-C; its `partial` lists the completions so far, those under way as far as
                they got, and None for those that wait.
        """
        started = time.perf_counter()
        checked, size = generation_options(options), checked_count(batch_size, "batch_size")
        shown = self._progress if progress is None else Progress(progress)
        items = as_list(prompts, "prompts")
        return with_partial(
            lambda: self._answer_all(items, system, checked, size, started, shown),
            lambda: [None] * len(items),
        )

    def cancel(self) -> int:
        """End whatever this session is doing, from another thread; returns how many calls that was.

        Generations return what there is, with ``finish_reason="cancelled"``; choices and judgments raise
        `ForwardInterrupted`.
        """
        return sum(engine.cancel() for engine in self._engines()) + sum(
            judge.cancel() for judge in self._judges()
        )

    @names_options
    def save_state(self, path: str | Path, *, slot: int | str | None = None) -> int:
        """Write the state of a slot, or of the last chat, to a file; returns its size in bytes.

        Titles and choices do not count as chats.

        Raises:
            OptionError: there is nothing to save.
            CacheError: the file cannot be written; its folder must be there.
        """
        return save_state(self._chat_engine(), path, slot=checked_slot(slot))

    @names_options
    def restore_state(self, path: str | Path, *, slot: int | str | None = None) -> int:
        """Go on from a file of `save_state`: a chat that begins like the saved one computes only the rest.

        Returns:
            How many tokens the state has seen.

        Raises:
            ModelFileError: the file is damaged, or belongs to another model, build or precision.
        """
        return restore_state(self._chat_engine(), path, slot=checked_slot(slot))

    @names_options
    def free_slot(self, slot: int | str) -> bool:
        """Forget a slot's state; False if there was none.

        Raises:
            BackendError: a generation is running in it.
        """
        name = checked_slot(slot)
        freed = [engine.slots.free(name) for engine in self._engines()] if name is not None else []
        return any(freed)

    def _asked(
        self,
        turns: Sequence[Message],
        slot: int | str | None,
        reuse: bool,
        options: Mapping[str, Any],
    ) -> Asked:
        return Asked(
            tuple(turns), generation_options(options), checked_slot(slot), checked_switch(reuse, "reuse")
        )

    def _answer(
        self,
        asked: Asked,
        n: int | None,
        on_chunk: Callable[[Chunk], object] | None,
        on_verify: Callable[[VerifyEvent], object] | None,
    ) -> Completion | list[Completion]:
        engine = self._chat_engine()
        request = asked.request(engine)
        if n is None:
            return engine.generate(request, on_chunk=on_chunk, on_verify=on_verify)
        return samples(engine, request, n)

    def _open(self, asked: Asked) -> Stream:
        engine = self._chat_engine()
        return engine.stream(asked.request(engine))

    def _answer_all(
        self,
        prompts: Sequence[Any],
        system: str | None,
        options: GenerationOptions,
        size: int,
        started: float,
        progress: Progress,
    ) -> list[Completion]:
        tasks = [self._completion_task(one, system, options, started) for one in prompts]
        engine = self._chat_engine() if tasks else None
        return run_in_order(
            engine, tasks, failed_completion, batch_size=size, progress=progress, unit="completions"
        )

    def _completion_task(
        self,
        prompt: str | Sequence[Message | Mapping[str, str]],
        system: str | None,
        options: GenerationOptions,
        started: float,
    ) -> Task[Completion]:
        turns = prompt_messages(prompt, system)
        if options.timeout_s is not None:  # of the whole call; what is left of it for this one
            left = options.timeout_s - (time.perf_counter() - started)
            options = replace(options, timeout_s=max(0.0, left))
        prompt_ids = tuple(self._chat_engine().tokenizer.encode_chat(turns))
        completion: Completion = yield Request(prompt_ids, options)
        return completion


def _checked_listeners(n: int | None, **listeners: Callable[..., object] | None) -> int | None:
    """`n` as a number, once it is sure that all who want to listen can be told."""
    for name, listener in listeners.items():
        if listener is not None and not callable(listener):
            raise OptionError(
                f"{name} must be a function, not {listener!r}.",
                hint="Give a function of one argument, such as print.",
                name=name,
                value=listener,
            )
        if listener is not None and n is not None:
            raise OptionError(
                f"{name} hears of one answer, and n asks for several.",
                hint=f"Leave {name} out, or ask for one answer at a time.",
                name=name,
                value=listener,
            )
    return None if n is None else checked_count(n, "n")


def _unsaid(n: int | None) -> Completion | list[Completion]:
    """What there is of an answer, or of so many, before the model was asked."""
    nothing = Completion.nothing(cancelled_by="interrupt")
    return nothing if n is None else [nothing] * n


def _warn_if_alike(n: int | None, options: GenerationOptions) -> None:
    """Tell the caller of `chat` or `complete` that no chance takes part in several answers."""
    if n is not None and n > 1 and options.sampling.is_greedy:
        warnings.warn(
            f"n={n} asks for several answers, but without a temperature each takes the likeliest tokens, so "
            f"all {n} are the same. For different ones: temperature=1.0",
            stacklevel=3,
        )
