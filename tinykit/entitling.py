"""What a session says of titles: one message or chat, or many of them together."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tinykit.call_options import names_options
from tinykit.errors import OptionError, TinykitError
from tinykit.generation.batch import DEFAULT_BATCH_SIZE, Task
from tinykit.generation.engine import Engine
from tinykit.generation.request import checked_timeout_s
from tinykit.generation.result import Chunk
from tinykit.interrupts import with_partial
from tinykit.language import is_english
from tinykit.loaded_model import Loaded
from tinykit.many import as_done, as_list, checked_count, failed_title, run_in_order
from tinykit.plurals import counted
from tinykit.progress import Progress, ProgressEvent
from tinykit.reasons import Reason, Step
from tinykit.recipes import Recipe, get_recipe
from tinykit.titles import has_task, has_text, prepare_conversation
from tinykit.titling import Title, first_words_title, fixed_prefix, model_title, no_task, title_task
from tinykit.tokenizer import Message, as_messages


class Entitling:
    """The part of `TinySession` that makes titles."""

    recipe: Recipe
    _progress: Progress
    _prefixes: dict[Recipe, int]

    def load(self) -> Loaded:
        """The session's model, loaded now if it is not."""
        raise NotImplementedError

    @names_options
    def title(
        self,
        message: str | Sequence[Message | Mapping[str, str]],
        *,
        recipe: str | Path | Recipe | None = None,
        timeout_s: float | None = None,
    ) -> str | None:
        """A short title for a message or a chat, or None if it needs none or none was found."""
        return self.title_result(message, recipe=recipe, timeout_s=timeout_s).text

    @names_options
    def title_result(
        self,
        message: str | Sequence[Message | Mapping[str, str]],
        *,
        recipe: str | Path | Recipe | None = None,
        timeout_s: float | None = None,
        on_chunk: Callable[[Chunk], object] | None = None,
    ) -> Title:
        """The same with the model's raw reply, every step from it to the title, and timings.

        Args:
            message: The first message of a chat, or its messages, of which the last six count.
            recipe: Another recipe than the session's, for this title.
            timeout_s: Seconds for all that the model is asked, without its loading. Then the best answer so
                far counts, or the recipe's fallback, and `Reason.TIMEOUT` is among the steps.
            on_chunk: Called with each piece of the model's first answer, before the next is made. The checks
                may prefer another answer, or the message's own words.

        Raises:
            OptionError: `message` is neither text nor messages, or `timeout_s` no time.
            KeyboardInterrupt: Ctrl-C; its `partial` is the `Title` so far, also from `title`.
        """
        chosen = self.recipe if recipe is None else get_recipe(recipe)
        timeout_s = checked_timeout_s(timeout_s)

        def ask() -> Title:
            text = message_text(message, chosen)
            found = without_model(text, chosen)
            return self._title(text, chosen, timeout_s, on_chunk) if found is None else found

        return with_partial(ask, lambda: failed_title(None, chosen))

    def _title(
        self,
        text: str,
        recipe: Recipe,
        timeout_s: float | None,
        on_chunk: Callable[[Chunk], object] | None = None,
    ) -> Title:
        engine = self.load().engine
        deadline_s = deadline_after(timeout_s)
        prefix_tokens = self._prefix_tokens(engine, recipe)
        return model_title(engine, text, recipe, prefix_tokens, deadline_s=deadline_s, on_chunk=on_chunk)

    def _title_task(
        self,
        message: str | Sequence[Message | Mapping[str, str]],
        recipe: Recipe,
        exact: bool,
        deadline_s: float | None,
    ) -> Task[Title]:
        text = message_text(message, recipe)
        if (found := without_model(text, recipe)) is not None:
            return found
        engine = self.load().engine
        prefix_tokens = self._prefix_tokens(engine, recipe)
        task = title_task(engine, text, recipe, prefix_tokens, exact=exact, deadline_s=deadline_s)
        return (yield from task)

    def _prefix_tokens(self, engine: Engine, recipe: Recipe) -> int:
        if recipe not in self._prefixes:
            self._prefixes[recipe] = fixed_prefix(engine.tokenizer, recipe)
        return self._prefixes[recipe]

    @names_options
    def titles(
        self,
        messages: Iterable[str | Sequence[Message | Mapping[str, str]]],
        *,
        recipe: str | Path | Recipe | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        exact: bool = False,
        timeout_s: float | None = None,
    ) -> list[str | None]:
        """Titles for many messages, in their order; None as `title` gives it, and where one failed."""
        results = self.title_results(
            messages, recipe=recipe, batch_size=batch_size, exact=exact, timeout_s=timeout_s
        )
        failed = [result.error for result in results if result.error is not None]
        if failed:
            warnings.warn(
                f"{len(failed)} of {counted(len(results), 'title')} failed; title_results() tells why. "
                f"The first: {failed[0]}",
                stacklevel=2,
            )
        return [result.text for result in results]

    @names_options
    def title_results(
        self,
        messages: Iterable[str | Sequence[Message | Mapping[str, str]]],
        *,
        recipe: str | Path | Recipe | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        exact: bool = False,
        timeout_s: float | None = None,
        progress: bool | Callable[[ProgressEvent], None] | None = None,
    ) -> list[Title]:
        """The same with all that `title_result` tells; what failed has its `error`, and loses no other.

        Args:
            messages: Texts or chats.
            recipe: Another recipe than the session's.
            batch_size: Messages under way at once; more are faster up to a point, and need more memory.
            exact: Each as if it were alone, to the last bit, where `batch_size` could make a difference.
            timeout_s: Seconds for all of them together, as of `title_result`; what has not begun by then is
                as what was cut off.
            progress: Another than the session's, for the titles of this call.

        Raises:
            KeyboardInterrupt: Ctrl-C; its `partial` lists each `Title` so far (also from `titles`), those
                under way as far as they got, and None for those that wait.
        """
        chosen = self.recipe if recipe is None else get_recipe(recipe)
        size, timeout_s = checked_count(batch_size, "batch_size"), checked_timeout_s(timeout_s)
        shown = self._progress if progress is None else Progress(progress)
        items = as_list(messages, "messages")
        return with_partial(
            lambda: self._titles(items, chosen, size, exact, timeout_s, shown), lambda: [None] * len(items)
        )

    def _titles(
        self,
        messages: Sequence[Any],
        recipe: Recipe,
        size: int,
        exact: bool,
        timeout_s: float | None,
        progress: Progress,
    ) -> list[Title]:
        engine = self.load().engine if recipe.method == "model" and messages else None
        deadline_s = deadline_after(timeout_s)
        tasks = [self._title_task(message, recipe, exact, deadline_s) for message in messages]
        failed = partial(failed_title, recipe=recipe)
        return run_in_order(engine, tasks, failed, batch_size=size, progress=progress, unit="titles")

    def titles_as_done(
        self,
        messages: Iterable[str | Sequence[Message | Mapping[str, str]]],
        *,
        recipe: str | Path | Recipe | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        exact: bool = False,
        timeout_s: float | None = None,
    ) -> Iterator[tuple[int, Title]]:
        """The same one by one, each with its message's number, as soon as it is done.

        A message is taken when its turn has come, so there may be any number of them. After a cancel no
        further ones come. `timeout_s` counts for all of them, from the first one on.
        """
        chosen = self.recipe if recipe is None else get_recipe(recipe)
        size, timeout_s = checked_count(batch_size, "batch_size"), checked_timeout_s(timeout_s)
        engine = self.load().engine if chosen.method == "model" else None
        deadline_s = deadline_after(timeout_s)
        tasks = (self._title_task(message, chosen, exact, deadline_s) for message in messages)
        for index, found in as_done(engine, tasks, batch_size=size):
            yield index, failed_title(found, chosen) if isinstance(found, TinykitError) else found


def deadline_after(timeout_s: float | None) -> float | None:
    """When so many seconds from now are up, in those of `time.perf_counter`."""
    return None if timeout_s is None else time.perf_counter() + timeout_s


def left_s(deadline_s: float | None) -> float | None:
    """Seconds until then, 0 if it has passed."""
    return None if deadline_s is None else max(0.0, deadline_s - time.perf_counter())


def without_model(message: str, recipe: Recipe) -> Title | None:
    """The title of a message that no model need be asked about."""
    if not has_text(message):
        return Title(None, "", (Step(Reason.NO_TEXT),), recipe.name)
    if not has_task(message):
        return no_task(recipe)
    if recipe.method == "first-words":
        return first_words_title(message, recipe)
    if recipe.languages == "english" and not is_english(message):
        return first_words_title(message, recipe, Step(Reason.LANGUAGE))
    return None


def message_text(message: str | Sequence[Message | Mapping[str, str]], recipe: Recipe) -> str:
    """A message or a chat as the text that a title is made for.

    Raises:
        OptionError: it is neither.
    """
    return message if isinstance(message, str) else _chat_text(message, recipe)


def _chat_text(messages: Sequence[Message | Mapping[str, str]], recipe: Recipe) -> str:
    """A chat as one text: as a block for recipes that were made for it, else what the person asked."""
    if not isinstance(messages, (list, tuple)):
        raise OptionError(
            f"The message must be text or a list of messages, not {type(messages).__name__}.",
            hint='Give a text, or messages such as {"role": "user", "content": "Hello"}.',
            name="message",
            value=messages,
        )
    turns = as_messages(messages)
    if recipe.method == "model" and recipe.preparation.style == "clean":
        return prepare_conversation([turn._asdict() for turn in turns], recipe.preparation)
    return "\n\n".join(turn.content for turn in turns if turn.role == "user" and has_task(turn.content))
