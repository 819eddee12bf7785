"""Titles and completions by the dozen: order kept, progress, failures as data."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

from tinykit.errors import OptionError, TinykitError
from tinykit.generation.batch import Task, run_tasks
from tinykit.generation.engine import Engine
from tinykit.generation.result import Completion
from tinykit.interrupts import keep_partial
from tinykit.progress import Progress
from tinykit.reasons import Reason, Step
from tinykit.recipes import Recipe
from tinykit.titling import Title
from tinykit.tokenizer import Message, as_messages

T = TypeVar("T")
_MAX_BATCH_SIZE = 1024


def run_in_order(
    engine: Engine | None,
    tasks: Sequence[Task[T]],
    failed: Callable[[TinykitError | None], T],
    *,
    batch_size: int,
    progress: Progress,
    unit: str,
) -> list[T]:
    """The tasks' results in the order of the tasks; `failed` makes one of what went wrong, None for a cancel.

    Raises:
        KeyboardInterrupt: Ctrl-C; its `partial` is the list so far, with what was under way as far as it got,
            and None for what waits.
    """
    found: list[T | None] = [None] * len(tasks)
    is_there = [False] * len(tasks)

    def take(index: int, result: T | TinykitError) -> None:
        found[index] = failed(result) if isinstance(result, TinykitError) else result
        is_there[index] = True

    results = as_done(engine, tasks, batch_size=batch_size)
    try:
        with progress.stage(unit, total=len(tasks), unit=unit) as stage:
            for index, result in results:
                take(index, result)
                stage.advance(1)
        return [cast(T, one) if there else failed(None) for one, there in zip(found, is_there, strict=True)]
    except KeyboardInterrupt as error:
        for index, result in _under_way(results, error):
            take(index, result)
        keep_partial(error, found)
        raise


def _under_way(results: Iterator[tuple[int, Any]], error: KeyboardInterrupt) -> list[tuple[int, Any]]:
    """What was found of the tasks that an interrupt stopped, wherever it came."""
    if isinstance(results, Generator):  # it has ended already, or waits to be told
        with suppress(KeyboardInterrupt):
            results.throw(error)
    found = getattr(error, "partial", None)
    return found if isinstance(found, list) else []


def as_done(
    engine: Engine | None, tasks: Iterable[Task[T]], *, batch_size: int
) -> Iterator[tuple[int, T | TinykitError]]:
    """Results with the tasks' numbers as they come; a task is taken when its turn has come."""
    if engine is None:
        return enumerate(map(_now, tasks))
    return run_tasks(engine, tasks, batch_size=batch_size)


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
        f"{name} must be a whole number from 1 to {_MAX_BATCH_SIZE:,}, not {value!r}.",
        hint="Leave it out for the default.",
        name=name,
        value=value,
    )


def prompt_messages(
    prompt: str | Sequence[Message | Mapping[str, str]], system: str | None = None
) -> list[Message]:
    """A chat out of one message or of many; `system` comes first, unless it is blank.

    Raises:
        OptionError: an empty prompt, no messages, or a `system` that is no text.
    """
    if not isinstance(system, str | None):
        raise OptionError(
            f"system must be text, not {system!r}.",
            hint="Leave it out for no instruction.",
            name="system",
            value=system,
        )
    first = [Message("system", system.strip())] if system and system.strip() else []
    if isinstance(prompt, str) and prompt.strip():
        return [*first, Message("user", prompt)]
    if isinstance(prompt, list | tuple):
        return [*first, *as_messages(prompt)]
    raise OptionError(
        f"The prompt must be text that is not empty, not {prompt!r}.",
        hint='Give a text, or messages such as {"role": "user", "content": "Hello"}.',
        name="prompt",
        value=prompt,
    )


def failed_title(error: TinykitError | None, recipe: Recipe) -> Title:
    """A title that says what went wrong; None stands for a cancel."""
    reason = Reason.CANCELLED if error is None else Reason.FAILED
    step = Step(reason, None if error is None else str(error))
    return Title(None, "", (step,), recipe.name, error=error)


def failed_completion(error: TinykitError | None) -> Completion:
    """An empty completion that says what went wrong; None stands for a cancel."""
    return Completion.nothing(cancelled_by=None if error else "cancel", error=error)
