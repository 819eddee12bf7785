"""Weights of any source to a checkpoint folder that transformers and mlx-lm read: float, nothing rounded.

For the backends that bring their own models. The folder has ``config.json``, ``model.safetensors`` and the
tokenizer's files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from tinykit.convert.adapter import AdaptedCheckpoint, Adapter
from tinykit.convert.checkpoint import Architecture, Checkpoint, matrix_shapes
from tinykit.convert.importer import Source, write_tokenizer
from tinykit.errors import UnsupportedModelError

ExportDtype = Literal["fp32", "fp16"]
_TYPES: Final[dict[ExportDtype, type]] = {"fp32": np.float32, "fp16": np.float16}
_CLASSES: Final = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def export_bytes(source: Source, dtype: ExportDtype) -> int:
    """Disk space that the folder takes, rounded up."""
    arch = source.architecture
    rows = arch.vocab_size * (1 if arch.tied_embeddings else 2)
    weights = sum(a * b for a, b in matrix_shapes(arch).values()) + rows * arch.hidden
    return weights * np.dtype(_TYPES[dtype]).itemsize + 16 * 2**20


def export_model(
    source: Source,
    folder: Path,
    *,
    dtype: ExportDtype = "fp32",
    adapter: Adapter | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> Path:
    """Write config, tokenizer and weights into `folder`, and return it.

    `adapter` is merged into the weights. `advance` is called with 1 after each layer.

    Raises:
        UnsupportedModelError: a family or detail that the common configuration cannot say.
        ModelFileError: weights, tokenizer or adapter are damaged or do not fit together.
    """
    from safetensors.numpy import save_file

    checkpoint = source if adapter is None else AdaptedCheckpoint(source, adapter)
    _check(source, checkpoint)
    write_tokenizer(source, folder)
    config = {**checkpoint.architecture.config(), **_more(checkpoint.architecture, dtype)}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    tensors: dict[str, Any] = {}
    layer = ""
    for name in _names(checkpoint):
        if name.startswith("model.layers.") and name.split(".")[2] != layer:
            layer = name.split(".")[2]
            advance(1)
        tensors[name] = checkpoint.floats(name).astype(_TYPES[dtype])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _more(arch: Architecture, dtype: ExportDtype) -> dict[str, Any]:
    """What transformers wants to know besides."""
    return {
        "architectures": [_CLASSES[arch.family]],
        "dtype": "float32" if dtype == "fp32" else "float16",
        "use_sliding_window": False,
    }


def _names(checkpoint: Checkpoint) -> list[str]:
    """All tensors of the families that can be written, layer by layer."""
    arch = checkpoint.architecture
    names = ["model.embed_tokens.weight", f"{arch.names.last_norm}.weight"]
    if not arch.tied_embeddings:
        names.append("lm_head.weight")
    parts = arch.names
    vectors = (parts.input_norm, parts.ffn_norm, parts.q_norm, parts.k_norm)
    matrices = list(matrix_shapes(arch))
    per_layer = len(matrices) // arch.layers
    for layer in range(arch.layers):
        names += matrices[layer * per_layer : (layer + 1) * per_layer]
        small = [f"{part}.weight" for part in vectors]
        small += [f"self_attn.{part}_proj.bias" for part in "qkv"]
        names += [name for part in small if (name := f"model.layers.{layer}.{part}") in checkpoint]
    return names


def _check(source: Source, checkpoint: Checkpoint) -> None:
    arch = checkpoint.architecture
    if arch.family not in _CLASSES:
        raise UnsupportedModelError(
            f"{source.path} is a {arch.family} model, whose weights are written for ONNX Runtime only.",
            hint="Use backend='onnx', or a repo that has the model in the format of this backend.",
            path=source.path,
        )
    has_bias = "model.layers.0.self_attn.q_proj.bias" in checkpoint
    if checkpoint.rope_divisors() is not None or (has_bias and arch.family != "qwen2"):
        what = "biases in its attention" if has_bias else "rotary positions with scaling of their own"
        raise UnsupportedModelError(
            f"{source.path} has {what}, which a configuration for transformers cannot say.",
            hint="Use backend='onnx'.",
            path=source.path,
        )
