"""transformers backend: any model and device that torch knows. The reference for the other backends.

Nothing else in tinykit imports torch for inference, and nothing here is imported unless it is asked for.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from tinykit.backends.base import Array, BackendInfo, Batch, Logits, State
from tinykit.backends.nested import GROWING, check_fits, get_at, leaves, put_at
from tinykit.errors import (
    BackendError,
    ClosedError,
    DeviceError,
    ForwardInterrupted,
    ModelFileError,
    OptionError,
    TinykitError,
)
from tinykit.optional import require

_FLOATS: Final = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_TORCH_DEVICES: Final = {"cpu": "cpu", "cuda": "cuda", "rocm": "cuda", "mps": "mps"}
# Prompt tokens in one forward; a cancel is heard after each layer, so that they need not be few.
_CHUNK_TOKENS: Final = 128


class _Stop(Exception):
    """Leaves the model between two layers."""


class TransformersState:
    """The cache object of transformers after `length` tokens; None before the first."""

    def __init__(self, cache: Any = None, length: int = 0) -> None:
        self.cache = cache
        self.length = length

    @property
    def layers(self) -> list[Any]:
        """The caches of the layers."""
        return [] if self.cache is None else list(self.cache.layers)

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return sum(value.nbytes for _, value in leaves(self.layers) if not isinstance(value, int))

    @property
    def can_truncate(self) -> bool:
        """Whether every layer has plain keys and values."""
        return all(map(_is_plain, self.layers))

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self._require(length)
        for layer in self.layers:
            for name in GROWING:
                setattr(layer, name, getattr(layer, name)[..., :length, :])
        self.length = length
        if not length:
            self.cache = None

    def copy(self, length: int | None = None) -> TransformersState:
        """An independent copy of the first `length` tokens' state (all of it by default)."""
        length = self.length if length is None else length
        self._require(length)
        twin = TransformersState(copy.deepcopy(self.cache) if length else None, self.length)
        if twin.cache is not None and length < self.length:
            twin.truncate(length)
            for layer in twin.layers:  # without the room behind it
                for name in GROWING:
                    setattr(layer, name, getattr(layer, name).clone())
        twin.length = length
        return twin

    def dump(self) -> dict[str, Array]:
        """The arrays and numbers of all layers by place."""
        return _dumped(self.layers)

    def _require(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} tokens to {length}")
        if 0 < length < self.length and not self.can_truncate:
            raise BackendError("This model has recurrent states or windows: it cannot be rolled back.")


class TransformersBackend:
    """A checkpoint folder in torch.

    Args:
        folder: ``config.json`` and safetensors.
        context_length: Tokens that the model was made for.
        device: ``cpu``, ``cuda``, ``rocm`` or ``mps``.
        dtype: Float type to compute in; ``auto`` is float32 on the CPU and the checkpoint's own elsewhere.
        threads: Threads of torch in this process; None leaves them as they are.

    Raises:
        MissingPackageError: torch or transformers is not installed.
        DeviceError: torch has no such device here.
        ModelFileError: the files cannot be used.
    """

    def __init__(
        self,
        folder: Path,
        *,
        context_length: int,
        device: str = "cpu",
        dtype: str = "auto",
        threads: int | None = None,
    ) -> None:
        if dtype not in ("auto", *_FLOATS):
            raise OptionError(
                f"The transformers backend cannot compute in {dtype!r}; it knows auto, {', '.join(_FLOATS)}.",
                hint="Leave dtype out, or take the ONNX backend for quantized weights.",
                name="dtype",
                value=dtype,
            )
        torch = require("torch", extra="transformers", purpose="the transformers backend")
        require("transformers", extra="transformers", purpose="the transformers backend")
        place = _torch_device(device)
        if threads is not None:
            torch.set_num_threads(threads)
        model = _load(folder, dtype, place)
        self._model: Any = model
        self._cache_name = _cache_name(model)
        self._stop: threading.Event | None = None
        layers = model.config.get_text_config().num_hidden_layers
        for block in _blocks(model, layers):
            block.register_forward_pre_hook(self._check_stop)
        state = TransformersState()
        vocab_size = self.forward([0, 1], state).shape[-1]
        self._example = state
        growing = [layer for layer in state.layers if _is_plain(layer)]
        self.info = BackendInfo(
            backend="transformers",
            device=device,
            providers=(f"torch:{place}",),
            dtype={v: k for k, v in _FLOATS.items()}.get(str(model.dtype).removeprefix("torch."), "auto"),
            vocab_size=vocab_size,
            context_length=context_length,
            threads=torch.get_num_threads(),
            chunk_tokens=_CHUNK_TOKENS,
            can_batch=False,
            is_shape_invariant=False,
            exact_tokens=None,
            bytes_per_token=sum(array.nbytes for array in _dumped(growing).values() if array.ndim) // 2,
            device_share=1.0,
            weights_bytes=sum(parameter.nbytes for parameter in model.parameters()),
        )

    def new_state(self) -> TransformersState:
        """The state before the first token."""
        self._require_open()
        return TransformersState()

    def load_state(self, arrays: Mapping[str, Array], length: int) -> TransformersState:
        """The state of `length` tokens that was dumped."""
        self._require_open()
        import torch

        cache = copy.deepcopy(self._example.cache)
        layers = list(cache.layers)
        check_fits(arrays, length, self._example.dump(), lambda place: _is_plain(get_at(layers, place)))
        for place, value in arrays.items():
            if value.ndim == 0:
                put_at(layers, place, int(value))
                continue
            like = get_at(layers, place)
            tensor = torch.from_numpy(np.array(value))
            tensor = tensor.view(torch.bfloat16) if value.dtype == np.uint16 else tensor
            put_at(layers, place, tensor.to(like.device))
        return TransformersState(cache, length)

    def new_batch(self) -> Batch:
        """None: sequences go one at a time."""
        raise BackendError("The transformers backend runs one sequence at a time.")

    def forward(self, token_ids: Sequence[int], state: State, *, rows: int = 1) -> Logits:
        """Logits after each of the last `rows` of `token_ids`, shape (rows, vocab_size)."""
        self._require_open()
        if not token_ids:
            raise ValueError("forward() needs at least one token")
        if not 1 <= rows <= len(token_ids):
            raise ValueError(f"forward() cannot give logits after {rows} of {len(token_ids)} tokens")
        assert isinstance(state, TransformersState)
        import torch

        with self._running(state), torch.inference_mode():
            ids = torch.tensor([list(token_ids)], device=self._model.device)
            cache = {self._cache_name: state.cache}
            out = self._model(input_ids=ids, use_cache=True, logits_to_keep=rows, **cache)
            logits: Logits = out.logits[0, -rows:].float().cpu().numpy()
        state.cache = getattr(out, self._cache_name)
        state.length += len(token_ids)
        return logits

    def interrupt(self) -> None:
        """Let the forward that is running, if any, raise `ForwardInterrupted` after the present layer."""
        stop = self._stop
        if stop is not None:
            stop.set()

    def close(self) -> None:
        """Release the model's memory; closing twice is harmless."""
        if self._model is not None:
            import torch

            self._model = None
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _require_open(self) -> None:
        if self._model is None:
            raise ClosedError("This model was closed.", hint="Make a new TinySession.")

    def _check_stop(self, *_: Any) -> None:
        if self._stop is not None and self._stop.is_set():
            raise _Stop

    @contextmanager
    def _running(self, state: TransformersState) -> Iterator[None]:
        """A forward that can be stopped; if it fails, the state is as before."""
        self._stop = threading.Event()
        # plain layers get new tensors at each step, so the old ones are the way back
        spare = None if state.can_truncate else copy.deepcopy(state.cache)
        old = [tuple(getattr(layer, name) for name in GROWING) for layer in state.layers if spare is None]
        try:
            yield
        except BaseException as error:
            if spare is not None:
                state.cache = spare
            for layer, tensors in zip(state.layers, old, strict=False):
                for name, tensor in zip(GROWING, tensors, strict=True):
                    setattr(layer, name, tensor)
            if isinstance(error, _Stop):
                raise ForwardInterrupted("The model was interrupted while it computed.") from None
            if isinstance(error, Exception) and not isinstance(error, TinykitError):
                said = str(error).strip().split("\n")[0]
                raise BackendError(f"torch failed while running the model: {said}") from error
            raise
        finally:
            self._stop = None


def _is_plain(layer: Any) -> bool:
    """Whether a layer's cache is keys and values that grow with each token."""
    return type(layer).__name__ == "DynamicLayer"


def _dumped(layers: list[Any]) -> dict[str, Array]:
    """Arrays by place; numbers are arrays without axes. Half floats of Google's kind are 16 bits each."""
    import torch

    found: dict[str, Array] = {}
    for place, value in leaves(layers):
        if isinstance(value, int):
            found[place] = np.array(value, np.int64)
        elif isinstance(value, torch.Tensor):
            tensor = value.view(torch.uint16) if value.dtype == torch.bfloat16 else value
            found[place] = tensor.cpu().numpy()
    return found


def _blocks(model: Any, layers: int) -> list[Any]:
    import torch

    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == layers]
    return list(lists[0]) if lists else []


def _cache_name(model: Any) -> str:
    """What the model calls its cache: `past_key_values` until transformers 5.24, `cache` since then."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _torch_device(device: str) -> str:
    import torch

    if device not in _TORCH_DEVICES:
        raise OptionError(
            f"The transformers backend does not know the device {device!r}, but {', '.join(_TORCH_DEVICES)}.",
            hint="Leave device out to run on the CPU.",
            name="device",
            value=device,
        )
    place = _TORCH_DEVICES[device]
    is_there = {
        "cpu": lambda: True,
        "cuda": torch.cuda.is_available,
        "mps": lambda: torch.backends.mps.is_available(),
    }[place]
    if not is_there():
        raise DeviceError(
            f"torch {torch.__version__} sees no {place} device.",
            hint="Install the build of torch for this device: https://pytorch.org/get-started",
            asked=device,
            failures=(),
        )
    return place


def _load(folder: Path, dtype: str, place: str) -> Any:
    import torch
    import transformers

    wanted: Any = getattr(torch, _FLOATS[dtype]) if dtype in _FLOATS else "auto"
    if dtype == "auto" and place == "cpu":
        wanted = torch.float32
    if not (folder / "config.json").is_file():
        raise ModelFileError(f"{folder} has no config.json.", path=folder)
    try:
        with _silent(transformers.utils.logging):
            model = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=wanted, local_files_only=True, trust_remote_code=False
            )
        return model.to(place).eval()
    except Exception as error:
        said = str(error).strip().split("\n")[0]
        raise ModelFileError(
            f"transformers {transformers.__version__} cannot load {folder}: {type(error).__name__}: {said}",
            hint="The files may be damaged, or need a newer transformers: tinykit doctor shows its version.",
            path=folder,
        ) from error


@contextmanager
def _silent(logging: Any) -> Iterator[None]:
    """Without the progress bar and the remarks of transformers."""
    verbosity, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bar:
            logging.enable_progress_bar()
