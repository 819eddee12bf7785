"""Many generations at once: prompts are prefilled one by one, all answers decode together."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Generic, TypeVar

from tinykit.errors import TinykitError
from tinykit.generation.engine import Engine
from tinykit.generation.request import Request
from tinykit.generation.result import CancelledBy, Chunk, Completion
from tinykit.generation.rows import Rows
from tinykit.generation.run import Cancelled, Run
from tinykit.interrupts import keep_partial

T = TypeVar("T")
DEFAULT_BATCH_SIZE = 16
_MOST_BYTES = 512 * 2**20  # of what the rows of a batch remember, beyond which no other joins them

# What is done with a completion may ask for another. A task yields a request and is sent its completion, or
# yields a list of requests that do not wait for each other and is sent a list; it returns what it was for.
Task = Generator[Request | list[Request], Any, T]


def run_tasks(
    engine: Engine, tasks: Iterable[Task[T]], *, batch_size: int = DEFAULT_BATCH_SIZE
) -> Iterator[tuple[int, T | TinykitError]]:
    """Results with the tasks' numbers, in the order in which they are done; an error is a result too.

    At most `batch_size` generations are under way at once, fewer where they are so long that they would take
    much memory. Where the backend cannot decode several rows together, they run one after the other. After a
    cancel no further task begins.

    Raises:
        KeyboardInterrupt: Ctrl-C; its `partial` are further pairs, of the tasks that were under way.
    """
    numbered = _until_cancelled(engine, tasks)
    if batch_size == 1 or not engine.backend.info.can_batch:
        return _one_by_one(engine, numbered)
    batching: Batching[T] = Batching(engine)
    return batching.results(numbered, batch_size)


def _until_cancelled(engine: Engine, tasks: Iterable[Task[T]]) -> Iterator[tuple[int, Task[T]]]:
    before = engine.cancel_count
    for index, task in enumerate(tasks):
        if engine.cancel_count != before:
            return
        yield index, task


def run_task(engine: Engine, task: Task[T], *, on_chunk: Callable[[Chunk], object] | None = None) -> T:
    """The result of a single task; `on_chunk` gets the pieces of the first thing it asks.

    Raises: whatever the task or the engine raises.
    """
    listening: dict[str, Any] = {} if on_chunk is None else {"on_chunk": on_chunk}
    try:
        asked = next(task)
        while True:
            try:
                found = (
                    engine.generate(asked, **listening)
                    if isinstance(asked, Request)
                    else together(engine, asked)
                )
                listening = {}
            except TinykitError as error:
                asked = task.throw(error)
            except KeyboardInterrupt as error:
                if (partial := _partial(error)) is not None:
                    keep_partial(error, _given_up(task, partial))
                raise
            else:
                asked = task.send(found)
    except StopIteration as stop:
        value: T = stop.value
        return value
    finally:
        task.close()


def _partial(error: KeyboardInterrupt) -> Any:
    return getattr(error, "partial", None)


def _given_up(task: Task[T], found: Completion | list[Completion]) -> T | TinykitError:
    """What a task makes of what was found until the interrupt; what else it asks for remains undone."""
    try:
        asked = task.send(found)
        while True:
            nothing = Completion.nothing(cancelled_by="interrupt")
            asked = task.send(nothing if isinstance(asked, Request) else [nothing] * len(asked))
    except StopIteration as stop:
        value: T = stop.value
        return value
    except KeyboardInterrupt as error:  # another one, while the first is on its way out
        so_far: T | None = _partial(error)
        if so_far is None:
            raise
        return so_far
    except TinykitError as error:
        return error


def together(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """The requests' completions, from shared steps where the backend can.

    Raises: whatever goes wrong with one of them.
    """
    results: dict[int, Completion | TinykitError] = {}
    try:
        results.update(run_tasks(engine, map(one_request, requests), batch_size=max(1, len(requests))))
    except KeyboardInterrupt as error:
        results.update(_partial(error) or ())
        found = map(results.get, range(len(requests)))
        keep_partial(
            error,
            [
                one if isinstance(one, Completion) else _undone(request, "interrupt")
                for one, request in zip(found, requests, strict=True)
            ],
        )
        raise
    return [_raised(results.get(index), request) for index, request in enumerate(requests)]


def _raised(result: Completion | TinykitError | None, request: Request) -> Completion:
    if isinstance(result, TinykitError):
        raise result
    return result if result is not None else _undone(request, "cancel")


def _undone(request: Request, by: CancelledBy) -> Completion:
    return Completion.nothing(prompt_tokens=len(request.prompt_ids), cancelled_by=by)


def one_request(request: Request) -> Task[Completion]:
    """The task of a single completion."""
    completion: Completion = yield request
    return completion


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
        with engine.active(runs):
            try:
                _sample(engine, runs)
            except Cancelled:
                reasons = [run.cancelled_by for run in runs if run.cancelled_by]
                for run in runs:
                    run.cancel(reasons[0])
        return [run.result() for run in runs]
    except KeyboardInterrupt as error:
        for run in runs:
            run.cancel("interrupt")
        keep_partial(error, [run.result() for run in runs])
        raise
    finally:
        runs[0].is_left = True  # first, as it is the one that holds the slot
        for run in runs:
            run.is_left = True


def _sample(engine: Engine, runs: Sequence[Run]) -> None:
    rows = Rows(engine) if can_batch(engine, runs[0].request) else None
    with engine.entered(runs[0]) as (state, seen):
        logits = engine.prefill(runs[0], state, seen)
        for run in runs:
            run.clock.started, run.clock.prefilled = runs[0].clock.started, runs[0].clock.prefilled
            run.reused_tokens = runs[0].reused_tokens if run is runs[0] else len(run.request.prompt_ids)
            run.take(logits)
        waiting = [run for run in runs if not run.is_done]
        if rows is None:
            for run in waiting:
                own, tokens = state.copy(), list(seen)
                while not run.is_done:
                    engine.decode(run, own, tokens)
            return
        while rows or waiting:
            while waiting and len(rows) < DEFAULT_BATCH_SIZE:  # each row has a state of its own
                rows.add(waiting.pop(0), state)
            for _, error in rows.step():
                if error is not None:
                    raise error


def can_batch(engine: Engine, request: Request) -> bool:
    """Whether this request may share its steps with others."""
    return engine.backend.info.can_batch and (not request.options.exact or engine.rows_are_exact)


def _one_by_one(
    engine: Engine, tasks: Iterator[tuple[int, Task[T]]]
) -> Iterator[tuple[int, T | TinykitError]]:
    for index, task in tasks:
        try:
            result = _alone(engine, task)
        except KeyboardInterrupt as error:
            found = _partial(error)
            keep_partial(error, [] if found is None else [(index, found)], is_told=True)
            raise
        yield index, result


def _alone(engine: Engine, task: Task[T]) -> T | TinykitError:
    try:
        return run_task(engine, task)
    except TinykitError as error:
        return error


class _Asked(Generic[T]):
    """What a task has asked for, and what has been found of it."""

    def __init__(self, index: int, task: Task[T], asked: Request | list[Request]) -> None:
        self.index = index
        self.task = task
        self.requests = [asked] if isinstance(asked, Request) else asked
        self.found: list[Completion | None] = [None] * len(self.requests)
        self.error: TinykitError | None = None
        self._is_list = not isinstance(asked, Request)

    def answer(self) -> Request | list[Request]:
        """Send the task what was found, or raise in it what went wrong; what it asks for next."""
        if self.error is not None:
            return self.task.throw(self.error)
        return self.task.send(self.found if self._is_list else self.found[0])

    def given_up(self) -> T | TinykitError:
        """What the task makes of what was found until an interrupt."""
        found = [
            _undone(request, "interrupt") if one is None else one
            for one, request in zip(self.found, self.requests, strict=True)
        ]
        return _given_up(self.task, found if self._is_list else found[0])


class Batching(Generic[T]):
    """Tasks that share the rows of one batch; its length is the number of rows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rows = Rows(engine)
        self._waiting: dict[Run, tuple[_Asked[T], int, ExitStack]] = {}
        self._done: list[tuple[int, T | TinykitError]] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_full(self) -> bool:
        """Whether the rows take so much memory that no other task should begin."""
        return bool(self._rows) and self._rows.size_bytes >= _MOST_BYTES

    def begin(self, index: int, task: Task[T]) -> None:
        """Run a task up to where it waits for rows, with the prefill of what it asks."""
        self._go_on(index, task, lambda: next(task))

    def step(self) -> None:
        """Decode one token of each row."""
        for run, error in self._rows.step():
            self._answer(run, error)

    def take_done(self) -> list[tuple[int, T | TinykitError]]:
        """Numbers and results of the tasks that have ended since this was last asked."""
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """End all tasks that wait."""
        for _, _, stack in self._waiting.values():
            stack.close()
        for asked in {id(asked): asked for asked, _, _ in self._waiting.values()}.values():
            asked.task.close()

    def results(
        self, tasks: Iterator[tuple[int, Task[T]]], batch_size: int
    ) -> Iterator[tuple[int, T | TinykitError]]:
        """The results of tasks of which so many may be under way, as they are done."""
        is_empty = False
        try:
            while True:
                while not is_empty and len(self._rows) < batch_size and not self.is_full:
                    index, task = next(tasks, (-1, None))
                    if task is None:
                        is_empty = True
                    else:
                        self.begin(index, task)
                    yield from self.take_done()
                if not self._rows:
                    return
                self.step()
                yield from self.take_done()
        except KeyboardInterrupt as error:
            keep_partial(error, [*self._done, *self._given_up()], is_told=True)
            raise
        finally:
            self.close()

    def _given_up(self) -> list[tuple[int, T | TinykitError]]:
        for run, (asked, place, _) in self._waiting.items():
            run.cancel("interrupt")
            asked.found[place] = run.result()
        under_way = {id(asked): asked for asked, _, _ in self._waiting.values()}.values()
        return [(asked.index, asked.given_up()) for asked in under_way]

    def _answer(self, run: Run, error: TinykitError | None) -> None:
        """Give a completion, or what went wrong, to the task once it waits for no other."""
        asked, place, stack = self._waiting.pop(run)
        stack.close()
        asked.found[place] = run.result()
        asked.error = asked.error or error
        if None not in asked.found:
            self._go_on(asked.index, asked.task, asked.answer)

    def _go_on(self, index: int, task: Task[T], ask: Callable[[], Request | list[Request]]) -> None:
        """Run a task until it waits for rows of the batch, or to its end."""
        try:
            while True:
                asked = _Asked(index, task, self._asking(index, ask))
                for place, request in enumerate(asked.requests):
                    try:
                        asked.found[place] = self._begin(asked, place, request)
                    except TinykitError as error:
                        asked.error = asked.error or error
                        asked.found[place] = Completion.nothing(error=error)
                    except KeyboardInterrupt as error:
                        asked.found[place] = _partial(error)
                        if asked.task not in [one.task for one, _, _ in self._waiting.values()]:
                            self._done.append((index, asked.given_up()))
                        raise
                if None in asked.found:
                    return
                ask = asked.answer
        except StopIteration as stop:
            self._done.append((index, stop.value))
        except TinykitError as error:
            task.close()
            self._done.append((index, error))
        except BaseException:
            task.close()  # it may hold a slot, and whoever keeps the error keeps the task
            raise

    def _asking(self, index: int, ask: Callable[[], Request | list[Request]]) -> Request | list[Request]:
        """What a task asks for next; if a Ctrl-C comes in it, what it says that it has is its result."""
        try:
            return ask()
        except KeyboardInterrupt as error:
            if (found := _partial(error)) is not None:
                self._done.append((index, found))
            raise

    def _begin(self, asked: _Asked[T], place: int, request: Request) -> Completion | None:
        """Prefill a request and give it a row; its completion if it needs none."""
        if not can_batch(self._engine, request):
            return self._engine.generate(request)
        run = self._engine.new_run(replace(request, options=replace(request.options, draft=None)))
        try:
            return self._begun(asked, place, run)
        except BaseException:
            run.is_left = True
            raise

    def _begun(self, asked: _Asked[T], place: int, run: Run) -> Completion | None:
        with ExitStack() as stack:
            stack.enter_context(self._engine.active([run]))
            try:
                with self._engine.entered(run) as (state, seen):
                    run.tell(run.take(self._engine.prefill(run, state, seen)))
                    if not run.is_done:
                        self._rows.add(run, state)
            except Cancelled:
                run.tell(run.cancel(run.cancelled_by or "cancel"))
            except KeyboardInterrupt as error:
                run.cancel("interrupt")
                keep_partial(error, run.result())
                raise
            if run.is_done:
                return run.result()
            self._waiting[run] = (asked, place, stack.pop_all())
        return None
