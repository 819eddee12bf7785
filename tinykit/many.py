"""Titles and completions by the dozen: order kept, progress, failures as data."""

from __future__ import annotations

import numbers
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from tinykit.errors import OptionError, TinykitError
from tinykit.generation.batch import Task, run_tasks
from tinykit.generation.engine import Engine
from tinykit.generation.result import Completion
from tinykit.progress import Progress
from tinykit.reasons import Reason, Step
from tinykit.recipes import Recipe
from tinykit.titling import Title
from tinykit.tokenizer import Message, as_messages

T = TypeVar("T")
_MAX_BATCH_SIZE = 1024


def run_in_order(
    engine: Engine | None, tasks: Sequence[Task[T]], *, batch_size: int, progress: Progress, unit: str
) -> list[T | TinykitError | None]:
    """The tasks' results in the order of the tasks; None for those that a cancel left undone.

    Raises:
        KeyboardInterrupt: Ctrl-C; its `partial` is the list so far, with what was under way as far as it got.
    """
    found: list[T | TinykitError | None] = [None] * len(tasks)
    results = (
        run_tasks(engine, tasks, batch_size=batch_size) if engine is not None else enumerate(map(_now, tasks))
    )
    try:
        with progress.stage(unit, total=len(tasks), unit=unit) as stage:
            for index, result in results:
                found[index] = result
                stage.advance(1)
    except KeyboardInterrupt as error:
        for index, result in _under_way(results, error):
            found[index] = result
        error.partial = found  # type: ignore[attr-defined]
        raise
    return found


def _under_way(results: Iterator[tuple[int, Any]], error: KeyboardInterrupt) -> list[tuple[int, Any]]:
    """What was found of the tasks that an interrupt stopped, wherever it came."""
    if isinstance(results, Generator):  # it has ended already, or waits to be told
        with suppress(KeyboardInterrupt):
            results.throw(error)
    return getattr(error, "partial", None) or []


def _now(task: Task[T]) -> T | TinykitError:
    """The result of a task that asks no model."""
    try:
        next(task)
    except StopIteration as stop:
        value: T = stop.value
        return value
    except TinykitError as error:
        return error
    raise AssertionError("a task without an engine asked for one")


def as_list(items: Iterable[T], name: str) -> list[T]:
    """The items as a list; a single text is none.

    Raises:
        OptionError: not something with items.
    """
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise OptionError(
            f"{name} must be a list, not {type(items).__name__}.",
            hint=f"For a single one: [{name.removesuffix('s')}].",
            name=name,
            value=items,
        )
    if getattr(items, "ndim", 1) != 1:  # iterating over a table gives the names of its columns
        raise OptionError(
            f"{name} must be a list, not a table ({type(items).__name__}).",
            hint="Give one column of it.",
            name=name,
            value=items,
        )
    found = list(items)
    if found and all(isinstance(item, Mapping) and "role" in item for item in found):
        raise OptionError(
            f"{name} must be a list of texts or chats; this is a single chat.",
            hint=f"Put it into a list: [{name.removesuffix('s')}].",
            name=name,
            value=items,
        )
    return found


def checked_count(value: object, name: str) -> int:
    """A whole number from 1 to 1,024.

    Raises:
        OptionError: anything else.
    """
    is_number = not isinstance(value, bool) and isinstance(value, numbers.Integral)
    if is_number and 1 <= int(cast(Any, value)) <= _MAX_BATCH_SIZE:
        return int(cast(Any, value))
    raise OptionError(
        f"{name} must be a whole number from 1 to {_MAX_BATCH_SIZE:,}, not {value!r}.", name=name, value=value
    )


def prompt_messages(
    prompt: str | Sequence[Message | Mapping[str, str]], system: str | None = None
) -> list[Message]:
    """A chat out of one message or of many; `system` comes first, unless it is blank.

    Raises:
        OptionError: an empty prompt, no messages, or a `system` that is no text.
    """
    if not isinstance(system, str | None):
        raise OptionError(f"system must be text, not {system!r}.", name="system", value=system)
    first = [Message("system", system.strip())] if system and system.strip() else []
    if isinstance(prompt, str) and prompt.strip():
        return [*first, Message("user", prompt)]
    if isinstance(prompt, list | tuple):
        return [*first, *as_messages(prompt)]
    raise OptionError(
        f"The prompt must be text that is not empty, not {prompt!r}.", name="prompt", value=prompt
    )


def title_or_failure(result: Title | TinykitError | None, recipe: Recipe) -> Title:
    """A title that says what went wrong, where there is none; None stands for a cancel."""
    if isinstance(result, Title):
        return result
    reason = Reason.CANCELLED if result is None else Reason.FAILED
    step = Step(reason, None if result is None else str(result))
    return Title(None, "", (step,), recipe.name, error=result)


def completion_or_failure(result: Completion | TinykitError | None) -> Completion:
    """An empty completion that says what went wrong, where there is none; None stands for a cancel."""
    if isinstance(result, Completion):
        return result
    return Completion.nothing(cancelled_by=None if result else "cancel", error=result)
