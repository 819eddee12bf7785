"""Generations that decode together, one token a step; where a step fails, one by one."""

from __future__ import annotations

from collections.abc import Sequence

from tinykit.backends.base import Logits, State
from tinykit.errors import ForwardInterrupted, TinykitError
from tinykit.generation.engine import Engine
from tinykit.generation.run import Cancelled, Run, is_cancelled

Ended = list[tuple[Run, TinykitError | None]]  # runs that ended, and those that failed with the reason


class Rows:
    """Runs that decode together.

    A step that fails is done again row by row, from states computed anew, so that only the rows fail that
    cannot go on. If none does, it was the batch that the model could not take (its memory, say): the rows
    then stay apart.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._batch = engine.backend.new_batch()
        self._runs: list[Run] = []
        self._apart: list[State] | None = None  # a state for each run, once they are apart

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def size_bytes(self) -> int:
        """Memory that the states of all runs take."""
        return sum(state.size_bytes for state in self._apart or ()) or self._batch.size_bytes

    def add(self, run: Run, state: State) -> None:
        """Join; `state` has seen the prompt, and is copied."""

        def add() -> None:
            if self._apart is None:
                self._batch.add(state)
            else:
                self._apart.append(state.copy())
            self._runs.append(run)

        self._engine.turns.take(add)

    def step(self) -> Ended:
        """One step; what ended with it."""
        return self._engine.turns.take(self._step)

    def _step(self) -> Ended:
        if self._apart is None:
            try:
                logits = self._forward()
            except TinykitError:
                return self._recovered()
            problems = [_advanced(run, logits[at : at + 1]) for at, run in enumerate(self._runs)]
        else:
            problems = [
                self._advanced_apart(run, state) for run, state in zip(self._runs, self._apart, strict=True)
            ]
        return self._without_ended(problems)

    def _forward(self) -> Logits:
        while True:
            try:
                return self._batch.forward([run.pending[0] for run in self._runs])
            except ForwardInterrupted:
                continue  # meant for a stream that has just left the model

    def _recovered(self) -> Ended:
        """A step row by row; those that stand it are together again unless all of them do."""
        self._empty()
        states = [self._engine.backend.new_state() for _ in self._runs]
        problems = [
            self._caught_up(run, state) or self._advanced_apart(run, state)
            for run, state in zip(self._runs, states, strict=True)
        ]
        self._apart = states
        ended = self._without_ended(problems)
        if any(problems):
            self._join()
        return ended

    def _join(self) -> None:
        try:
            for state in self._apart or ():
                self._batch.add(state)
        except TinykitError:
            self._empty()
        else:
            self._apart = None

    def _empty(self) -> None:
        while len(self._batch):
            self._batch.remove(0)

    def _caught_up(self, run: Run, state: State) -> TinykitError | None:
        """Feed a new state all that its row had seen; what went wrong with it."""
        prefilled = run.clock.prefilled
        try:
            self._engine.prefill(run, state, [])
            for token_id in run.generated[: len(run.generated) - len(run.pending)]:
                self._engine.forward(run, state, [], [token_id])
        except Cancelled:
            pass  # which the next step sees
        except TinykitError as error:
            return error
        finally:
            run.clock.prefilled = prefilled
        return None

    def _advanced_apart(self, run: Run, state: State) -> TinykitError | None:
        try:
            logits = self._engine.forward(run, state, [], run.pending[:1])
        except Cancelled:
            run.tell(run.cancel(run.cancelled_by or "cancel"))
        except TinykitError as error:
            return error
        else:
            return _advanced(run, logits)
        return None

    def _without_ended(self, problems: Sequence[TinykitError | None]) -> Ended:
        """Drop the rows that have ended or failed, and tell which."""
        ended = [at for at, run in enumerate(self._runs) if run.is_done or problems[at] is not None]
        found = [(self._runs[at], problems[at]) for at in ended]
        for at in reversed(ended):
            if self._apart is None:
                self._batch.remove(at)
            else:
                del self._apart[at]
            del self._runs[at]
        return found


def _advanced(run: Run, logits: Logits) -> TinykitError | None:
    """Take one row of logits; what is wrong with it."""
    if is_cancelled(run):
        run.tell(run.cancel(run.cancelled_by or "cancel"))
    elif len(run.pending) > 1:
        del run.pending[0]  # the next of several that a constraint said
    else:
        try:
            run.tell(run.take(logits))
        except TinykitError as error:
            return error
    return None
