"""A backend without a model: it answers what a script says. For tests of whatever stands above a backend."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from tinykit.backends.base import Array, BackendInfo, Logits, State
from tinykit.errors import BackendError, ClosedError, ForwardInterrupted, ModelFileError

Script = Callable[[Sequence[int]], int | Logits]
_DUMPED = "token_ids"


class ScriptedState:
    """The token ids that were seen."""

    def __init__(self, token_ids: Sequence[int] = ()) -> None:
        self.token_ids = list(token_ids)

    @property
    def length(self) -> int:
        """Tokens seen."""
        return len(self.token_ids)

    @property
    def size_bytes(self) -> int:
        """Eight bytes a token."""
        return 8 * len(self.token_ids)

    @property
    def can_truncate(self) -> bool:
        """Always."""
        return True

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        del self.token_ids[length:]

    def copy(self, length: int | None = None) -> ScriptedState:
        """An independent copy of the first `length` tokens."""
        return ScriptedState(self.token_ids[:length])

    def dump(self) -> dict[str, Array]:
        """The token ids."""
        return {_DUMPED: np.array(self.token_ids, np.int64)}


class ScriptedBatch:
    """Rows of token ids, each answered by the script of the backend."""

    def __init__(self, backend: ScriptedBackend) -> None:
        self._backend = backend
        self._rows: list[ScriptedState] = []

    @property
    def size_bytes(self) -> int:
        """Eight bytes a token."""
        return sum(row.size_bytes for row in self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, state: State) -> None:
        """Make a copy of `state` the last row."""
        assert isinstance(state, ScriptedState)
        self._rows.append(state.copy())

    def remove(self, row: int) -> None:
        """Drop a row; later rows move up."""
        del self._rows[row]

    def forward(self, token_ids: Sequence[int]) -> Logits:
        """Logits of shape (rows, vocab_size), each as the script wants them."""
        if len(token_ids) != len(self._rows) or not token_ids:
            raise ValueError(f"forward() needs one token for each of {len(self._rows)} rows")
        backend = self._backend
        with backend.running():
            backend.batch_calls.append(tuple(token_ids))
            seen = [[*row.token_ids, token_id] for row, token_id in zip(self._rows, token_ids, strict=True)]
            logits = backend.script_logits(seen)
        self._rows = [ScriptedState(ids) for ids in seen]
        return logits


class ScriptedBackend:
    """Calls `script` with all token ids seen so far and makes its answer the most likely next token.

    A script answers with a token id, or with the logits of the whole vocabulary. `calls` lists the token ids
    of each `forward` and `batch_calls` those of each step of a batch, so that a test can count the work. A
    script that calls `interrupt` stops the forward that asked it.
    """

    def __init__(
        self,
        script: Script,
        *,
        vocab_size: int,
        context_length: int = 8192,
        chunk_tokens: int = 128,
        can_batch: bool = True,
        is_shape_invariant: bool = True,
    ) -> None:
        self._script = script
        self._is_closed = False
        self._running: threading.Event | None = None  # set when the forward that made it is to stop
        self.calls: list[tuple[int, ...]] = []
        self.batch_calls: list[tuple[int, ...]] = []
        self.info = BackendInfo(
            backend="scripted",
            device="none",
            providers=(),
            dtype="none",
            vocab_size=vocab_size,
            context_length=context_length,
            threads=1,
            chunk_tokens=chunk_tokens,
            can_batch=can_batch,
            is_shape_invariant=is_shape_invariant,
            exact_tokens=1 if is_shape_invariant else None,
            bytes_per_token=8,
        )

    def new_state(self) -> ScriptedState:
        """The state before the first token."""
        return ScriptedState()

    def load_state(self, arrays: Mapping[str, Array], length: int) -> ScriptedState:
        """The state that was dumped."""
        if set(arrays) != {_DUMPED} or arrays[_DUMPED].shape != (length,):
            raise ModelFileError("This is not the state of a scripted backend.")
        return ScriptedState(arrays[_DUMPED].tolist())

    def new_batch(self) -> ScriptedBatch:
        """A batch without rows."""
        if not self.info.can_batch:
            raise BackendError("This model cannot run several sequences at once.")
        return ScriptedBatch(self)

    def forward(self, token_ids: Sequence[int], state: State, *, rows: int = 1) -> Logits:
        """Logits of shape (rows, vocab_size): 1 at the script's answer, 0 elsewhere."""
        if not 1 <= rows <= len(token_ids):
            raise ValueError(f"forward() cannot give logits after {rows} of {len(token_ids)} tokens")
        assert isinstance(state, ScriptedState)
        with self.running():
            self.calls.append(tuple(token_ids))
            seen = [*state.token_ids, *token_ids]
            logits = self.script_logits([seen[: len(seen) - after] for after in reversed(range(rows))])
        state.token_ids = seen
        return logits

    def interrupt(self) -> None:
        """Let the forward that is running raise once the script returns."""
        running = self._running
        if running is not None:
            running.set()

    def close(self) -> None:
        """Refuse further calls."""
        self._is_closed = True

    def script_logits(self, sequences: Sequence[Sequence[int]]) -> Logits:
        """The script's logits after each of `sequences`."""
        logits = np.zeros((len(sequences), self.info.vocab_size), np.float32)
        for row, seen in zip(logits, sequences, strict=True):
            answer = self._script(seen)
            if isinstance(answer, np.ndarray):
                row[:] = answer
            else:
                row[answer] = 1
        return logits

    @contextmanager
    def running(self) -> Iterator[None]:
        """A forward: it can be interrupted until it ends."""
        if self._is_closed:
            raise ClosedError("This backend was closed.")
        stop = self._running = threading.Event()
        try:
            yield
        finally:
            self._running = None
        if stop.is_set():
            raise ForwardInterrupted("The forward was interrupted.")
