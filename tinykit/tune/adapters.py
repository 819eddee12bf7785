"""The trained adapter as files in the layout of the `peft` library, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tinykit.convert.adapter import CONFIG_NAME, WEIGHTS_NAME, Adapter
from tinykit.convert.tensors import TensorFile
from tinykit.errors import ModelFileError
from tinykit.tune.decoder import MATRICES, Decoder

_PREFIX = "base_model.model."


class AdapterShape(NamedTuple):
    """What a decoder must be made with to take an adapter on."""

    rank: int
    alpha: float
    first_layer: int


def save_adapter(decoder: Decoder, folder: Path, *, base_name: str) -> None:
    """Write the adapter into `folder`, in bfloat16; a reader never sees half of a file."""
    from safetensors.torch import save

    tensors = {}
    for name, pair in decoder.adapter.items():
        for part, tensor in zip("AB", pair, strict=True):
            tensors[f"{_PREFIX}{name}.lora_{part}.weight"] = tensor.detach().to(torch.bfloat16).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / WEIGHTS_NAME, save(tensors, metadata={"format": "pt"}))
    _write(folder / CONFIG_NAME, json.dumps(_config(decoder, base_name), indent=1).encode())


def adapter_shape(folder: Path) -> AdapterShape:
    """The shape of a saved adapter, checked to be one that can be trained on.

    Raises:
        ModelFileError: it is damaged, or was not made by `save_adapter`.
    """
    Adapter(folder)  # raises for what is no whole plain adapter
    config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    layers = config.get("layers_to_transform") or [0]
    targets = {name.rpartition(".")[2] for name in MATRICES}
    if set(config.get("target_modules") or ()) != targets or not isinstance(config.get("r"), int):
        raise ModelFileError(
            f"The adapter {folder} does not change the matrices that tinykit trains.",
            hint="Start from the model without it.",
            path=folder,
        )
    return AdapterShape(config["r"], float(config["lora_alpha"]), min(layers))


def load_adapter(decoder: Decoder, folder: Path) -> None:
    """Take the values of a saved adapter of the same shape.

    Raises:
        ModelFileError: it does not fit.
    """
    Adapter(folder).check(decoder.architecture)
    file = TensorFile(folder / WEIGHTS_NAME)
    wanted = {
        f"{_PREFIX}{name}.lora_{part}.weight": tensor
        for name, pair in decoder.adapter.items()
        for part, tensor in zip("AB", pair, strict=True)
    }
    if wanted.keys() != file.names:
        raise ModelFileError(f"The adapter {folder} has other layers than the decoder.", path=folder)
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(torch.from_numpy(file.floats(name).copy()))


def _config(decoder: Decoder, base_name: str) -> dict[str, Any]:
    rank = decoder.parameters[0].shape[0]
    alpha = decoder.scale * rank
    config: dict[str, Any] = {
        "base_model_name_or_path": base_name,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(alpha) if alpha == int(alpha) else alpha,
        "lora_dropout": 0.0,
        "modules_to_save": None,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": sorted(name.rpartition(".")[2] for name in MATRICES),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
    if decoder.first_layer:
        config["layers_to_transform"] = list(range(decoder.first_layer, decoder.architecture.layers))
        config["layers_pattern"] = "layers"
    return config


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    part.replace(path)
