"""Many generations at once: prompts are prefilled one by one, all answers decode together."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

from tinykit.backends.base import Logits, State
from tinykit.errors import ForwardInterrupted, TinykitError
from tinykit.generation.engine import Cancelled, Engine, is_cancelled
from tinykit.generation.request import Request
from tinykit.generation.result import Completion
from tinykit.generation.run import Run

T = TypeVar("T")
DEFAULT_BATCH_SIZE = 16

# What is done with a completion may ask for another: a task yields requests, is sent their completions, and
# returns what it was for.
Task = Generator[Request, Completion, T]


def run_tasks(
    engine: Engine, tasks: Iterable[Task[T]], *, batch_size: int = DEFAULT_BATCH_SIZE
) -> Iterator[tuple[int, T | TinykitError]]:
    """Results with the tasks' numbers, in the order in which they are done; an error is a result too.

    At most `batch_size` generations are under way at once, which bounds the memory. Where the backend cannot
    decode several rows together, they run one after the other. After a cancel no further task begins.
    """
    numbered = _until_cancelled(engine, tasks)
    if batch_size == 1 or not engine.backend.info.can_batch:
        return ((index, _alone(engine, task)) for index, task in numbered)
    return _Batching(engine, numbered, batch_size).results()


def _until_cancelled(engine: Engine, tasks: Iterable[Task[T]]) -> Iterator[tuple[int, Task[T]]]:
    before = engine.cancel_count
    for index, task in enumerate(tasks):
        if engine.cancel_count != before:
            return
        yield index, task


def run_task(engine: Engine, task: Task[T]) -> T:
    """The result of a single task.

    Raises: whatever the task or the engine raises.
    """
    try:
        request = next(task)
        while True:
            request = task.send(engine.generate(request))
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        task.close()


def one_request(request: Request) -> Task[Completion]:
    """The task of a single completion."""
    return (yield request)


def samples(engine: Engine, request: Request, count: int) -> list[Completion]:
    """`count` answers to one prompt, which is computed once.

    The first has the request's seed, and the next seeds follow it, so that each can be had again alone.

    Raises:
        PromptTooLongError, OptionError: the request cannot be run.
        KeyboardInterrupt: Ctrl-C; its `partial` is the list so far.
    """
    options = replace(request.options, draft=None)
    sampling = options.sampling
    if not sampling.is_greedy and sampling.seed is None:
        sampling = replace(sampling, seed=secrets.randbits(32))
    runs = []
    for number in range(count):
        own = sampling if sampling.seed is None else replace(sampling, seed=sampling.seed + number)
        runs.append(engine.new_run(replace(request, options=replace(options, sampling=own))))
    try:
        with engine.active(runs), suppress(Cancelled):
            _sample(engine, runs)
    except KeyboardInterrupt as error:
        error.partial = [run.result() for run in runs]  # type: ignore[attr-defined]
        raise
    return [run.result() for run in runs]


def _sample(engine: Engine, runs: Sequence[Run]) -> None:
    rows = Rows(engine) if can_batch(engine, runs[0].request) else None
    with engine.entered(runs[0]) as (state, seen):
        logits = engine.prefill(runs[0], state, seen)
        for run in runs:
            run.clock.started, run.clock.prefilled = runs[0].clock.started, runs[0].clock.prefilled
            run.reused_tokens = runs[0].reused_tokens if run is runs[0] else len(run.request.prompt_ids)
            run.take(logits)
            if rows is not None and not run.is_done:
                rows.add(run, state)
            elif rows is None:
                own, tokens = state.copy(), list(seen)
                while not run.is_done:
                    engine.decode(run, own, tokens)
        while rows:
            for _, error in rows.step():
                if error is not None:
                    raise error


def can_batch(engine: Engine, request: Request) -> bool:
    """Whether this request may share its steps with others."""
    return engine.backend.info.can_batch and (not request.options.exact or engine.rows_are_exact)


class Rows:
    """Runs that decode together, one token a step."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._batch = engine.backend.new_batch()
        self._runs: list[Run] = []

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: Run, state: State) -> None:
        """Join; `state` has seen the prompt, and is copied."""
        with self._engine.turn():
            self._batch.add(state)
        self._runs.append(run)

    def step(self) -> list[tuple[Run, TinykitError | None]]:
        """One step; the runs that ended with it, and those that failed with the reason."""
        ended: list[tuple[int, TinykitError | None]] = []
        with self._engine.turn():
            try:
                logits = self._forward()
            except TinykitError as error:
                ended = [(at, error) for at in range(len(self._runs))]
            else:
                for at, run in enumerate(self._runs):
                    problem = _advanced(run, logits[at : at + 1])
                    if problem is not None or run.is_done:
                        ended.append((at, problem))
            found = [(self._runs[at], error) for at, error in ended]
            for at, _ in reversed(ended):
                self._batch.remove(at)
                del self._runs[at]
        return found

    def _forward(self) -> Logits:
        while True:
            try:
                return self._batch.forward([run.pending[0] for run in self._runs])
            except ForwardInterrupted:
                continue  # meant for a stream that has just left the model


def _advanced(run: Run, logits: Logits) -> TinykitError | None:
    """Take one row of logits; what is wrong with it."""
    if is_cancelled(run):
        run.cancel(run.cancelled_by or "cancel")
    elif len(run.pending) > 1:
        del run.pending[0]  # the next of several that a constraint said
    else:
        try:
            run.take(logits)
        except TinykitError as error:
            return error
    return None


def _alone(engine: Engine, task: Task[T]) -> T | TinykitError:
    try:
        return run_task(engine, task)
    except TinykitError as error:
        return error


class _Batching(Generic[T]):
    """Tasks that share the rows of one batch."""

    def __init__(self, engine: Engine, tasks: Iterator[tuple[int, Task[T]]], batch_size: int) -> None:
        self._engine = engine
        self._tasks = tasks
        self._batch_size = batch_size
        self._rows = Rows(engine)
        self._waiting: dict[Run, tuple[int, Task[T], ExitStack]] = {}
        self._done: list[tuple[int, T | TinykitError]] = []

    def results(self) -> Iterator[tuple[int, T | TinykitError]]:
        is_empty = False
        try:
            while True:
                while not is_empty and len(self._rows) < self._batch_size:
                    index, task = next(self._tasks, (-1, None))
                    if task is None:
                        is_empty = True
                    else:
                        self._go_on(index, task, lambda task=task: next(task))  # type: ignore[misc]
                    yield from self._take_done()
                if not self._rows:
                    return
                for run, error in self._rows.step():
                    self._answer(run, error)
                yield from self._take_done()
        finally:
            for _, _, stack in self._waiting.values():
                stack.close()

    def _take_done(self) -> list[tuple[int, T | TinykitError]]:
        done, self._done = self._done, []
        return done

    def _answer(self, run: Run, error: TinykitError | None) -> None:
        """Give a completion, or what went wrong, to the task that waits for it."""
        index, task, stack = self._waiting.pop(run)
        stack.close()
        if error is not None:
            self._go_on(index, task, lambda: task.throw(error))
        else:
            self._go_on(index, task, lambda: task.send(run.result()))

    def _go_on(self, index: int, task: Task[T], ask: Callable[[], Request]) -> None:
        """Run a task until it waits for a row of the batch, or to its end."""
        try:
            while True:
                request = ask()
                if (completion := self._begin(index, task, request)) is None:
                    return
                ask = partial(task.send, completion)
        except StopIteration as stop:
            self._done.append((index, stop.value))
        except TinykitError as error:
            self._done.append((index, error))

    def _begin(self, index: int, task: Task[T], request: Request) -> Completion | None:
        """Prefill a request and give it a row; its completion if it needs none."""
        if not can_batch(self._engine, request):
            return self._engine.generate(request)
        run = self._engine.new_run(replace(request, options=replace(request.options, draft=None)))
        with ExitStack() as stack:
            stack.enter_context(self._engine.active([run]))
            try:
                with self._engine.entered(run) as (state, seen):
                    run.take(self._engine.prefill(run, state, seen))
                    if not run.is_done:
                        self._rows.add(run, state)
            except Cancelled:
                run.cancel(run.cancelled_by or "cancel")
            if run.is_done:
                return run.result()
            self._waiting[run] = (index, task, stack.pop_all())
        return None
