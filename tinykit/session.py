"""`TinySession`: what notebooks, scripts and front ends use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tinykit import settings, titles
from tinykit.errors import ClosedError, OptionError
from tinykit.extraction import extract
from tinykit.generation.cache import shared_prefix
from tinykit.generation.request import Completion, GenerationOptions, Request
from tinykit.loading import DEFAULT_MODEL, Loaded, checked_dtype, load
from tinykit.progress import Progress, ProgressEvent
from tinykit.reasons import Reason, Step, explain
from tinykit.recipes import DEFAULT_RECIPE, Recipe, get_recipe
from tinykit.registry import get_model
from tinykit.tokenizer import Message, Tokenizer, as_messages


@dataclass(frozen=True)
class Title:
    """A title with where it came from.

    Attributes:
        text: The title, or None if there is none.
        raw: What the model wrote, empty if it was not asked.
        why: What was done to the reply, in order; the last step says why there is no title.
        recipe: Name of the recipe.
        completion: The model's completion with usage and timings, None if it was not asked.
    """

    text: str | None
    raw: str
    why: tuple[Step, ...]
    recipe: str
    completion: Completion | None = None

    def __str__(self) -> str:
        return self.text or ""

    def explain(self) -> str:
        """The steps as numbered lines."""
        return explain(self.why)


class TinySession:
    """A tiny language model, ready to title, chat and complete.

    Args:
        model: A key from ``tinykit models`` or the path of a ``.gguf`` file.
        recipe: How to make titles: a name, a JSON or TOML file, or a `Recipe`.
        device: Where to compute; ``auto`` and ``cpu`` are known.
        dtype: Precision of the weights; ``auto`` takes the model's own recommendation.
        threads: Threads to compute with.
        progress: False shows nothing; a function gets `ProgressEvent`s; None follows the settings.
        offline: True never uses the network.
        lazy: Load at the first call that needs the model, not now. No title of ``first-words`` needs it.

    Raises:
        UnknownModelError, UnknownRecipeError, OptionError: what was asked for does not exist.
        SourceError: the model's files cannot be had; the kinds say why.
        ModelFileError: they cannot be used.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        recipe: str | Path | Recipe | None = None,
        device: str | None = None,
        dtype: str | None = None,
        threads: int | None = None,
        progress: bool | Callable[[ProgressEvent], None] | None = None,
        offline: bool | None = None,
        lazy: bool = False,
    ) -> None:
        self.spec = get_model(model if model is not None else settings.get("model") or DEFAULT_MODEL)
        self.recipe = get_recipe(recipe if recipe is not None else settings.get("recipe") or DEFAULT_RECIPE)
        checked_dtype(dtype, self.spec)
        self._load_options: dict[str, Any] = {
            "device": device,
            "dtype": dtype,
            "threads": threads,
            "progress": Progress(progress),
            "offline": offline,
        }
        self._lock = threading.Lock()
        self._loaded: Loaded | None = None
        self._is_closed = False
        self._prefixes: dict[Recipe, int] = {}
        if not lazy:
            self.load()

    def load(self) -> Loaded:
        """Load the model if it is not loaded, and return what was loaded."""
        with self._lock:
            if self._is_closed:
                raise ClosedError("This session was closed.", hint="Make a new TinySession.")
            if self._loaded is None:
                self._loaded = load(self.spec, **self._load_options)
            return self._loaded

    def title(self, message: str, *, recipe: str | Path | Recipe | None = None) -> str | None:
        """A short title for the first message of a chat, or None if it needs none or none was found."""
        return self.title_result(message, recipe=recipe).text

    def title_result(self, message: str, *, recipe: str | Path | Recipe | None = None) -> Title:
        """The same with the model's raw reply, every step from it to the title, and timings."""
        if not isinstance(message, str):
            raise OptionError(
                f"The message must be text, not {type(message).__name__}.", name="message", value=message
            )
        chosen = self.recipe if recipe is None else get_recipe(recipe)
        if not titles.has_task(message):
            return Title(None, "", (Step(Reason.NO_TASK),), chosen.name)
        if chosen.method == "first-words":
            raw = titles.first_words(message) or ""
            completion = None
        else:
            completion = self._ask_for_title(message, chosen)
            raw = completion.text
        reason = completion.finish_reason if completion else "stop"
        found = extract(raw, source=message, recipe=chosen, finish_reason=reason)
        return Title(found.text, raw, found.why, chosen.name, completion)

    def chat(
        self,
        messages: Sequence[Message | Mapping[str, str]],
        *,
        max_tokens: int = 256,
        stop: str | Sequence[str] = (),
    ) -> Completion:
        """The model's answer to a chat, decoded greedily.

        Args:
            messages: ``{"role": "system" | "user" | "assistant", "content": text}``, oldest first.
            max_tokens: New tokens at most, from 1; more than 1,024 counts as 1,024.
            stop: Texts that end the answer; they are not part of it.

        Raises:
            OptionError: an argument that cannot be used.
            PromptTooLongError: the chat leaves no room in the model's context.
        """
        turns = as_messages(messages)
        options = GenerationOptions(max_tokens, stop)  # type: ignore[arg-type]  # it accepts one string too
        engine = self.load().engine
        return engine.generate(Request(tuple(engine.tokenizer.encode_chat(turns)), options))

    def complete(
        self,
        prompt: str,
        *,
        system: str | None = None,
        max_tokens: int = 256,
        stop: str | Sequence[str] = (),
    ) -> Completion:
        """The answer to one message; `system` is put before it unless it is blank.

        Raises: as `chat`, and OptionError for an empty prompt.
        """
        if not isinstance(prompt, str) or not prompt.strip():
            raise OptionError(
                f"The prompt must be text that is not empty, not {prompt!r}.", name="prompt", value=prompt
            )
        first = [Message("system", system.strip())] if system and system.strip() else []
        return self.chat([*first, Message("user", prompt)], max_tokens=max_tokens, stop=stop)

    def close(self) -> None:
        """Release the model's memory; closing twice is harmless."""
        with self._lock:
            loaded, self._loaded, self._is_closed = self._loaded, None, True
        if loaded is not None:
            loaded.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._loaded is None:
            state = "closed" if self._is_closed else "not loaded"
            return f"<TinySession {self.spec.key}, {state}>"
        info = self._loaded.engine.backend.info
        return (
            f"<TinySession {self.spec.key} {info.dtype} on {info.device} "
            f"({info.backend}, {info.threads} threads), titles by {self.recipe.name}>"
        )

    def _ask_for_title(self, message: str, recipe: Recipe) -> Completion:
        engine = self.load().engine
        prompt_ids = _title_prompt(engine.tokenizer, recipe, titles.user_turn(message, recipe))
        if recipe not in self._prefixes:
            # what two prompts of different messages have in common is the recipe's own part
            others = [
                _title_prompt(engine.tokenizer, recipe, titles.user_turn(text, recipe)) for text in ("a", "9")
            ]
            self._prefixes[recipe] = shared_prefix(*others)
        request = Request(
            tuple(prompt_ids),
            GenerationOptions(recipe.max_tokens, recipe.stop),
            prefix_tokens=self._prefixes[recipe],
        )
        return engine.generate(request)


def _title_prompt(tokenizer: Tokenizer, recipe: Recipe, user_turn: str) -> list[int]:
    system = [Message("system", recipe.system)] if recipe.system.strip() else []
    return tokenizer.encode_chat([*system, Message("user", user_turn)], prefill=recipe.prefill)
