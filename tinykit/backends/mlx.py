"""MLX backend, through mlx-lm's models and caches.

Arrays of MLX belong to the thread that made them (https://github.com/ml-explore/mlx-lm/issues/1181), so one
thread of this process imports it, loads and computes; everybody else waits for its answers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tinykit.backends.base import Array, BackendInfo, Batch, Logits, State
from tinykit.backends.mlx_state import MlxState, arrays_of, dumped, fill, is_plain, restored, spare_of
from tinykit.backends.one_thread import Abandoned, OneThread, Work
from tinykit.errors import (
    BackendError,
    ClosedError,
    DeviceError,
    ForwardInterrupted,
    ModelFileError,
    OptionError,
    TinykitError,
    UnsupportedModelError,
)
from tinykit.optional import require

THREAD: Final = OneThread("tinykit-mlx")
_FLOATS: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_BITS: Final = {"q8": 8, "q4": 4}
DTYPES: Final = ("auto", *_FLOATS, *_BITS)
_GROUP = 32  # weights that share a scale, as in ggml's formats
# Prompt tokens in one forward: a cancel waits for no more. A GPU takes four times as many in the same time.
_CHUNK_TOKENS, _CHUNK_STEP, _CHUNK_WEIGHTS, _GPU_FACTOR = 128, 16, 150e6, 4
_TIE = 0.02  # share of the logits' spread by which rounding may change the order of two tokens
_CLEAR_EVERY = 256  # forwards, between which MLX may keep memory that it has freed


class MlxBackend:
    """A folder with safetensors and the configuration of a model that mlx-lm knows.

    Args:
        folder: The model: of an MLX repo, or a checkpoint of transformers.
        context_length: Tokens that the model was made for.
        dtype: Float type to convert to, or bits to round float weights to; ``auto`` leaves them as they are.
        device: ``cpu`` for MLX on the CPU; else what MLX takes by itself, a GPU if there is one.

    Raises:
        DeviceError: the GPU computes something else than the CPU.
        MissingPackageError: mlx-lm is not installed.
        ModelFileError: the files cannot be used.
        UnsupportedModelError: mlx-lm does not know the family, or the folder brings code of its own.
        BackendError: MLX cannot start on this machine.
    """

    def __init__(
        self, folder: Path, *, context_length: int, dtype: str = "auto", device: str = "mlx"
    ) -> None:
        if dtype not in DTYPES:
            raise OptionError(
                f"The MLX backend cannot convert to {dtype!r}; it knows {', '.join(DTYPES)}.",
                hint="Leave dtype out for the precision that the model recommends.",
                name="dtype",
                value=dtype,
            )
        config = _config(folder)
        self._lock = threading.Lock()
        self._work: Work | None = None
        self._steps = 0
        self._model: Any = THREAD.call(lambda: _load(folder, config, dtype))
        size, weights_bytes, found = THREAD.call(lambda: _facts(self._model))
        self._device = "cpu" if device == "cpu" else found
        self._example, vocab_size, bytes_per_token = THREAD.call(self._probe)
        self.info = BackendInfo(
            backend="mlx",
            device="mlx" if self._device == "gpu" else "cpu",
            providers=(f"mlx:{self._device}",),
            dtype=_dtype_name(config, dtype, self._example),
            vocab_size=vocab_size,
            context_length=context_length,
            threads=1,
            chunk_tokens=_chunk_tokens(size) * (_GPU_FACTOR if self._device == "gpu" else 1),
            can_batch=False,
            is_shape_invariant=False,
            exact_tokens=None,
            bytes_per_token=bytes_per_token,
            device_share=1.0,
            weights_bytes=weights_bytes,
        )

    def new_state(self) -> MlxState:
        """The state before the first token."""
        self._require_open()
        return MlxState(THREAD.call(self._new_caches), THREAD.call)

    def load_state(self, arrays: Mapping[str, Array], length: int) -> MlxState:
        """The state of `length` tokens that was dumped."""
        self._require_open()

        def made() -> MlxState:
            caches = self._new_caches()
            fill(caches, arrays, length, self._example)
            return MlxState(caches, THREAD.call, length)

        return THREAD.call(made)

    def new_batch(self) -> Batch:
        """None: sequences go one at a time."""
        raise BackendError("The MLX backend runs one sequence at a time.")

    def forward(self, token_ids: Sequence[int], state: State, *, rows: int = 1) -> Logits:
        """Logits after each of the last `rows` of `token_ids`, shape (rows, vocab_size)."""
        self._require_open()
        if not token_ids:
            raise ValueError("forward() needs at least one token")
        if not 1 <= rows <= len(token_ids):
            raise ValueError(f"forward() cannot give logits after {rows} of {len(token_ids)} tokens")
        assert isinstance(state, MlxState)
        step = _Step(self._model, list(token_ids), state, rows, self._device)
        work = step.work = self._work = THREAD.submit(step.run, step.undo)
        try:
            logits: Logits = work.wait()
        except Abandoned:
            raise ForwardInterrupted("The model was interrupted while it computed.") from None
        finally:
            self._work = None
        state.length += len(token_ids)
        self._steps += 1
        if self._steps % _CLEAR_EVERY == 0:
            THREAD.submit(_clear)
        return logits

    def interrupt(self) -> None:
        """Let the forward that is running, if any, raise `ForwardInterrupted` at once; for any thread.

        MLX itself cannot be stopped: it finishes its chunk, and what comes next waits for that.
        """
        work = self._work
        if work is not None:
            work.abandon()

    def close(self) -> None:
        """Release the model's memory; closing twice is harmless."""
        with self._lock:
            is_open, self._model = self._model is not None, None
        if is_open:
            THREAD.call(_clear)

    def _require_open(self) -> None:
        if self._model is None:
            raise ClosedError("This model was closed.", hint="Make a new TinySession.")

    def _new_caches(self) -> list[Any]:
        from mlx_lm.models.cache import make_prompt_cache

        caches: list[Any] = make_prompt_cache(self._model)
        return caches

    def _probe(self) -> tuple[dict[str, Array], int, int]:
        """What the caches dump after two tokens, the size of the vocabulary, and the bytes of a token."""
        caches = self._new_caches()
        logits = _logits(self._model, [0, 1], caches, self._device)
        if self._device != "cpu":
            _compare(logits, _logits(self._model, [0, 1], self._new_caches(), "cpu"))
        growing = dumped([cache for cache in caches if is_plain(cache)]).values()
        return dumped(caches), logits.shape[-1], sum(array.nbytes for array in growing if array.ndim) // 2


class _Step:
    """A forward on the thread of MLX, after which the caches are as before unless it has a result."""

    def __init__(self, model: Any, token_ids: list[int], state: MlxState, rows: int, device: str) -> None:
        self._model = model
        self._device = device
        self._ids = token_ids
        self._state = state
        self._rows = rows
        self._spare: list[Any] | None = None
        self.work: Work | None = None

    def run(self) -> Logits:
        """Logits of the last rows. Those of the tokens before are never computed, as MLX is lazy."""
        self._spare = spare_of(self._state.caches)
        try:
            before = self._ids[: -self._rows]
            if before:
                _logits(self._model, before, self._state.caches, self._device, are_wanted=False)
            if self.work is not None and self.work.is_abandoned:
                return np.empty((0, 0), np.float32)  # nobody waits for it
            return _logits(self._model, self._ids[-self._rows :], self._state.caches, self._device)
        except Exception as error:
            self.undo()
            if isinstance(error, TinykitError):
                raise
            raise BackendError(f"MLX failed while running the model: {_first_line(error)}") from error

    def undo(self) -> None:
        """Put the caches back to where they were."""
        if self._spare is not None:
            self._state.caches = restored(self._state.caches, self._spare)
            self._spare = None


def _logits(
    model: Any, token_ids: list[int], caches: list[Any], device: str, *, are_wanted: bool = True
) -> Logits:
    import mlx.core as mx

    with mx.stream(mx.cpu if device == "cpu" else mx.gpu):
        logits = model(mx.array(token_ids)[None], cache=caches)[0]
        kept = list(arrays_of(caches))
        if not are_wanted:
            mx.eval(kept)
            return np.empty((0, logits.shape[-1]), np.float32)
        logits = logits.astype(mx.float32)
        mx.eval(logits, kept)
        return np.array(logits)


def _compare(found: Logits, trusted: Logits) -> None:
    """Raise unless a GPU's last logits choose the CPU's token, or one as good as tied with it."""
    spread = float(trusted[-1].max() - trusted[-1].mean())
    behind = float(trusted[-1].max() - trusted[-1][int(found[-1].argmax())])
    if not np.isfinite(found).all() or behind > _TIE * spread:
        raise DeviceError("MLX computes something else on the GPU than on the CPU.", asked="mlx", failures=())


def _clear() -> None:
    import mlx.core as mx

    mx.clear_cache()


# ---- loading -------------------------------------------------------------------------------------

_START_ERROR: list[str] = []  # why MLX cannot start in this process, once that is known


def _start() -> Any:
    """mlx-lm's module of loading; a failure is remembered, because a second import ends no better."""
    if _START_ERROR:
        raise BackendError(_START_ERROR[0])
    try:
        return require("mlx_lm.utils", extra="mlx", purpose="the MLX backend")
    except TinykitError:
        raise
    except Exception as error:  # a library that is missing, a system that is too old, a Metal without GPU
        _START_ERROR.append(f"MLX cannot start: {_first_line(error)}")
        raise BackendError(_START_ERROR[0]) from error


def _load(folder: Path, config: dict[str, Any], dtype: str) -> Any:
    utils = _start()
    import mlx.core as mx
    import mlx.nn as nn

    try:
        model, _ = utils.load_model(folder, model_config=_rope(config))
        is_quantized = "quantization" in config or "quantization_config" in config
        if dtype in _FLOATS:
            model.set_dtype(getattr(mx, _FLOATS[dtype]))
        elif dtype in _BITS and not is_quantized:
            nn.quantize(model, group_size=_GROUP, bits=_BITS[dtype])
        mx.eval(model.parameters())
    except ValueError as error:
        if "not supported" in str(error):
            raise UnsupportedModelError(f"mlx-lm cannot run {folder}: {error}", path=folder) from error
        raise _unusable(folder, error) from error
    except (OSError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise _unusable(folder, error) from error
    return model


def _unusable(folder: Path, error: Exception) -> ModelFileError:
    return ModelFileError(
        f"mlx-lm cannot load {folder}: {type(error).__name__}: {_first_line(error)}",
        hint="The files may be damaged, or need a newer mlx-lm: tinykit doctor shows its version.",
        path=folder,
    )


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}", path=path) from error
    if not isinstance(config, dict):
        raise ModelFileError(f"{path} holds no JSON object.", path=path)
    if config.get("model_file"):  # mlx-lm would import it
        raise UnsupportedModelError(
            f"{folder} brings its own code ({config['model_file']}), which tinykit does not run.", path=folder
        )
    return config


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings at the top level, where mlx-lm reads them; transformers 5 writes them one level down.

    Without this mlx-lm takes its default base, and the model computes something else without a word.
    """
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_theta" not in rope:
        return {}
    found: dict[str, Any] = {} if "rope_theta" in config else {"rope_theta": rope["rope_theta"]}
    if rope.get("rope_type", "default") != "default" and not config.get("rope_scaling"):
        found["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
    return found


def _facts(model: Any) -> tuple[int, int, str]:
    """Weights, their bytes, and the kind of device that computes them."""
    import mlx.core as mx
    from mlx_lm.utils import get_total_parameters

    size_bytes = sum(array.nbytes for array in arrays_of([model.parameters()]))
    return get_total_parameters(model), size_bytes, str(mx.default_device().type).rpartition(".")[2]


def _dtype_name(config: Mapping[str, Any], dtype: str, example: Mapping[str, Array]) -> str:
    quantization = config.get("quantization") or config.get("quantization_config")
    if isinstance(quantization, dict) and "bits" in quantization:
        return f"q{quantization['bits']}"
    if dtype != "auto":
        return dtype
    kinds = {np.dtype(np.float32): "fp32", np.dtype(np.float16): "fp16", np.dtype(np.uint16): "bf16"}
    return next((kinds[array.dtype] for array in example.values() if array.dtype in kinds), "auto")


def _chunk_tokens(weights: int) -> int:
    """Fewer tokens for larger models; the same on every machine with the same kind of device."""
    tokens = int(_CHUNK_TOKENS * _CHUNK_WEIGHTS / max(weights, 1))
    return min(max(tokens // _CHUNK_STEP * _CHUNK_STEP, _CHUNK_STEP), _CHUNK_TOKENS)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().split("\n")[0]
