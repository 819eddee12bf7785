"""A backend without a model: it answers what a script says. For tests of whatever stands above a backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tinykit.backends.base import BackendInfo, Logits, State
from tinykit.errors import ClosedError

Script = Callable[[Sequence[int]], int]


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


class ScriptedBackend:
    """Calls `script` with all token ids seen so far and makes its answer the most likely next token.

    `calls` lists the token ids of each `forward`, so that a test can count the work.
    """

    def __init__(self, script: Script, *, vocab_size: int, context_length: int = 8192) -> None:
        self._script = script
        self._is_closed = False
        self.calls: list[tuple[int, ...]] = []
        self.info = BackendInfo(
            backend="scripted",
            device="none",
            providers=(),
            dtype="none",
            vocab_size=vocab_size,
            context_length=context_length,
            threads=1,
        )

    def new_state(self) -> ScriptedState:
        """The state before the first token."""
        return ScriptedState()

    def forward(self, token_ids: Sequence[int], state: State) -> Logits:
        """Logits of shape (vocab_size,): 1 at the script's answer, 0 elsewhere."""
        if self._is_closed:
            raise ClosedError("This backend was closed.")
        assert isinstance(state, ScriptedState)
        self.calls.append(tuple(token_ids))
        answer = self._script([*state.token_ids, *token_ids])
        state.token_ids += token_ids
        logits = np.zeros(self.info.vocab_size, np.float32)
        logits[answer] = 1
        return logits

    def close(self) -> None:
        """Refuse further calls."""
        self._is_closed = True
