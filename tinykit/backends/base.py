"""The waist between inference libraries and generation: token ids and a state in, logits out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BackendInfo:
    """What a loaded model runs on, read back from the library.

    Attributes:
        chunk_tokens: Prompt tokens that one forward should take at most, so that it lasts some 100 ms. It
            follows from the weights' size alone, so equal prompts are cut in equal pieces.
        can_batch: Whether `Backend.new_batch` works; if not, sequences go one at a time.
        is_shape_invariant: Whether logits are bit for bit the same however many tokens or rows go in at once.
        exact_tokens: Forwards of at least so many tokens give bit for bit the same logits, however the tokens
            are cut into forwards; None where nobody has looked.
        bytes_per_token: Memory that one token of one sequence takes in a state that grows.
        device_share: How much of the heavy work the device does and not the CPU in its place, from 0 to 1;
            None if the library does not tell.
        weights_bytes: What the weights weigh.
    """

    backend: str
    device: str
    providers: tuple[str, ...]
    dtype: str
    vocab_size: int
    context_length: int
    threads: int
    chunk_tokens: int
    can_batch: bool
    is_shape_invariant: bool
    exact_tokens: int | None
    bytes_per_token: int
    device_share: float | None = None
    weights_bytes: int = 0


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

    def dump(self) -> dict[str, Array]:
        """What a file needs to hold, by name: exactly `length` tokens where an array grows with them.

        The arrays may be views of the state, valid until its next step.
        """
        ...


class Batch(Protocol):
    """Sequences that decode together, each after its own tokens. Rows are counted from 0."""

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        ...

    def __len__(self) -> int:
        """Rows."""
        ...

    def add(self, state: State) -> None:
        """Make a copy of `state` the last row; `state` itself stays usable."""
        ...

    def remove(self, row: int) -> None:
        """Drop a row; later rows move up."""
        ...

    def forward(self, token_ids: Sequence[int]) -> Logits:
        """Feed each row one token; logits of shape (rows, vocab_size).

        The array may be overwritten by the next call. If the call raises, all rows are as before.
        """
        ...


class Backend(Protocol):
    """A loaded model. Not thread-safe but for `interrupt`: the engine above it lets one call in at a time."""

    info: BackendInfo

    def new_state(self) -> State:
        """The state before the first token."""
        ...

    def load_state(self, arrays: Mapping[str, Array], length: int) -> State:
        """The state of `length` tokens that `State.dump` wrote.

        Raises:
            ModelFileError: names, shapes or types are not those of this model's states.
        """
        ...

    def new_batch(self) -> Batch:
        """A batch without rows.

        Raises:
            BackendError: this model cannot batch (`BackendInfo.can_batch`).
        """
        ...

    def forward(self, token_ids: Sequence[int], state: State, *, rows: int = 1) -> Logits:
        """Logits after each of the last `rows` of `token_ids`, shape (rows, vocab_size).

        `state` grows by all tokens. The array may be overwritten by the next call. If the call raises,
        `state` is as before.
        """
        ...

    def interrupt(self) -> None:
        """Let the forward that is running, if any, raise `ForwardInterrupted` soon; for any thread."""
        ...

    def close(self) -> None:
        """Release the model's memory; closing twice is harmless."""
        ...


@dataclass(frozen=True)
class EncoderInfo:
    """What a loaded judge model runs on, read back from the library."""

    backend: str
    device: str
    providers: tuple[str, ...]
    dtype: str
    context_length: int
    threads: int
    device_share: float | None = 1.0
    weights_bytes: int = 0
