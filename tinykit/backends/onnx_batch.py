"""Rows that decode together in one ONNX graph.

With shared buffers each row has its own part of them and no padding: the attention operator is told each
row's length by the mask, writes behind it and looks no further. With plain feeds the graph appends behind the
longest row, and the mask hides what lies between a shorter row's tokens and that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tinykit.backends.base import Array, Logits, State
from tinykit.backends.onnx_inputs import Inputs
from tinykit.backends.onnx_memory import give_back_part, lazy_zeros
from tinykit.backends.onnx_session import Binding, Graph
from tinykit.backends.onnx_state import OnnxState, Side, first_tokens, rounded_up, state_shape, twins
from tinykit.backends.signature import StatePort

# Room that is not written costs next to nothing, and another size copies all that is there.
_LEAST_CAPACITY = 256  # tokens
_LEAST_ROWS = 16


class _Row(NamedTuple):
    """Where a row lies in the buffers, and how many tokens it has seen."""

    place: int
    length: int


class SharedBatch:
    """Rows in shared buffers, which have room for more rows and tokens than are there.

    Rows lie in the buffers in any order, so that one that leaves moves no more than one other. As in a state,
    what an operation changes is put in place by a single assignment at its end.
    """

    def __init__(self, graph: Graph, ports: Sequence[StatePort], inputs: Inputs, logits: Array) -> None:
        self._graph = graph
        self._ports = ports
        self._inputs = inputs
        self._logits = logits  # shape (room for rows, 1, vocab_size)
        self._held: tuple[Side, Side, tuple[_Row, ...]] = (*self._sides(0, 0), ())

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        reading, _, rows = self._held
        fixed = sum(2 * a.nbytes for p, a in zip(self._ports, reading.arrays, strict=True) if not _grows(p))
        tokens = sum(row.length for row in rows)
        return fixed + tokens * sum(port.bytes_per_token for port in self._ports) + self._logits.nbytes

    def __len__(self) -> int:
        return len(self._held[2])

    def add(self, state: State) -> None:
        """Make a copy of `state` the last row."""
        assert isinstance(state, OnnxState)
        self._reserve(len(self) + 1, state.length)
        reading, writing, rows = self._held
        place = min(set(range(len(rows) + 1)) - {row.place for row in rows})
        for port, buffer, array in zip(self._ports, reading.arrays, state.dump().values(), strict=True):
            first_tokens(port, buffer[place : place + 1], state.length)[...] = array
        self._held = (reading, writing, (*rows, _Row(place, state.length)))

    def remove(self, row: int) -> None:
        """Drop a row; later rows move up."""
        reading, writing, rows = self._held
        row = range(len(rows))[row]
        self._held = (reading, writing, rows[:row] + rows[row + 1 :])
        self._give_back(rows[row].place)

    def forward(self, token_ids: Sequence[int]) -> Logits:
        """Feed each row one token; logits of shape (rows, vocab_size)."""
        _require_one_each(token_ids, len(self))
        self._make_dense()
        self._reserve(len(self), 1 + max(row.length for row in self._held[2]))
        reading, writing, rows = self._held
        places = [row.place for row in rows]
        ids, lengths = np.empty((2, len(rows)), np.int64)
        ids[places], lengths[places] = token_ids, [row.length for row in rows]
        mask = np.arange(1 + lengths.max()) <= lengths[:, None]
        feeds = self._inputs.step(ids.tolist(), lengths, mask)
        with self._graph.running(len(token_ids)):
            binding = self._bound(reading, writing, len(rows))
            for name, array in feeds.items():
                binding.read(name, array)
            self._graph.run_bound(binding)
            self._held = (writing, reading, tuple(_Row(row.place, row.length + 1) for row in rows))
        logits: Array = self._logits[: len(rows), 0]
        if places != list(range(len(rows))):
            logits = logits[places]
        return logits.astype(np.float32, copy=False)

    def _bound(self, reading: Side, writing: Side, rows: int) -> Binding:
        binding, bound_rows = reading.bound
        if binding is None or bound_rows != rows:
            binding = self._graph.new_binding()
            for port, past, present in zip(self._ports, reading.arrays, writing.arrays, strict=True):
                binding.read(port.past, past[:rows])
                binding.write(port.present, present[:rows])
            reading.bound = binding, rows
        binding.write("logits", self._logits[:rows])
        return binding

    def _make_dense(self) -> None:
        """Move rows from the end into the places of those that have left."""
        reading, writing, rows = self._held
        free = sorted(set(range(len(rows))) - {row.place for row in rows})
        if free:
            moved, left = [], []
            for row in rows:
                if row.place >= len(rows):
                    place = free.pop()
                    for port, buffer in zip(self._ports, reading.arrays, strict=True):
                        old, new = (
                            first_tokens(port, buffer[at : at + 1], row.length) for at in (row.place, place)
                        )
                        new[...] = old
                    left.append(row.place)
                    row = _Row(place, row.length)
                moved.append(row)
            self._held = (reading, writing, tuple(moved))
            for place in left:
                self._give_back(place)

    def _give_back(self, place: int) -> None:
        """Let the memory of a place go, where no row lies any more."""
        for port, array in zip(self._ports, self._held[0].arrays, strict=True):
            if _grows(port):
                give_back_part(array, place, place + 1)

    def _reserve(self, rows: int, tokens: int) -> None:
        """Make room for `rows` rows of `tokens` tokens; give memory back where few rows are left of many."""
        held = self._held[2]
        tokens = max([tokens, *(row.length for row in held)])
        before = room, capacity = self._room()
        if rows > room:
            room = max(_LEAST_ROWS, 2 * room)
        elif room > _LEAST_ROWS and 4 * rows <= room:
            room, capacity = room // 2, 0
        if tokens > capacity:
            capacity = rounded_up(max(tokens, 2 * capacity), _LEAST_CAPACITY)
        if (room, capacity) != before:
            self._resize(room, capacity)

    def _room(self) -> tuple[int, int]:
        """Rows and tokens that fit in the buffers."""
        buffers = zip(self._ports, self._held[0].arrays, strict=True)
        return next(
            (buffer.shape[0], buffer.shape[port.growth_axis])
            for port, buffer in buffers
            if port.growth_axis is not None
        )

    def _resize(self, room: int, capacity: int) -> None:
        """Other buffers with the same rows in them, in their order."""
        old, _, rows = self._held
        reading, writing = self._sides(room, capacity)
        for port, source, target in zip(self._ports, old.arrays, reading.arrays, strict=True):
            for place, row in enumerate(rows):
                first_tokens(port, target[place : place + 1], row.length)[...] = first_tokens(
                    port, source[row.place : row.place + 1], row.length
                )
        if len(self._logits) != room:
            self._logits = np.zeros((room, *self._logits.shape[1:]), self._logits.dtype)
        self._held = (reading, writing, tuple(_Row(at, row.length) for at, row in enumerate(rows)))

    def _sides(self, room: int, capacity: int) -> tuple[Side, Side]:
        arrays = [lazy_zeros(state_shape(port, capacity, room), port.dtype) for port in self._ports]
        return Side(arrays), Side(twins(self._ports, arrays))


class PlainBatch:
    """Rows of a graph that copies its states at each step, each with columns that the other rows do not see.

    Rows that come or go are put in place at the next step, when everything is copied anyway.
    """

    def __init__(self, graph: Graph, ports: Sequence[StatePort], inputs: Inputs) -> None:
        self._graph = graph
        self._ports = ports
        self._inputs = inputs
        self._names = ["logits", *(port.present for port in ports)]
        # the states of all rows, the columns that each has, and the rows that are still there
        self._held: tuple[list[Array], Array, tuple[int, ...]] = ([], np.zeros((0, 0), np.bool_), ())
        self._added: tuple[OnnxState, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return sum(array.nbytes for array in self._held[0]) + sum(state.size_bytes for state in self._added)

    def __len__(self) -> int:
        return len(self._held[2]) + len(self._added)

    def add(self, state: State) -> None:
        """Make a copy of `state` the last row."""
        assert isinstance(state, OnnxState)
        self._added = (*self._added, state.copy())

    def remove(self, row: int) -> None:
        """Drop a row; later rows move up."""
        arrays, columns, places = self._held
        row = range(len(self))[row]
        if row < len(places):
            self._held = (arrays, columns, places[:row] + places[row + 1 :])
        else:
            row -= len(places)
            self._added = self._added[:row] + self._added[row + 1 :]

    def forward(self, token_ids: Sequence[int]) -> Logits:
        """Feed each row one token; logits of shape (rows, vocab_size)."""
        _require_one_each(token_ids, len(self))
        arrays, columns = self._joined()
        lengths = columns.sum(axis=1)
        columns = np.pad(columns, ((0, 0), (0, 1)), constant_values=True)
        feeds = self._inputs.step(token_ids, lengths, columns)
        feeds |= {port.past: array for port, array in zip(self._ports, arrays, strict=True)}
        with self._graph.running(len(token_ids)):
            logits, *arrays = self._graph.run(self._names, feeds)
        self._added, self._held = (), (arrays, columns, tuple(range(len(token_ids))))
        return logits[:, -1].astype(np.float32, copy=False)

    def _joined(self) -> tuple[list[Array], Array]:
        """The states of all rows and their columns."""
        arrays, columns, places = self._held
        if not self._added and places == tuple(range(len(columns))):
            return arrays, columns
        rows = [self._row(place) for place in places] + [list(state.dump().values()) for state in self._added]
        lengths = [int(columns[place].sum()) for place in places] + [state.length for state in self._added]
        joined = [np.zeros(state_shape(port, max(lengths), len(rows)), port.dtype) for port in self._ports]
        for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            for port, target, source in zip(self._ports, joined, row, strict=True):
                first_tokens(port, target[place : place + 1], length)[...] = source
        return joined, np.arange(max(lengths)) < np.array(lengths)[:, None]

    def _row(self, place: int) -> list[Array]:
        """The states of one row without other rows' columns."""
        arrays, columns, _ = self._held
        return [
            array[place : place + 1].compress(columns[place], axis=port.growth_axis)
            if port.growth_axis is not None
            else array[place : place + 1]
            for port, array in zip(self._ports, arrays, strict=True)
        ]


def _grows(port: StatePort) -> bool:
    return port.growth_axis is not None


def _require_one_each(token_ids: Sequence[int], rows: int) -> None:
    if not rows or len(token_ids) != rows:
        raise ValueError(f"a batch of {rows} rows cannot take {len(token_ids)} tokens")
