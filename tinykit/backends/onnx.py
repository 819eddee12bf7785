"""ONNX Runtime backend: shared KV buffers through IO binding where the graph allows it, else plain feeds."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tinykit.backends.base import Array, BackendInfo, Batch, Logits, State
from tinykit.backends.onnx_session import Runs, mapped, open_session
from tinykit.backends.onnx_state import OnnxState, Side
from tinykit.backends.signature import NO_HINTS, StateHints, find_states, numpy_dtype
from tinykit.devices import default_threads
from tinykit.errors import BackendError, ClosedError, ModelFileError

if TYPE_CHECKING:
    import onnxruntime

# written by tinykit.convert.decoder: the graph's attention accepts one buffer as past and present
_SHARED_KV = "tinykit.shared_kv"
_KEEP_INPUTS = frozenset({"num_logits_to_keep", "logits_to_keep"})
_MROPE_ROWS = 3  # time, height, width
# Prompt tokens in one forward: 128 take some 60 ms on two cores with the 135M weights of the default model.
_CHUNK_TOKENS, _CHUNK_STEP, _CHUNK_WEIGHTS = 128, 16, 150e6


class OnnxBackend:
    """A decoder graph in ONNX Runtime.

    Args:
        path: The ``.onnx`` file; external data lies beside it.
        dtype: What to report as the weights' precision.
        context_length: Tokens that the model was made for.
        threads: Threads for one operator; by default `default_threads()`.
        shared_kv: Whether one buffer may serve as past and present. None reads the mark of our own graphs;
            False forces plain feeds, which give the same logits and copy the whole cache at each step.
        hints: What the model's configuration says about its states.
        data: All files with weights by the names that the graph has for them, if they lie elsewhere than
            beside `path`.

    Raises:
        ModelFileError: ONNX Runtime cannot load the file.
        UnsupportedModelError: the graph has an input or state that tinykit does not know.
    """

    def __init__(
        self,
        path: Path,
        *,
        dtype: str,
        context_length: int,
        threads: int | None = None,
        shared_kv: bool | None = None,
        hints: StateHints = NO_HINTS,
        data: Mapping[str, Path] | None = None,
    ) -> None:
        threads = threads or default_threads()
        # the session reads these for as long as it lives
        self._maps = {name: mapped(file) for name, file in (data or {}).items()}
        self._session: onnxruntime.InferenceSession | None = open_session(path, threads, self._maps)
        session = self._session
        inputs, outputs = session.get_inputs(), session.get_outputs()
        self._inputs = {port.name: port for port in inputs}
        self._ports = find_states(inputs, outputs, hints)
        logits = next((port for port in outputs if port.name == "logits"), None)
        if logits is None:
            raise ModelFileError(
                f"{path} has no output named 'logits': it is not a language model.", path=path
            )
        self._output_names = ["logits", *(port.present for port in self._ports)]
        if shared_kv is None:
            shared_kv = session.get_modelmeta().custom_metadata_map.get(_SHARED_KV) == "1"
        self._shared_kv = shared_kv
        vocab_size = logits.shape[-1]
        if not isinstance(vocab_size, int):
            vocab_size = self._forward_plain([0], OnnxState(self._ports, shared=False), 1, None).shape[1]
        self._is_last_only = logits.shape[1] == 1
        has_rows = self._is_last_only or not _KEEP_INPUTS.isdisjoint(self._inputs)
        self._logits = np.zeros((1, 1, vocab_size), numpy_dtype(logits)) if has_rows else None
        self._one_id = np.zeros((1, 1), self._input_dtype("input_ids"))
        self._mask = np.ones((1, context_length), self._input_dtype("attention_mask"))
        self._runs = Runs()
        self.info = BackendInfo(
            backend="onnx",
            device="cpu",
            providers=tuple(session.get_providers()),
            dtype=dtype,
            vocab_size=vocab_size,
            context_length=context_length,
            threads=threads,
            chunk_tokens=_chunk_tokens(path, dtype),
            can_batch=False,
            is_shape_invariant=False,
            bytes_per_token=sum(port.bytes_per_token for port in self._ports),
        )

    def new_state(self) -> OnnxState:
        """The state before the first token."""
        return OnnxState(self._ports, shared=self._shared_kv)

    def load_state(self, arrays: Mapping[str, Array], length: int) -> OnnxState:
        """The state of `length` tokens that was dumped."""
        return OnnxState.loaded(self._ports, arrays, length, shared=self._shared_kv)

    def new_batch(self) -> Batch:
        """A batch without rows."""
        raise BackendError("This model cannot run several sequences at once.")

    def forward(self, token_ids: Sequence[int], state: State, *, rows: int = 1) -> Logits:
        """Logits after each of the last `rows` of `token_ids`, shape (rows, vocab_size)."""
        if self._session is None:
            raise ClosedError("This model was closed.", hint="Make a new TinySession.")
        if not token_ids:
            raise ValueError("forward() needs at least one token")
        if not 1 <= rows <= len(token_ids):
            raise ValueError(f"forward() cannot give logits after {rows} of {len(token_ids)} tokens")
        assert isinstance(state, OnnxState)
        with self._runs.running() as options:
            run = self._forward_singly if self._is_last_only and rows > 1 else self._forward
            return run(token_ids, state, rows, options).astype(np.float32, copy=False)

    def interrupt(self) -> None:
        """Let the forward that is running, if any, raise `ForwardInterrupted` soon; for any thread."""
        self._runs.stop()

    def close(self) -> None:
        """Release the session; closing twice is harmless."""
        self._session = None
        self._maps = {}

    def _forward(self, token_ids: Sequence[int], state: OnnxState, rows: int, options: Any) -> Array:
        run = self._forward_shared if self._shared_kv else self._forward_plain
        return run(token_ids, state, rows, options)

    def _forward_singly(self, token_ids: Sequence[int], state: OnnxState, rows: int, options: Any) -> Array:
        """One step for each row of logits, for graphs that give only the last."""
        before = state.length
        spare = None if state.can_truncate else state.copy()
        first = len(token_ids) - rows + 1
        try:
            logits = [self._forward(token_ids[:first], state, 1, options).copy()]
            for token_id in token_ids[first:]:
                logits.append(self._forward([token_id], state, 1, options).copy())
        except BaseException:
            if spare is None:
                state.truncate(before)
            else:
                state.become(spare)
            raise
        return np.concatenate(logits)

    def _forward_shared(self, token_ids: Sequence[int], state: OnnxState, rows: int, options: Any) -> Array:
        total = state.length + len(token_ids)
        state.reserve(total)
        reading, writing = state.sides
        if reading.binding is None:
            reading.binding = self._bind_states(reading, writing)
        binding = reading.binding
        logits = self._bind_logits(binding, rows)
        if total > self._mask.shape[1]:
            self._mask = np.ones((1, 2 * total), self._mask.dtype)
        feeds = self._token_feeds(token_ids, state.length, rows)
        for name, array in feeds.items():
            _bind_input(binding, name, array)
        cast(Any, self._session).run_with_iobinding(binding, options)
        state.advance(total)
        if logits is None:
            logits = binding.get_outputs()[-1].numpy()
        return logits[0, -rows:]

    def _bind_logits(self, binding: Any, rows: int) -> Array | None:
        """The buffer that the graph will write, or None if it makes one for the logits of all tokens."""
        if self._logits is None:
            binding.bind_output("logits", "cpu")  # of a new shape
            return None
        if rows > self._logits.shape[1]:
            self._logits = np.zeros((1, rows, self._logits.shape[2]), self._logits.dtype)
        logits = self._logits[:, :rows]
        _bind_output(binding, "logits", logits)
        return logits

    def _bind_states(self, reading: Side, writing: Side) -> Any:
        binding = cast(Any, self._session).io_binding()
        for port, past, present in zip(self._ports, reading.arrays, writing.arrays, strict=True):
            _bind_input(binding, port.past, past)
            _bind_output(binding, port.present, present)
        return binding

    def _forward_plain(self, token_ids: Sequence[int], state: OnnxState, rows: int, options: Any) -> Array:
        feeds = self._token_feeds(token_ids, state.length, rows)
        feeds |= {port.past: array for port, array in zip(self._ports, state.arrays, strict=True)}
        arrays: list[Array] = cast(Any, self._session).run(self._output_names, feeds, options)
        state.advance(state.length + len(token_ids), arrays[1:])
        return arrays[0][0, -rows:]

    def _token_feeds(self, token_ids: Sequence[int], start: int, rows: int) -> dict[str, Array]:
        """All inputs but the states, for tokens that follow `start` others."""
        count, total = len(token_ids), start + len(token_ids)
        ids = self._one_id if count == 1 else np.zeros((1, count), self._one_id.dtype)
        ids[0] = token_ids
        # a slice of the mask starts at the same address, so only the shape differs from step to step
        mask = (
            self._mask[:, :total] if total <= self._mask.shape[1] else np.ones((1, total), self._mask.dtype)
        )
        made = {"input_ids": ids, "attention_mask": mask}
        for name in self._inputs.keys() & _KEEP_INPUTS:
            made[name] = np.full([1] * len(self._inputs[name].shape), rows, self._input_dtype(name))
        if "position_ids" in self._inputs:
            made["position_ids"] = self._positions(start, count)
        if "cache_position" in self._inputs:
            made["cache_position"] = np.arange(start, total, dtype=self._input_dtype("cache_position"))
        if "use_cache_branch" in self._inputs:
            made["use_cache_branch"] = np.array([start > 0])
        return {name: array for name, array in made.items() if name in self._inputs}

    def _positions(self, start: int, count: int) -> Array:
        port = self._inputs["position_ids"]
        positions = np.arange(start, start + count, dtype=self._input_dtype("position_ids"))[None]
        if len(port.shape) == 2:
            return positions
        # equal rows for text in models with multimodal rotary positions
        rows = port.shape[0] if isinstance(port.shape[0], int) else _MROPE_ROWS
        return np.repeat(positions[None], rows, axis=0)

    def _input_dtype(self, name: str) -> np.dtype[np.generic]:
        port = self._inputs.get(name)
        return np.dtype(np.int64) if port is None else numpy_dtype(port)


def _bind_input(binding: Any, name: str, array: Array) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def _bind_output(binding: Any, name: str, array: Array) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def _chunk_tokens(path: Path, dtype: str) -> int:
    """Fewer tokens for larger models, whose size is told by their files; the same on every machine."""
    bits = re.search("32|16|8|4", dtype)
    size_bytes = sum(file.stat().st_size for file in path.parent.glob(f"{glob.escape(path.name)}*"))
    weights = 8 * size_bytes / int(bits.group() if bits else 8)
    tokens = int(_CHUNK_TOKENS * _CHUNK_WEIGHTS / weights)
    return min(max(tokens // _CHUNK_STEP * _CHUNK_STEP, _CHUNK_STEP), _CHUNK_TOKENS)
