"""ONNX Runtime backend: shared KV buffers through IO binding where the graph allows it, else plain feeds."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tinykit.backends.base import Array, BackendInfo, Batch, Logits, State
from tinykit.backends.onnx_batch import PlainBatch, SharedBatch
from tinykit.backends.onnx_inputs import Inputs
from tinykit.backends.onnx_session import Graph
from tinykit.backends.onnx_state import OnnxState
from tinykit.backends.signature import NO_HINTS, StateHints, find_states, numpy_dtype
from tinykit.devices import CPU, Device, default_threads
from tinykit.errors import BackendError, ModelFileError

# written by tinykit.convert.decoder: the graph's attention accepts one buffer as past and present
_SHARED_KV = "tinykit.shared_kv"
_MOST_KEPT_LOGITS = 32  # rows
# One token goes through matrix times vector, more through matrix times matrix, where each row's sums are the
# same for any number of rows. Measured for fp32 and q8; tests/backends/test_onnx.py checks it.
_EXACT_TOKENS = 2
# Prompt tokens in one forward: 128 take some 60 ms on two cores with the 135M weights of the default model.
_CHUNK_TOKENS, _CHUNK_STEP, _CHUNK_WEIGHTS = 128, 16, 180e6
# Tokens times bytes of weights from which on a forward may take long: more than a decode step of such models.
_LONG_WORK = 2_000_000_000


class OnnxBackend:
    """A decoder graph in ONNX Runtime.

    Args:
        path: The ``.onnx`` file; external data lies beside it.
        dtype: What to report as the weights' precision.
        context_length: Tokens that the model was made for.
        threads: Threads for one operator; by default `default_threads()`.
        shared_kv: Whether one buffer may serve as past and present. None reads the mark of our own graphs;
            False forces plain feeds, which give the same logits and copy the whole cache at each step.
        can_batch: Whether several sequences may go in at once, where the graph's inputs allow it. None says
            yes to our own graphs only.
        hints: What the model's configuration says about its states.
        data: All files with weights by the names that the graph has for them, if they lie elsewhere than
            beside `path`.
        is_final: Whether the graph runs as it is, without a search for something to fuse or to fold at each
            start. That search folds the view of an embedding into a copy of all of it.
        device: Where to run. Off the CPU the states go back and forth with plain feeds.

    Raises:
        DeviceError: the device cannot be used.
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
        can_batch: bool | None = None,
        hints: StateHints = NO_HINTS,
        data: Mapping[str, Path] | None = None,
        is_final: bool = False,
        device: Device = CPU,
    ) -> None:
        threads = threads or default_threads()
        self._graph = graph = Graph(path, threads, data or {}, device, is_final=is_final)
        if device != CPU:  # one buffer as past and present is a matter of addresses in this memory
            shared_kv = False
        self._ports = find_states(graph.inputs, graph.outputs, hints)
        self._inputs = Inputs(graph.inputs, context_length)
        logits = next((port for port in graph.outputs if port.name == "logits"), None)
        if logits is None:
            raise ModelFileError(
                f"{path} has no output named 'logits': it is not a language model.", path=path
            )
        self._output_names = ["logits", *(port.present for port in self._ports)]
        is_ours = graph.metadata.get(_SHARED_KV) == "1"
        self._shared_kv = is_ours if shared_kv is None else shared_kv
        self._is_last_only = logits.shape[1] == 1
        vocab_size = logits.shape[-1]
        if not isinstance(vocab_size, int):
            with graph.running():
                vocab_size = self._forward_plain([0], OnnxState(self._ports, shared=False), 1).shape[1]
        self._logits = np.zeros((1, 1, vocab_size), numpy_dtype(logits))
        weights_bytes = _weights_bytes(path, data or {})
        graph.long_tokens = max(1, _LONG_WORK // max(1, weights_bytes))
        self.info = BackendInfo(
            backend="onnx",
            device=device.name,
            providers=graph.providers,
            dtype=dtype,
            vocab_size=vocab_size,
            context_length=context_length,
            threads=threads,
            chunk_tokens=_chunk_tokens(weights_bytes, dtype),
            can_batch=(is_ours and self._shared_kv if can_batch is None else can_batch)
            and self._has_batches(),
            is_shape_invariant=False,
            exact_tokens=_EXACT_TOKENS if is_ours else None,
            bytes_per_token=sum(port.bytes_per_token for port in self._ports),
            device_share=graph.device_share,
            weights_bytes=weights_bytes,
        )

    def new_state(self) -> OnnxState:
        """The state before the first token."""
        return OnnxState(self._ports, shared=self._shared_kv)

    def load_state(self, arrays: Mapping[str, Array], length: int) -> OnnxState:
        """The state of `length` tokens that was dumped."""
        return OnnxState.loaded(self._ports, arrays, length, shared=self._shared_kv)

    def new_batch(self) -> Batch:
        """A batch without rows."""
        if not self.info.can_batch:
            raise BackendError(
                "This model cannot run several sequences at once.", hint="Run them one after the other."
            )
        if self._shared_kv:
            return SharedBatch(self._graph, self._ports, self._inputs, self._logits[:0, :1])
        return PlainBatch(self._graph, self._ports, self._inputs)

    def forward(self, token_ids: Sequence[int], state: State, *, rows: int = 1) -> Logits:
        """Logits after each of the last `rows` of `token_ids`, shape (rows, vocab_size)."""
        if not token_ids:
            raise ValueError("forward() needs at least one token")
        if not 1 <= rows <= len(token_ids):
            raise ValueError(f"forward() cannot give logits after {rows} of {len(token_ids)} tokens")
        assert isinstance(state, OnnxState)
        with self._graph.running(len(token_ids)):
            run = self._forward_singly if self._is_last_only and rows > 1 else self._forward
            return run(token_ids, state, rows).astype(np.float32, copy=False)

    def interrupt(self) -> None:
        """Let the forward that is running, if any, raise `ForwardInterrupted` soon; for any thread."""
        self._graph.interrupt()

    def close(self) -> None:
        """Release the session; closing twice is harmless."""
        self._graph.close()

    def _has_batches(self) -> bool:
        is_free = not any(isinstance(p.shape[0], int) for p in self._graph.inputs if p.name in self._pasts())
        return bool(self._ports) and is_free and self._inputs.can_batch

    def _pasts(self) -> set[str]:
        return {port.past for port in self._ports}

    def _forward(self, token_ids: Sequence[int], state: OnnxState, rows: int) -> Array:
        run = self._forward_shared if self._shared_kv else self._forward_plain
        return run(token_ids, state, rows)

    def _forward_singly(self, token_ids: Sequence[int], state: OnnxState, rows: int) -> Array:
        """One step for each row of logits, for graphs that give only the last."""
        before = state.length
        spare = None if state.can_truncate else state.copy()
        first = len(token_ids) - rows + 1
        try:
            logits = [self._forward(token_ids[:first], state, 1).copy()]
            for token_id in token_ids[first:]:
                logits.append(self._forward([token_id], state, 1).copy())
        except BaseException:
            if spare is None:
                state.truncate(before)
            else:
                state.become(spare)
            raise
        return np.concatenate(logits)

    def _forward_shared(self, token_ids: Sequence[int], state: OnnxState, rows: int) -> Array:
        total = state.length + len(token_ids)
        state.reserve(total)
        reading, writing = state.sides
        binding, _ = reading.bound
        if binding is None:
            binding = self._graph.new_binding()
            for port, past, present in zip(self._ports, reading.arrays, writing.arrays, strict=True):
                binding.read(port.past, past)
                binding.write(port.present, present)
            reading.bound = binding, 1
        feeds = self._inputs.following(token_ids, state.length, rows)
        for name, array in feeds.items():
            binding.read(name, array)
        buffer = self._logits_buffer(len(token_ids), rows)
        if buffer is None:
            binding.write_new("logits")
        else:
            binding.write("logits", buffer)
        self._graph.run_bound(binding)
        state.advance(total)
        logits = binding.made() if buffer is None else buffer
        return logits[0, -rows:]

    def _logits_buffer(self, count: int, rows: int) -> Array | None:
        """Where the graph shall write logits; None if they are too many to keep room for them."""
        given = 1 if self._is_last_only else rows if self._inputs.can_keep else count
        if given > _MOST_KEPT_LOGITS:
            return None
        if given > self._logits.shape[1]:
            self._logits = np.zeros((1, given, self._logits.shape[2]), self._logits.dtype)
        return self._logits[:, :given]

    def _forward_plain(self, token_ids: Sequence[int], state: OnnxState, rows: int) -> Array:
        feeds = self._inputs.following(token_ids, state.length, rows)
        feeds |= {port.past: array for port, array in zip(self._ports, state.arrays, strict=True)}
        logits, *arrays = self._graph.run(self._output_names, feeds)
        state.advance(state.length + len(token_ids), arrays)
        return logits[0, -rows:]


def _weights_bytes(path: Path, data: Mapping[str, Path]) -> int:
    beside = path.parent.glob(f"{glob.escape(path.name)}*")
    return sum(file.stat().st_size for file in {*beside, *data.values()})


def _chunk_tokens(size_bytes: int, dtype: str) -> int:
    """Fewer tokens for larger models, whose size is told by their files; the same on every machine."""
    bits = re.search("32|16|8|4", dtype)
    weights = 8 * size_bytes / int(bits.group() if bits else 8)
    tokens = int(_CHUNK_TOKENS * _CHUNK_WEIGHTS / weights)
    return min(max(tokens // _CHUNK_STEP * _CHUNK_STEP, _CHUNK_STEP), _CHUNK_TOKENS)
