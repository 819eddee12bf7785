"""What a decoder graph reads besides its states: token ids, mask and positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinykit.backends.base import Array
from tinykit.backends.signature import CONTROL_INPUTS, KEEP_INPUTS, Port, numpy_dtype

_MROPE_ROWS = 3  # time, height, width


class Inputs:
    """Fills these inputs for one sequence or for one token of each row of a batch.

    The arrays of one step may lie in the memory of those of the step before: what is bound by address stays
    bound.
    """

    def __init__(self, ports: Sequence[Port], context_length: int) -> None:
        self._ports = {port.name: port for port in ports if port.name in CONTROL_INPUTS}
        self._dtypes = {name: numpy_dtype(port) for name, port in self._ports.items()}
        self._keep = {
            name: np.ones([1] * len(self._ports[name].shape), self._dtypes[name])
            for name in sorted(KEEP_INPUTS & self._ports.keys())
        }
        self._ids = np.zeros((1, 1), self._dtypes.get("input_ids", np.dtype(np.int64)))
        self._position = np.zeros(self._position_shape(1, 1), self._dtypes.get("position_ids", np.int64))
        self._mask = np.ones((1, context_length), self._dtypes.get("attention_mask", np.int64))

    @property
    def can_keep(self) -> bool:
        """Whether the graph is told how many rows of logits it shall give."""
        return bool(self._keep)

    @property
    def can_batch(self) -> bool:
        """Whether rows of different lengths can be told apart."""
        is_free = not any(isinstance(port.shape[0], int) for port in self._batched())
        return is_free and "attention_mask" in self._ports and "cache_position" not in self._ports

    def following(self, token_ids: Sequence[int], start: int, rows: int) -> dict[str, Array]:
        """Inputs for tokens that follow `start` others, to get the logits after the last `rows`."""
        count, total = len(token_ids), start + len(token_ids)
        ids = self._ids if count == 1 else np.zeros((1, count), self._ids.dtype)
        ids[0] = token_ids
        made = {"input_ids": ids}
        if "attention_mask" in self._ports:
            if total > self._mask.shape[1]:
                self._mask = np.ones((1, 2 * total), self._mask.dtype)
            made["attention_mask"] = self._mask[:, :total]
        if "position_ids" in self._ports:
            positions = self._position
            if count > 1:
                positions = np.zeros(self._position_shape(1, count), positions.dtype)
            positions[...] = np.arange(start, total)
            made["position_ids"] = positions
        if "cache_position" in self._ports:
            made["cache_position"] = np.arange(start, total, dtype=self._dtypes["cache_position"])
        return made | self._others(rows, start > 0)

    def step(self, token_ids: Sequence[int], lengths: Array, mask: Array) -> dict[str, Array]:
        """Inputs for one token of each row.

        Args:
            token_ids: One for each row.
            lengths: Tokens that each row has seen.
            mask: Shape (rows, columns): which entries of the states each row has, and that of its new token.
        """
        made: dict[str, Array] = {
            "input_ids": np.array(token_ids, self._ids.dtype)[:, None],
            "attention_mask": mask.astype(self._mask.dtype),
        }
        if "position_ids" in self._ports:
            positions = np.empty(self._position_shape(len(token_ids), 1), self._position.dtype)
            positions[...] = lengths[:, None]
            made["position_ids"] = positions
        return made | self._others(1, mask.shape[1] > 1)

    def _others(self, rows: int, has_past: bool) -> dict[str, Array]:
        made: dict[str, Array] = {}
        for name, keep in self._keep.items():
            keep.fill(rows)
            made[name] = keep
        if "use_cache_branch" in self._ports:
            made["use_cache_branch"] = np.array([has_past])
        return made

    def _position_shape(self, batch: int, count: int) -> tuple[int, ...]:
        port = self._ports.get("position_ids")
        if port is None or len(port.shape) == 2:
            return batch, count
        # equal rows for text in models with multimodal rotary positions
        return port.shape[0] if isinstance(port.shape[0], int) else _MROPE_ROWS, batch, count

    def _batched(self) -> list[Port]:
        return [self._ports[name] for name in ("input_ids", "attention_mask") if name in self._ports]
