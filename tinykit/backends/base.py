"""The waist between inference libraries and generation: token ids and a state in, logits out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BackendInfo:
    """What a loaded model runs on, read back from the library."""

    backend: str
    device: str
    providers: tuple[str, ...]
    dtype: str
    vocab_size: int
    context_length: int
    threads: int


class State(Protocol):
    """What a model remembers of the tokens it has seen (KV cache, recurrent states)."""

    @property
    def length(self) -> int:
        """Tokens seen."""
        ...

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        ...

    @property
    def can_truncate(self) -> bool:
        """Whether `truncate` works; recurrent states cannot be rolled back."""
        ...

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        ...

    def copy(self, length: int | None = None) -> State:
        """An independent copy of the first `length` tokens' state (all of it by default)."""
        ...


class Backend(Protocol):
    """A loaded model. Not thread-safe: the engine above it lets one call in at a time."""

    info: BackendInfo

    def new_state(self) -> State:
        """The state before the first token."""
        ...

    def forward(self, token_ids: Sequence[int], state: State) -> Logits:
        """Logits after the last of `token_ids`, shape (vocab_size,); `state` grows by their number.

        The array may be overwritten by the next call. If the call raises, `state` is as before.
        """
        ...

    def close(self) -> None:
        """Release the model's memory; closing twice is harmless."""
        ...
