"""Read a Hugging Face checkpoint folder: ``config.json``, safetensors, tokenizer files."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tinykit.convert.checkpoint import MAX_CONTEXT, Architecture, Floats, Packed, check_shapes
from tinykit.convert.families import FAMILIES, Family, LayerKind
from tinykit.convert.tensors import TensorFile
from tinykit.errors import ModelFileError, UnsupportedModelError

_FIRST_GATE = "model.layers.0.feed_forward.w1.weight"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class HuggingFaceFolder:
    """A checkpoint folder opened for reading; a `Checkpoint`.

    Raises:
        ModelFileError: a file is missing or damaged, or the weights do not fit the configuration.
        UnsupportedModelError: a family or rope scaling that the importer does not know.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._config = _read_json(folder / "config.json")
        self._files = {
            name: file for file in map(TensorFile, _weight_files(folder)) for name in sorted(file.names)
        }
        try:
            self.architecture = self._architecture()
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(
                f"{folder / 'config.json'} lacks or garbles a field: {error}", path=folder
            ) from error
        check_shapes(self.architecture, {n: f.shape(n) for n, f in self._files.items()}, folder)

    def _family(self) -> Family:
        found = self._config.get("model_type")
        for family in FAMILIES:
            if found in (family, f"{family}_text"):
                return family
        raise UnsupportedModelError(
            f"{self.path} holds a model of family {found!r}; the importer knows {', '.join(FAMILIES)}.",
            path=self.path,
        )

    def _architecture(self) -> Architecture:
        config, family = self._config, self._family()
        heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
        head_dim = int(config.get("head_dim") or hidden // heads)
        scaled_by = config.get("query_pre_attn_scalar") if family == "gemma3" else None
        for field in ("attn_logit_softcapping", "final_logit_softcapping"):
            if config.get(field):
                raise UnsupportedModelError(f"{self.path} uses {field}, which the importer does not do.")
        return Architecture(
            family=family,
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            intermediate=self._intermediate(family),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            vocab_size=int(config["vocab_size"]),
            context_length=min(int(config["max_position_embeddings"]), MAX_CONTEXT),
            norm_eps=float(config["norm_eps" if family == "lfm2" else "rms_norm_eps"]),
            rope_theta=float(self._rope().get("rope_theta", 10000.0)),
            tied_embeddings="lm_head.weight" not in self._files,
            bos_id=config.get("bos_token_id"),
            eos_ids=self._eos_ids(),
            kinds=self._kinds(family),
            window=int(config.get("sliding_window") or 0) if family == "gemma3" else 0,
            local_rope_theta=float(self._local_rope_theta()),
            conv_width=int(config.get("conv_L_cache", 0)),
            attention_scale=scaled_by**-0.5 if scaled_by else None,
        )

    def _intermediate(self, family: Family) -> int:
        """LFM2 rounds the size that its configuration names; the weights have the true one."""
        if family == "lfm2":
            return int(self._files[_FIRST_GATE].shape(_FIRST_GATE)[0])
        return int(self._config["intermediate_size"])

    def _kinds(self, family: Family) -> tuple[LayerKind, ...]:
        if family not in ("gemma3", "lfm2"):
            return ()
        config, layers = self._config, int(self._config["num_hidden_layers"])
        if config.get("layer_types"):
            return tuple(config["layer_types"])
        if family == "lfm2":
            full = set(config["full_attn_idxs"])
            return tuple("full_attention" if n in full else "conv" for n in range(layers))
        pattern = int(config.get("sliding_window_pattern", 6))
        return tuple("sliding_attention" if n % pattern else "full_attention" for n in range(1, layers + 1))

    def _local_rope_theta(self) -> float:
        local = (self._config.get("rope_parameters") or {}).get("sliding_attention", {})
        return float(local.get("rope_theta") or self._config.get("rope_local_base_freq") or 10000.0)

    def _rope(self) -> dict[str, Any]:
        """Rotary settings from where the config keeps them, which moved in transformers 5."""
        settings = dict(self._config.get("rope_parameters") or self._config.get("rope_scaling") or {})
        settings = dict(settings.get("full_attention", settings))
        if "rope_theta" in self._config:
            settings.setdefault("rope_theta", self._config["rope_theta"])
        return settings

    def _eos_ids(self) -> tuple[int, ...]:
        generation = self.path / "generation_config.json"
        found = _read_json(generation).get("eos_token_id") if generation.is_file() else None
        found = self._config.get("eos_token_id") if found is None else found
        return tuple(found) if isinstance(found, list) else () if found is None else (int(found),)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor_types(self) -> set[str]:
        """Floats of some width."""
        return {"F32"}

    def floats(self, name: str) -> Floats:
        """The tensor as float32; of Gemma's norms, which store the distance from one, the whole factor."""
        values = self._files[name].floats(name)
        is_distance = self.architecture.family == "gemma3" and name.endswith("norm.weight")
        return values + np.float32(1) if is_distance else values

    def packed(self, name: str) -> Packed | None:
        """None: the weights are not quantised."""
        return None

    def rope_divisors(self) -> Floats | None:
        """Factors that divide the rotary frequencies, shape (head_dim / 2).

        The rules are those of ``modeling_rope_utils.py`` in transformers.
        """
        rope = self._rope()
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "default":
            return None
        arch = self.architecture
        inverse = arch.rope_theta ** (-np.arange(0, arch.head_dim, 2) / arch.head_dim)
        if kind == "linear":
            return np.full(len(inverse), rope["factor"], np.float32)
        if kind == "llama3":
            return _llama3_divisors(inverse, rope)
        raise UnsupportedModelError(
            f"{self.path} uses rope scaling {kind!r}, which the importer does not do."
        )

    def write_tokenizer(self, folder: Path) -> None:
        """Copy the tokenizer and the chat template into `folder`."""
        if not (self.path / "tokenizer.json").is_file():
            raise ModelFileError(f"{self.path} has no tokenizer.json.", path=self.path)
        for name in _TOKENIZER_FILES:
            if (self.path / name).is_file():
                shutil.copyfile(self.path / name, folder / name)


def _llama3_divisors(inverse: np.ndarray[Any, Any], rope: dict[str, Any]) -> Floats:
    """Long wavelengths are stretched by the factor, short ones stay, in between it is blended."""
    original, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = original * inverse / (2 * math.pi)  # wavelengths that fit into the original context
    blend = np.clip((turns - low) / (high - low), 0, 1)
    divisors: Floats = (1 / ((1 - blend) / factor + blend)).astype(np.float32)
    return divisors


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [folder / name for name in sorted(set(_read_json(index).get("weight_map", {}).values()))]
    return [folder / "model.safetensors"]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}", path=path) from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds no JSON object.", path=path)
    return value
