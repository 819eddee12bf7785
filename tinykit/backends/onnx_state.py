"""What an ONNX graph remembers between two steps, as numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tinykit.backends.base import Array
from tinykit.backends.onnx_session import Binding
from tinykit.backends.signature import StatePort
from tinykit.errors import BackendError, ModelFileError

_CAPACITY_STEP = 256  # tokens; KV buffers have a multiple of it


class Side:
    """The arrays that one step reads and, in the shared mode, the binding to them for so many rows.

    A binding is put here once it is whole: Ctrl-C may come while it is made.
    """

    def __init__(self, arrays: list[Array]) -> None:
        self.arrays = arrays
        self.bound: tuple[Binding | None, int] = (None, 0)


class OnnxState:
    """A model's states as numpy arrays.

    With `shared`, growing states have room for `capacity` tokens and serve as past and present at once, while
    states of fixed size have two arrays: a step reads one and writes the other. What a step changes is put in
    place by a single assignment, so an interrupt leaves the state before the step or the one after it.
    """

    def __init__(self, ports: Sequence[StatePort], *, shared: bool) -> None:
        self.ports = ports
        self.shared = shared
        arrays = [np.zeros(port.shape, port.dtype) for port in ports]
        self._held = (Side(arrays), Side(twins(ports, arrays)), 0)

    @property
    def length(self) -> int:
        """Tokens seen."""
        return self._held[2]

    @property
    def arrays(self) -> list[Array]:
        """What the next step reads."""
        return self._held[0].arrays

    @property
    def sides(self) -> tuple[Side, Side]:
        """What the next step reads, and what it writes in the shared mode."""
        return self._held[:2]

    @property
    def capacity(self) -> int:
        """Tokens that the shared buffers have room for; 0 without them."""
        sizes = (
            array.shape[port.growth_axis]
            for port, array in zip(self.ports, self.arrays, strict=True)
            if port.growth_axis is not None
        )
        return next(sizes, 0) if self.shared else 0

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        held = {id(array): array.nbytes for side in self.sides for array in side.arrays}
        return sum(held.values()) if self.shared else sum(array.nbytes for array in self.arrays)

    @property
    def can_truncate(self) -> bool:
        """False as soon as one state has a fixed size."""
        return all(port.growth_axis is not None for port in self.ports)

    def advance(self, total: int, arrays: list[Array] | None = None) -> None:
        """`total` tokens have been seen; plain feeds give the new `arrays`, shared buffers change sides."""
        first, second, _ = self._held
        self._held = (second, first, total) if arrays is None else (Side(arrays), second, total)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a state of {self.length} tokens to {length}")
        self._require_rollback(length)
        if self.capacity > max(4 * _CAPACITY_STEP, 4 * length):
            self._hold(self._firsts(length), length, _capacity(length))
        elif self.shared:
            self._held = (*self.sides, length)
        else:
            self.advance(length, self._firsts(length))

    def copy(self, length: int | None = None) -> OnnxState:
        """An independent copy of the first `length` tokens' state."""
        length = self.length if length is None else length
        self._require_rollback(length)
        twin = OnnxState(self.ports, shared=self.shared)
        if self.shared:
            twin._hold(self._firsts(length), length, _capacity(length))
        else:
            twin.advance(length, [array.copy() for array in self._firsts(length)])
        return twin

    def dump(self) -> dict[str, Array]:
        """The states by the names of their inputs, as views of what the next step reads."""
        return {port.past: array for port, array in zip(self.ports, self._firsts(self.length), strict=True)}

    @classmethod
    def loaded(
        cls, ports: Sequence[StatePort], arrays: Mapping[str, Array], length: int, *, shared: bool
    ) -> OnnxState:
        """The state of `length` tokens that was dumped; the arrays are copied.

        Raises:
            ModelFileError: they do not fit `ports`.
        """
        wanted = {port.past: (port.dtype, state_shape(port, length)) for port in ports}
        found = {name: (array.dtype, array.shape) for name, array in arrays.items()}
        if length < 0 or found != wanted:
            wrong = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
            raise ModelFileError(
                f"The saved state is not one of this model: {', '.join(wrong[:3]) or 'its length'} differs.",
                hint="Restore it with the model and precision that it was saved with.",
            )
        state = cls(ports, shared=shared)
        held = [arrays[port.past] for port in ports]
        if shared:
            state._hold(held, length, _capacity(length))
        else:
            state.advance(length, [array.copy() for array in held])
        return state

    def become(self, other: OnnxState) -> None:
        """Take over what `other` holds, which is of no use afterwards."""
        self._held = other._held

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` tokens in all, keeping what is there."""
        if tokens > self.capacity:
            # by a quarter at least, so that a long answer does not copy its cache over and over
            grown = _capacity(max(tokens, self.capacity + self.capacity // 4))
            self._hold(self._firsts(self.length), self.length, grown)

    def _hold(self, arrays: list[Array], length: int, capacity: int) -> None:
        """Take over `arrays` of `length` tokens, copied into buffers with room for `capacity`."""
        grown = [np.zeros(state_shape(port, capacity), port.dtype) for port in self.ports]
        for port, old, new in zip(self.ports, arrays, grown, strict=True):
            first_tokens(port, new, length)[...] = old
        self._held = (Side(grown), Side(twins(self.ports, grown)), length)

    def _firsts(self, length: int) -> list[Array]:
        return [
            first_tokens(port, array, length) for port, array in zip(self.ports, self.arrays, strict=True)
        ]

    def _require_rollback(self, length: int) -> None:
        if length < self.length and not self.can_truncate:
            raise BackendError("This model has recurrent states, which cannot be rolled back.")


def twins(ports: Sequence[StatePort], arrays: Sequence[Array]) -> list[Array]:
    """The same arrays where states grow, other ones where they have a fixed size."""
    return [
        np.zeros_like(array) if port.growth_axis is None else array
        for port, array in zip(ports, arrays, strict=True)
    ]


def rounded_up(tokens: int, step: int) -> int:
    """`tokens` rounded up to a multiple of `step`, one step at least."""
    return max(1, -(-tokens // step)) * step


def state_shape(port: StatePort, tokens: int, rows: int = 1) -> tuple[int, ...]:
    """The shape of a state of that many tokens, for that many sequences."""
    shape = [tokens if axis == port.growth_axis else size for axis, size in enumerate(port.shape)]
    return rows * shape[0], *shape[1:]


def first_tokens(port: StatePort, array: Array, tokens: int) -> Array:
    """The part of a state that belongs to its first tokens; all of it if it has a fixed size."""
    if port.growth_axis is None:
        return array
    return array[(slice(None),) * port.growth_axis + (slice(tokens),)]


def _capacity(tokens: int) -> int:
    return rounded_up(tokens, _CAPACITY_STEP)
