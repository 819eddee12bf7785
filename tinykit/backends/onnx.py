"""ONNX Runtime backend: shared KV buffers through IO binding where the graph allows it, else plain feeds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from tinykit.backends.base import BackendInfo, Logits, State
from tinykit.backends.signature import StatePort, find_states, numpy_dtype
from tinykit.devices import default_threads
from tinykit.errors import BackendError, ClosedError, ModelFileError, TinykitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnxruntime

# written by tinykit.convert.decoder: the graph's attention accepts one buffer as past and present
_SHARED_KV = "tinykit.shared_kv"
_CAPACITY_STEP = 256  # tokens; KV buffers have a multiple of it
_Array = npt.NDArray[Any]


class OnnxState:
    """A model's states as numpy arrays; shared buffers have room for `capacity` tokens."""

    def __init__(self, ports: Sequence[StatePort], *, capacity: int) -> None:
        self.ports = ports
        self.capacity = capacity
        self.length = 0
        self.arrays = [np.zeros(_with_axis(port, capacity), port.dtype) for port in ports]
        self.binding: Any = None  # the backend's cached one-token binding to these arrays

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def can_truncate(self) -> bool:
        """False as soon as one state has a fixed size."""
        return all(port.growth_axis is not None for port in self.ports)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a state of {self.length} tokens to {length}")
        if length < self.length and not self.can_truncate:
            raise BackendError("This model has recurrent states, which cannot be rolled back.")
        self.length = length
        if self.capacity > max(4 * _CAPACITY_STEP, 4 * length):
            self._resize(length or 1)
        if not self.capacity:
            self.arrays = [
                _first(port, array, length) for port, array in zip(self.ports, self.arrays, strict=True)
            ]

    def copy(self, length: int | None = None) -> OnnxState:
        """An independent copy of the first `length` tokens' state."""
        length = self.length if length is None else length
        if length < self.length and not self.can_truncate:
            raise BackendError("This model has recurrent states, which cannot be rolled back.")
        twin = OnnxState(self.ports, capacity=0)
        twin.arrays = [
            _first(port, array, length).copy() for port, array in zip(self.ports, self.arrays, strict=True)
        ]
        twin.length = length
        if self.capacity:
            twin.reserve(length)
        return twin

    def reserve(self, tokens: int) -> None:
        """Make room for `tokens` tokens in all, keeping what is there."""
        if tokens <= self.capacity:
            return
        # by a quarter at least, so that a long answer does not copy its cache over and over
        self._resize(max(tokens, self.capacity + self.capacity // 4))

    def _resize(self, tokens: int) -> None:
        capacity = -(-tokens // _CAPACITY_STEP) * _CAPACITY_STEP
        grown = [np.zeros(_with_axis(port, capacity), port.dtype) for port in self.ports]
        for port, old, new in zip(self.ports, self.arrays, grown, strict=True):
            _first(port, new, self.length)[...] = _first(port, old, self.length)
        self.arrays, self.capacity, self.binding = grown, capacity, None


def _with_axis(port: StatePort, tokens: int) -> tuple[int, ...]:
    return tuple(tokens if axis == port.growth_axis else size for axis, size in enumerate(port.shape))


def _first(port: StatePort, array: _Array, tokens: int) -> _Array:
    if port.growth_axis is None:
        return array
    return array[(slice(None),) * port.growth_axis + (slice(tokens),)]


class OnnxBackend:
    """A decoder graph in ONNX Runtime.

    Args:
        path: The ``.onnx`` file; external data lies beside it.
        dtype: What to report as the weights' precision.
        context_length: Tokens that the model was made for.
        threads: Threads for one operator; by default `default_threads()`.
        shared_kv: None reads from the graph whether one buffer may serve as past and present; False forces
            plain feeds, which give the same logits and copy the whole cache at each step.

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
    ) -> None:
        threads = threads or default_threads()
        self._session: onnxruntime.InferenceSession | None = _open_session(path, threads)
        session = self._session
        inputs, outputs = session.get_inputs(), session.get_outputs()
        self._inputs = {port.name: port for port in inputs}
        self._ports = find_states(inputs, outputs)
        if "logits" not in {port.name for port in outputs}:
            raise ModelFileError(
                f"{path} has no output named 'logits': it is not a language model.", path=path
            )
        self._logits_dtype = numpy_dtype(next(port for port in outputs if port.name == "logits"))
        self._output_names = ["logits", *(port.present for port in self._ports)]
        if shared_kv is None:
            shared_kv = session.get_modelmeta().custom_metadata_map.get(_SHARED_KV) == "1"
        self._shared_kv = shared_kv
        vocab_size = next(port for port in outputs if port.name == "logits").shape[-1]
        if not isinstance(vocab_size, int):
            vocab_size = len(self._forward_plain([0], self.new_state()))
        self._logits = np.zeros((1, 1, vocab_size), self._logits_dtype)
        self._one_id = np.zeros((1, 1), np.int64)
        self._mask = np.ones((1, context_length), np.int64)
        self._keep = np.array(1, np.int64)
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
        return OnnxState(self._ports, capacity=0)

    def forward(self, token_ids: Sequence[int], state: State) -> Logits:
        """Logits after the last of `token_ids`, shape (vocab_size,); `state` grows by their number."""
        if self._session is None:
            raise ClosedError("This model was closed.", hint="Make a new TinySession.")
        if not token_ids:
            raise ValueError("forward() needs at least one token")
        assert isinstance(state, OnnxState)
        with _translated():
            run = self._forward_shared if self._shared_kv else self._forward_plain
            return run(token_ids, state)

    def close(self) -> None:
        """Release the session; closing twice is harmless."""
        self._session = None

    def _forward_shared(self, token_ids: Sequence[int], state: OnnxState) -> Logits:
        total = state.length + len(token_ids)
        state.reserve(total)
        if state.binding is None:
            state.binding = self._bind_state(state)
        binding = state.binding
        ids = self._one_id if len(token_ids) == 1 else np.zeros((1, len(token_ids)), np.int64)
        ids[0] = token_ids
        if total > self._mask.shape[1]:
            self._mask = np.ones((1, 2 * total), np.int64)
        _bind_input(binding, "input_ids", ids)
        # a slice of the mask starts at the same address, so only the shape differs from step to step
        _bind_input(binding, "attention_mask", self._mask[:, :total])
        cast(Any, self._session).run_with_iobinding(binding)
        state.length = total
        return cast(Logits, self._logits[0, 0])

    def _bind_state(self, state: OnnxState) -> Any:
        binding = cast(Any, self._session).io_binding()
        _bind_input(binding, "num_logits_to_keep", self._keep)
        _bind_output(binding, "logits", self._logits)
        for port, array in zip(self._ports, state.arrays, strict=True):
            _bind_input(binding, port.past, array)
            _bind_output(binding, port.present, array)
        return binding

    def _forward_plain(self, token_ids: Sequence[int], state: OnnxState) -> Logits:
        count, total = len(token_ids), state.length + len(token_ids)
        # cut to length: an interrupt may have come between the two assignments at the end
        feeds: dict[str, _Array] = {
            port.past: _first(port, array, state.length)
            for port, array in zip(self._ports, state.arrays, strict=True)
        }
        feeds["input_ids"] = np.array([token_ids], self._input_dtype("input_ids"))
        if "attention_mask" in self._inputs:
            feeds["attention_mask"] = np.ones((1, total), self._input_dtype("attention_mask"))
        if "position_ids" in self._inputs:
            feeds["position_ids"] = self._positions(state.length, count)
        for name in ("num_logits_to_keep", "logits_to_keep"):
            if name in self._inputs:
                feeds[name] = np.ones([1] * len(self._inputs[name].shape), self._input_dtype(name))
        if "use_cache_branch" in self._inputs:
            feeds["use_cache_branch"] = np.array([state.length > 0])
        logits, *arrays = cast(Any, self._session).run(self._output_names, feeds)
        state.arrays, state.length = arrays, total
        return cast(Logits, logits[0, -1].astype(np.float32, copy=False))

    def _positions(self, start: int, count: int) -> _Array:
        port = self._inputs["position_ids"]
        positions = np.arange(start, start + count, dtype=self._input_dtype("position_ids"))[None]
        rows = port.shape[0]
        # three equal rows for text in models with multimodal rotary positions
        return positions if len(port.shape) == 2 else np.repeat(positions[None], int(rows), axis=0)

    def _input_dtype(self, name: str) -> np.dtype[np.generic]:
        return numpy_dtype(self._inputs[name])


def _bind_input(binding: Any, name: str, array: _Array) -> None:
    binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def _bind_output(binding: Any, name: str, array: _Array) -> None:
    binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)


def _open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors reach the caller as exceptions; the log would only repeat them
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads
    if not path.is_file():
        raise ModelFileError(f"There is no file {path}.", path=path)
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
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
