"""ONNX Runtime backend: shared KV buffers through IO binding where the graph allows it, else plain feeds."""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tinykit.backends.base import BackendInfo, Logits, State
from tinykit.backends.onnx_state import Array, OnnxState, Side
from tinykit.backends.signature import NO_HINTS, StateHints, find_states, numpy_dtype
from tinykit.devices import default_threads
from tinykit.errors import BackendError, ClosedError, ModelFileError, TinykitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnxruntime

# written by tinykit.convert.decoder: the graph's attention accepts one buffer as past and present
_SHARED_KV = "tinykit.shared_kv"
_KEEP_INPUTS = frozenset({"num_logits_to_keep", "logits_to_keep"})
# ONNX Runtime up to 1.27 fails on fp16 graphs of plain operators:
# https://github.com/microsoft/onnxruntime/issues/26717
_FAULTY_FUSION = "SimplifiedLayerNormFusion"
_MROPE_ROWS = 3  # time, height, width


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
        self._maps = {name: _mapped(file) for name, file in (data or {}).items()}
        self._session: onnxruntime.InferenceSession | None = _open_session(path, threads, self._maps)
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
            vocab_size = len(self._forward_plain([0], OnnxState(self._ports, shared=False)))
        is_last_only = logits.shape[1] == 1 or not _KEEP_INPUTS.isdisjoint(self._inputs)
        self._logits = np.zeros((1, 1, vocab_size), numpy_dtype(logits)) if is_last_only else None
        self._one_id = np.zeros((1, 1), self._input_dtype("input_ids"))
        self._mask = np.ones((1, context_length), self._input_dtype("attention_mask"))
        self.info = BackendInfo(
            backend="onnx",
            device="cpu",
            providers=tuple(session.get_providers()),
            dtype=dtype,
            vocab_size=vocab_size,
            context_length=context_length,
            threads=threads,
        )

    def new_state(self) -> OnnxState:
        """The state before the first token."""
        return OnnxState(self._ports, shared=self._shared_kv)

    def forward(self, token_ids: Sequence[int], state: State) -> Logits:
        """Logits after the last of `token_ids`, shape (vocab_size,); `state` grows by their number."""
        if self._session is None:
            raise ClosedError("This model was closed.", hint="Make a new TinySession.")
        if not token_ids:
            raise ValueError("forward() needs at least one token")
        assert isinstance(state, OnnxState)
        with _translated():
            run = self._forward_shared if self._shared_kv else self._forward_plain
            return run(token_ids, state).astype(np.float32, copy=False)

    def close(self) -> None:
        """Release the session; closing twice is harmless."""
        self._session = None
        self._maps = {}

    def _forward_shared(self, token_ids: Sequence[int], state: OnnxState) -> Array:
        total = state.length + len(token_ids)
        state.reserve(total)
        reading, writing = state.sides
        if reading.binding is None:
            reading.binding = self._bind_states(reading, writing)
        binding = reading.binding
        if total > self._mask.shape[1]:
            self._mask = np.ones((1, 2 * total), self._mask.dtype)
        feeds = self._token_feeds(token_ids, state.length)
        for name, array in feeds.items():
            _bind_input(binding, name, array)
        if self._logits is None:
            binding.bind_output("logits", "cpu")  # of a new shape
        cast(Any, self._session).run_with_iobinding(binding)
        state.advance(total)
        logits: Array = binding.get_outputs()[-1].numpy() if self._logits is None else self._logits
        return cast(Array, logits[0, -1])

    def _bind_states(self, reading: Side, writing: Side) -> Any:
        binding = cast(Any, self._session).io_binding()
        if self._logits is not None:
            _bind_output(binding, "logits", self._logits)
        for port, past, present in zip(self._ports, reading.arrays, writing.arrays, strict=True):
            _bind_input(binding, port.past, past)
            _bind_output(binding, port.present, present)
        return binding

    def _forward_plain(self, token_ids: Sequence[int], state: OnnxState) -> Array:
        feeds = self._token_feeds(token_ids, state.length)
        feeds |= {port.past: array for port, array in zip(self._ports, state.arrays, strict=True)}
        arrays: list[Array] = cast(Any, self._session).run(self._output_names, feeds)
        state.advance(state.length + len(token_ids), arrays[1:])
        return cast(Array, arrays[0][0, -1])

    def _token_feeds(self, token_ids: Sequence[int], start: int) -> dict[str, Array]:
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
            made[name] = np.ones([1] * len(self._inputs[name].shape), self._input_dtype(name))
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


def _mapped(file: Path) -> mmap.mmap:
    """The file's bytes, read only when they are touched."""
    try:
        with file.open("rb") as opened:
            return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"{file} cannot be read: {error}", hint="Fetch the model again.", path=file
        ) from error


def _open_session(path: Path, threads: int, maps: Mapping[str, mmap.mmap]) -> onnxruntime.InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors reach the caller as exceptions; the log would only repeat them
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads
    if maps:
        sizes = [len(view) for view in maps.values()]
        options.add_external_initializers_from_files_in_memory(list(maps), list(maps.values()), sizes)
    if not path.is_file():
        raise ModelFileError(f"There is no file {path}.", path=path)

    def opened(disabled: list[str] | None = None) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
        )

    try:
        try:
            return opened()
        except Exception as error:
            if _FAULTY_FUSION not in str(error):
                raise
            return opened([_FAULTY_FUSION])
    except Exception as error:
        raise ModelFileError(
            f"ONNX Runtime {onnxruntime.__version__} cannot load {path}: {_first_line(error)}",
            hint="The file may be damaged or need a newer onnxruntime: tinykit doctor shows both.",
            path=path,
        ) from error


@contextmanager
def _translated() -> Iterator[None]:
    """ONNX Runtime's errors as ours: some are plain RuntimeErrors, the others share only their module."""
    try:
        yield
    except TinykitError:
        raise
    except Exception as error:
        if type(error) is RuntimeError or type(error).__module__.startswith("onnxruntime"):
            raise BackendError(
                f"ONNX Runtime failed while running the model: {_first_line(error)}"
            ) from error
        raise


def _first_line(error: Exception) -> str:
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", str(error)).strip().split("\n")[0]
