"""Read a Hugging Face checkpoint folder: ``config.json``, safetensors, tokenizer files."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tinykit.convert.checkpoint import (
    MAX_CONTEXT,
    Architecture,
    Floats,
    Packed,
    check_layers,
    check_tensors,
)
from tinykit.convert.families import FAMILIES, Family, LayerKind
from tinykit.convert.fields import Fields, readable
from tinykit.convert.tensors import TensorFile
from tinykit.convert.vocabulary import quick_to_read
from tinykit.errors import ModelFileError, UnsupportedModelError
from tinykit.tokenizer import missing_tokenizer

_FIRST_GATE = "model.layers.0.feed_forward.w1.weight"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")


class HuggingFaceFolder:
    """A checkpoint folder opened for reading; a `Checkpoint`.

    Raises:
        ModelFileError: a file is missing or damaged, or the weights do not fit the configuration.
        UnsupportedModelError: a family or rope scaling that the importer does not know.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._fields = Fields(_read_json(folder / "config.json"), folder / "config.json")
        with readable(folder):
            self._files = {
                name: file for file in map(TensorFile, _weight_files(folder)) for name in sorted(file.names)
            }
            self.architecture = self._architecture()
            check_tensors(self.architecture, {n: f.shape(n) for n, f in self._files.items()}, folder)
            self._divisors = self._rope_divisors()

    def _family(self) -> Family:
        found = self._fields.get("model_type")
        for family in FAMILIES:
            if found in (family, f"{family}_text"):
                return family
        raise UnsupportedModelError(
            f"{self.path} holds a model of family {found!r}; the importer knows {', '.join(FAMILIES)}.",
            path=self.path,
        )

    def _architecture(self) -> Architecture:
        fields, family = self._fields, self._family()
        layers, vocab_size = fields.count("num_hidden_layers"), fields.count("vocab_size")
        check_layers("num_hidden_layers", layers, self._files, fields.path)
        heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
        if fields.get("tie_word_embeddings") is False and "lm_head.weight" not in self._files:
            raise ModelFileError(f"{self.path} lacks the tensor lm_head.weight.", path=self.path)
        kinds = _layer_kinds(fields, family, layers)
        is_scaled = family == "gemma3" and fields.get("query_pre_attn_scalar") is not None
        architecture = Architecture(
            family=family,
            layers=layers,
            hidden=hidden,
            intermediate=self._intermediate(family),
            heads=heads,
            kv_heads=fields.count("num_key_value_heads", heads),
            head_dim=fields.count("head_dim", hidden // heads),
            vocab_size=vocab_size,
            context_length=min(fields.count("max_position_embeddings"), MAX_CONTEXT),
            norm_eps=fields.number("norm_eps" if family == "lfm2" else "rms_norm_eps"),
            rope_theta=self._rope_theta(),
            tied_embeddings="lm_head.weight" not in self._files,
            bos_id=fields.token_id("bos_token_id", vocab_size),
            eos_ids=self._eos_ids(vocab_size),
            kinds=kinds,
            window=fields.count("sliding_window") if "sliding_attention" in kinds else 0,
            local_rope_theta=self._local_rope_theta() if "sliding_attention" in kinds else 10000.0,
            conv_width=fields.count("conv_L_cache") if "conv" in kinds else 0,
            attention_scale=fields.number("query_pre_attn_scalar") ** -0.5 if is_scaled else None,
        )
        _refuse_other_arithmetic(fields, self._rope(), architecture)
        return architecture

    def _intermediate(self, family: Family) -> int:
        """LFM2 rounds the size that its configuration names; the weights have the true one."""
        if family != "lfm2":
            return self._fields.count("intermediate_size")
        if _FIRST_GATE not in self._files:
            raise ModelFileError(f"{self.path} lacks the tensor {_FIRST_GATE}.", path=self.path)
        return int(self._files[_FIRST_GATE].shape(_FIRST_GATE)[0])

    def _rope(self, kind: LayerKind = "full_attention") -> Fields:
        """Rotary settings from where the config keeps them, which moved in transformers 5."""
        place = "rope_parameters" if self._fields.get("rope_parameters") else "rope_scaling"
        found = self._fields.mapping(place)
        if isinstance(found.get("full_attention"), dict):  # settings for each kind of layer
            place += f".{kind}"
            found = found.get(kind) or {}
        named = {f"{place}.{name}": value for name, value in found.items()}
        return Fields(named, self._fields.path, f"{place}.")

    def _local_rope_theta(self) -> float:
        rope = self._rope("sliding_attention")
        is_own = "full_attention" in self._fields.mapping("rope_parameters")
        if is_own:
            rope.allow_only("rope_type", "default")
        if is_own and rope.get("rope_theta") is not None:
            return rope.number("rope_theta")
        return self._fields.number("rope_local_base_freq", 10000.0)

    def _rope_theta(self) -> float:
        place = self._fields if self._rope().get("rope_theta") is None else self._rope()
        return place.number("rope_theta", 10000.0)

    def _eos_ids(self, vocab_size: int) -> tuple[int, ...]:
        path = self.path / "generation_config.json"
        if path.is_file():
            generation = Fields(_read_json(path), path)
            if generation.get("eos_token_id") is not None:
                return generation.token_ids("eos_token_id", vocab_size)
        return self._fields.token_ids("eos_token_id", vocab_size)

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
        """Factors that divide the rotary frequencies, shape (head_dim / 2)."""
        return self._divisors

    def _rope_divisors(self) -> Floats | None:
        """By the rules of ``modeling_rope_utils.py`` in transformers."""
        rope, arch = self._rope(), self.architecture
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind == "default":
            return None
        inverse = arch.rope_theta ** (-np.arange(0, arch.head_dim, 2) / arch.head_dim)
        if kind == "linear":
            return np.full(len(inverse), rope.number("factor"), np.float32)
        if kind == "llama3":
            return _llama3_divisors(inverse, rope)
        raise UnsupportedModelError(
            f"{self.path} uses rope scaling {kind!r}, which the importer does not do.", path=self.path
        )

    def write_tokenizer(self, folder: Path) -> None:
        """Copy the tokenizer and the chat template into `folder`."""
        if not (self.path / "tokenizer.json").is_file():
            raise missing_tokenizer(self.path)
        for name in _TOKENIZER_FILES:
            if (self.path / name).is_file():
                shutil.copyfile(self.path / name, folder / name)
        tokenizer = folder / "tokenizer.json"
        tokenizer.write_bytes(quick_to_read(tokenizer.read_bytes()))


def _layer_kinds(fields: Fields, family: Family, layers: int) -> tuple[LayerKind, ...]:
    if family not in ("gemma3", "lfm2"):
        return ()
    named = fields.get("layer_types")
    if named:
        other: LayerKind = "sliding_attention" if family == "gemma3" else "conv"
        if not isinstance(named, list) or len(named) != layers:
            raise fields.damaged("layer_types", f"a list of {layers} names")
        if not set(map(str, named)) <= {"full_attention", other}:
            raise fields.unsupported("layer_types")
        return tuple("full_attention" if kind == "full_attention" else other for kind in named)
    if family == "gemma3":
        pattern = fields.count("sliding_window_pattern", 6)
        return tuple("sliding_attention" if n % pattern else "full_attention" for n in range(1, layers + 1))
    full = fields.get("full_attn_idxs")
    if not isinstance(full, list):
        raise fields.damaged("full_attn_idxs", "a list of layers")
    return tuple("full_attention" if n in full else "conv" for n in range(layers))


def _refuse_other_arithmetic(fields: Fields, rope: Fields, architecture: Architecture) -> None:
    """Raise UnsupportedModelError for a field with which another model would be computed."""
    family = architecture.family
    activations = ("gelu_pytorch_tanh",) if family == "gemma3" else ("silu", "swish")
    for name in ("hidden_act", "hidden_activation"):
        fields.allow_only(name, *activations)
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        fields.allow_only(name, 0.0)
    fields.allow_only("use_bidirectional_attention", False)
    fields.allow_only("mlp_bias", False)
    for place in (fields, rope):
        place.allow_only("partial_rotary_factor", 1.0)
    if fields.get("quantization_config"):
        raise fields.unsupported("quantization_config")
    if family in ("gemma3", "lfm2"):  # the kinds of their layers are computed
        return
    window = fields.get("sliding_window")
    is_used = fields.get("use_sliding_window")
    if is_used is None:  # the default of Qwen's configurations; others have no such switch
        is_used = family == "llama"
    reaches_all = isinstance(window, int) and window >= architecture.context_length
    if is_used and window and not reaches_all:
        raise fields.unsupported("sliding_window")
    kinds = fields.get("layer_types")
    if isinstance(kinds, list) and not reaches_all and set(map(str, kinds)) != {"full_attention"}:
        raise fields.unsupported("layer_types")


def _llama3_divisors(inverse: np.ndarray[Any, Any], rope: Fields) -> Floats:
    """Long wavelengths are stretched by the factor, short ones stay, in between it is blended."""
    original, factor = rope.number("original_max_position_embeddings"), rope.number("factor")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.damaged("high_freq_factor", f"above low_freq_factor, {low}")
    turns = original * inverse / (2 * math.pi)  # wavelengths that fit into the original context
    blend = np.clip((turns - low) / (high - low), 0, 1)
    divisors: Floats = (1 / ((1 - blend) / factor + blend)).astype(np.float32)
    return divisors


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    fields = Fields(_read_json(index), index)
    names = fields.mapping("weight_map").values()
    if not names or not all(isinstance(name, str) for name in names):
        raise fields.damaged("weight_map", "an object of file names")
    return [folder / name for name in sorted(set(names))]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}", path=path) from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} holds no JSON object.", path=path)
    return value
