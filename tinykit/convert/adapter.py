"""LoRA adapters in the layout of the `peft` library, merged into float weights.

A low-rank pair A (r x in), B (out x r) changes a matrix W (out x in) to W + scale * B A
(https://arxiv.org/abs/2106.09685, section 4.1). Layout: ``adapter_config.json`` and
``adapter_model.safetensors`` (https://huggingface.co/docs/peft/developer_guides/checkpoint).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinykit.convert.checkpoint import Architecture, Checkpoint, Floats, Packed, matrix_shapes
from tinykit.convert.fields import Fields
from tinykit.convert.tensors import TensorFile
from tinykit.errors import ModelFileError, UnsupportedModelError

CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<part>[AB])(?:\.default)?\.weight")


class Adapter:
    """An adapter folder, checked to be whole.

    Raises:
        ModelFileError: a file is missing or damaged, or a pair lacks one half.
        UnsupportedModelError: something that is not plain LoRA (DoRA, trained biases, whole modules).
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._config = _read_config(folder)
        self._file = TensorFile(folder / WEIGHTS_NAME)
        self._pairs: dict[str, dict[str, str]] = {}
        for name in self._file.names:
            match = _TENSOR.fullmatch(name)
            if match is None:
                raise UnsupportedModelError(
                    f"{folder}: the tensor {name} is not part of a LoRA pair.", path=folder
                )
            if len(shape := self._file.shape(name)) != 2 or 0 in shape:
                raise ModelFileError(
                    f"{folder}: the tensor {name} has shape {shape}, not a matrix's.", path=folder
                )
            self._pairs.setdefault(f"{match['module']}.weight", {})[match["part"]] = name
        for name, pair in self._pairs.items():
            if len(pair) < 2:
                missing = "B" if "A" in pair else "A"
                raise ModelFileError(f"{folder} lacks lora_{missing} of {name}.", path=folder)
        if not self._pairs:
            raise ModelFileError(f"{folder} holds no LoRA weights.", path=folder)

    @property
    def changes(self) -> frozenset[str]:
        """Names of the weights that the adapter changes."""
        return frozenset(self._pairs)

    def check(self, architecture: Architecture) -> None:
        """Raise ModelFileError unless every pair fits a matrix of this architecture."""
        shapes = matrix_shapes(architecture)
        for name, pair in sorted(self._pairs.items()):
            (rank, columns), (rows, other_rank) = (self._file.shape(pair[part]) for part in "AB")
            made_for = (rows, columns)
            if name not in shapes:
                self._refuse(f"it changes {name}, which the model does not have")
            if shapes[name] != made_for:
                self._refuse(f"its {name} is for a matrix of {made_for}, the model's is {shapes[name]}")
            if rank != other_rank:
                self._refuse(f"the two halves of {name} have ranks {rank} and {other_rank}")

    def _refuse(self, reason: str) -> None:
        base = self._config.get("base_model_name_or_path")
        raise ModelFileError(
            f"The adapter {self.folder} does not fit the model: {reason}.",
            hint=f"It was made for {base}." if base else None,
            path=self.folder,
        )

    def delta(self, name: str) -> Floats:
        """What to add to the weight `name`."""
        pair = self._pairs[name]
        a, b = self._file.floats(pair["A"]), self._file.floats(pair["B"])
        scaled: Floats = (b @ a) * self._scale(name, rank=a.shape[0])
        return scaled

    def _scale(self, name: str, *, rank: int) -> float:
        module = name.removesuffix(".weight")
        alpha = _by_pattern(self._config.get("alpha_pattern"), module, self._config["lora_alpha"])
        return float(alpha / (math.sqrt(rank) if self._config.get("use_rslora") else rank))


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_NAME
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelFileError(
            f"{folder} is not an adapter: {CONFIG_NAME} cannot be read ({error.strerror}).",
            hint="Give the folder that peft's save_pretrained wrote.",
            path=folder,
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not valid JSON: {error}", path=path) from error
    if not isinstance(config, dict) or "lora_alpha" not in config:
        raise ModelFileError(f"{path} has no lora_alpha: it is not the config of a LoRA adapter.", path=path)
    fields = Fields(config, path)
    fields.number("lora_alpha")
    _check_patterns(fields)
    refused = {
        "peft_type": config.get("peft_type", "LORA") != "LORA",
        "use_dora": bool(config.get("use_dora")),
        "bias": config.get("bias", "none") != "none",
        "modules_to_save": bool(config.get("modules_to_save")),
        "fan_in_fan_out": bool(config.get("fan_in_fan_out")),
        "layer_replication": bool(config.get("layer_replication")),
        "alora_invocation_tokens": bool(config.get("alora_invocation_tokens")),
    }
    for field, is_refused in refused.items():
        if is_refused:
            raise UnsupportedModelError(
                f"The adapter {folder} has {field}={config[field]!r}; only plain LoRA can be merged.",
                path=folder,
            )
    return config


def _check_patterns(fields: Fields) -> None:
    patterns = fields.mapping("alpha_pattern")
    alphas = Fields(patterns, fields.path)
    try:
        for pattern in patterns:
            re.compile(pattern)
            alphas.number(pattern)
    except (re.error, ModelFileError) as error:
        raise fields.damaged("alpha_pattern", "numbers by regular expression") from error


def _by_pattern(patterns: Mapping[str, float] | None, module: str, default: float) -> float:
    """peft's rule: a pattern matches the end of a module's name, at a dot."""
    for pattern, value in (patterns or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            return value
    return default


class AdaptedCheckpoint:
    """A checkpoint with an adapter merged in; a `Checkpoint` itself."""

    def __init__(self, base: Checkpoint, adapter: Adapter) -> None:
        adapter.check(base.architecture)
        self.architecture = base.architecture
        self._base = base
        self._adapter = adapter

    def __contains__(self, name: str) -> bool:
        return name in self._base

    def floats(self, name: str) -> Floats:
        """The base's tensor, changed where the adapter says so."""
        values = self._base.floats(name)
        return values + self._adapter.delta(name) if name in self._adapter.changes else values

    def packed(self, name: str) -> Packed | None:
        """The base's own blocks where the adapter leaves them alone."""
        return None if name in self._adapter.changes else self._base.packed(name)

    def rope_divisors(self) -> Floats | None:
        """As the base's."""
        return self._base.rope_divisors()
