"""Read a GGUF file: architecture, weights, vocabulary, chat template.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tinykit.convert.checkpoint import (
    MAX_CONTEXT,
    Architecture,
    Floats,
    Packed,
    check_layers,
    check_tensors,
)
from tinykit.convert.families import FAMILIES, PART_NAMES, Family, LayerKind
from tinykit.convert.fields import Fields, readable
from tinykit.convert.vocabulary import write_tokenizer
from tinykit.errors import ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

# Gemma 3 mixes over all tokens in every sixth layer only, which many files do not say
_GEMMA_PATTERN = 6


def hugging_face_name(name: str, family: Family = "llama") -> str:
    """The Hugging Face name of a ggml tensor; an unknown name stays as it is."""
    names = PART_NAMES[family]
    top = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight"}
    top |= dict.fromkeys(names.ggml_last_norms, f"{names.last_norm}.weight")
    if name in top:
        return top[name]
    parts = names.by_ggml_name()
    match = re.fullmatch(r"blk\.(\d+)\.([\w.]+)\.(weight|bias)", name)
    if match is None or match[2] not in parts:
        return name
    return f"model.layers.{match[1]}.{parts[match[2]]}.{match[3]}"


class GgufFile:
    """A GGUF file opened for reading; a `Checkpoint`.

    Raises:
        ModelFileError: the file is truncated, corrupt, or not GGUF.
        UnsupportedModelError: a family, tensor type or rope scaling that this importer does not know.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise ModelFileError(f"There is no file {path}.", hint="Check the path.", path=path)
        with path.open("rb") as file:
            if (magic := file.read(4)) != b"GGUF":
                raise ModelFileError(
                    f"{path} does not start with 'GGUF' but with {magic!r}: it is not a GGUF file.", path=path
                )
        with readable(path):
            reader = _reader(path)
            self.metadata: dict[str, Any] = {
                key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")
            }
            family = self._family()
            self._tensors: dict[str, ReaderTensor] = {
                hugging_face_name(t.name, family): t for t in reader.tensors
            }
            size_bytes = path.stat().st_size
            for tensor in reader.tensors:
                if tensor.data_offset + tensor.n_bytes > size_bytes:
                    raise _cut_short(path)
            _refuse_other_formats(reader.tensors, path)
            self.architecture = self._architecture()
            shapes = {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()}
            divisors = {"rope_freqs.weight": (self.architecture.head_dim // 2,)}
            check_tensors(self.architecture, shapes, path, divisors)

    def _family(self) -> Family:
        found = self.metadata.get("general.architecture")
        for family in FAMILIES:
            if found == family:
                return family
        raise UnsupportedModelError(
            f"{self.path} holds a model of family {found!r}; the GGUF importer knows {', '.join(FAMILIES)}.",
            path=self.path,
        )

    def _architecture(self) -> Architecture:
        family = self._family()
        fields = Fields(self.metadata, self.path, f"{family}.")
        layers = fields.count("block_count")
        check_layers(f"{family}.block_count", layers, self._tensors, self.path)
        if "model.embed_tokens.weight" not in self._tensors:
            raise ModelFileError(f"{self.path} lacks the tensor token_embd.weight.", path=self.path)
        vocab_size = int(self._tensors["model.embed_tokens.weight"].shape[-1])
        heads, hidden = fields.count("attention.head_count"), fields.count("embedding_length")
        kv_heads = _kv_heads(fields, family, heads, layers)
        kinds = _layer_kinds(fields, family, kv_heads)
        is_local = "sliding_attention" in kinds
        architecture = Architecture(
            family=family,
            layers=layers,
            hidden=hidden,
            intermediate=fields.count("feed_forward_length"),
            heads=heads,
            kv_heads=max(kv_heads),
            head_dim=fields.count("attention.key_length", hidden // heads),
            vocab_size=vocab_size,
            context_length=min(fields.count("context_length"), MAX_CONTEXT),
            norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
            rope_theta=fields.number("rope.freq_base", 10000.0),
            tied_embeddings="lm_head.weight" not in self._tensors,
            bos_id=self._vocabulary_fields().token_id("bos_token_id", vocab_size),
            eos_ids=self._eos_ids(vocab_size),
            kinds=kinds,
            window=fields.count("attention.sliding_window") if is_local else 0,
            local_rope_theta=fields.number("rope.freq_base_swa", 10000.0) if is_local else 10000.0,
            conv_width=fields.count("shortconv.l_cache") if "conv" in kinds else 0,
        )
        _refuse_other_arithmetic(fields, architecture)
        return architecture

    def _vocabulary_fields(self) -> Fields:
        return Fields(self.metadata, self.path, "tokenizer.ggml.")

    def _eos_ids(self, vocab_size: int) -> tuple[int, ...]:
        fields = self._vocabulary_fields()
        found = (fields.token_id(f"{kind}_token_id", vocab_size) for kind in ("eos", "eot", "eom"))
        ids = [index for index in found if index is not None]
        tokens = fields.get("tokens")
        # it ends a document whatever the chat's own end token is
        if isinstance(tokens, list) and "<|endoftext|>" in tokens:
            ids.append(tokens.index("<|endoftext|>"))
        return tuple(dict.fromkeys(ids))

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor_types(self) -> set[str]:
        """The ggml types of the matrices inside the layers, for instance ``{"Q4_1"}``."""
        return {t.tensor_type.name for n, t in self._tensors.items() if ".layers." in n and len(t.shape) == 2}

    def floats(self, name: str) -> Floats:
        """The tensor, dequantised to float32, rows in Hugging Face order."""
        from gguf import dequantize

        tensor = self._tensors[name]
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        if not np.isfinite(values).all():
            raise ModelFileError(f"{self.path}: the tensor {name} holds values that are not finite.")
        return cast(Floats, self._unpermuted(name, values))

    def packed(self, name: str) -> Packed | None:
        """The blocks of a Q8_0 or Q4_0 matrix, bit for bit; None for other types."""
        tensor = self._tensors[name]
        kind = tensor.tensor_type.name
        if kind not in ("Q8_0", "Q4_0"):
            return None
        rows = int(tensor.shape[1])
        raw = tensor.data.reshape(rows, -1, 34 if kind == "Q8_0" else 18)
        scales = raw[..., :2].copy().view("<f2")[..., 0].astype(np.float32)
        if kind == "Q8_0":
            codes = raw[..., 2:] ^ np.uint8(128)  # int8 to its offset-128 code
        else:
            low, high = raw[..., 2:] & 15, raw[..., 2:] >> 4  # elements 0-15 in low nibbles, 16-31 in high
            order = np.concatenate([low, high], -1)
            codes = order[..., ::2] | order[..., 1::2] << 4
        return Packed(
            self._unpermuted(name, codes), self._unpermuted(name, scales), 8 if kind == "Q8_0" else 4
        )

    def _unpermuted(self, name: str, values: Any) -> Any:
        """Undo ggml's row order of Llama's q and k: it pairs the rotated halves of a head row by row."""
        if self.architecture.family != "llama" or not re.search(r"self_attn\.[qk]_proj", name):
            return values
        half = self.architecture.head_dim // 2
        shape = values.shape
        return np.ascontiguousarray(values.reshape(-1, half, 2, *shape[1:]).swapaxes(1, 2)).reshape(shape)

    def write_tokenizer(self, folder: Path) -> None:
        """Write the file's vocabulary and chat template into `folder`."""
        write_tokenizer(self.metadata, folder, path=self.path)

    def rope_divisors(self) -> Floats | None:
        """Factors that divide the rotary frequencies (Llama 3's long-context rule), shape (head_dim / 2)."""
        return self.floats("rope_freqs.weight") if "rope_freqs.weight" in self._tensors else None


def _refuse_other_formats(tensors: Sequence[ReaderTensor], path: Path) -> None:
    """Raise UnsupportedModelError for a number format that cannot be turned into floats, before any work."""
    from gguf import dequantize

    for kind, tensor in {tensor.tensor_type: tensor for tensor in tensors}.items():
        try:
            dequantize(tensor.data[:1] if tensor.data.ndim > 1 else tensor.data, kind)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"{path} has the tensor {tensor.name} in the number format {kind.name}, which the importer "
                "cannot read.",
                hint="Take the file in another format, best in Q8_0.",
                path=path,
            ) from error


def _reader(path: Path) -> GGUFReader:
    """The library's view of the file; what it says of a damaged one is about its own arrays."""
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except (ArithmeticError, AssertionError, LookupError, MemoryError, TypeError, ValueError) as error:
        if "version" in str(error):
            raise UnsupportedModelError(
                f"{path} is a GGUF file of a version that cannot be read.",
                hint="Make it again with a newer converter, or update the package gguf.",
                path=path,
            ) from error
        raise _cut_short(path) from error


def _cut_short(path: Path) -> ModelFileError:
    return ModelFileError(
        f"{path} is not a readable model file: its header tells of more than its {path.stat().st_size:,} "
        "bytes hold.",
        hint="The file may be truncated or corrupt; delete it and fetch it again.",
        path=path,
    )


def _kv_heads(fields: Fields, family: Family, heads: int, layers: int) -> list[int]:
    """Key heads of each layer; those of LFM2 that have none are convolutions."""
    value = fields.get("attention.head_count_kv")
    if family != "lfm2" or not isinstance(value, list):
        return [fields.count("attention.head_count_kv", heads)] * layers
    is_whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in value)
    if len(value) != layers or not is_whole or not any(value):
        raise fields.damaged(
            "attention.head_count_kv", f"a list of {layers} whole numbers, not all of them 0"
        )
    if len({n for n in value if n}) > 1:
        raise fields.unsupported("attention.head_count_kv")
    return list(value)


def _layer_kinds(fields: Fields, family: Family, kv_heads: Sequence[int]) -> tuple[LayerKind, ...]:
    """Layers without key heads are convolutions; most of Gemma's see only the last tokens."""
    if family == "lfm2":
        return tuple("full_attention" if heads else "conv" for heads in kv_heads)
    if family != "gemma3":
        return ()
    is_local = fields.get("attention.sliding_window_pattern")
    if not isinstance(is_local, list):
        pattern = fields.count("attention.sliding_window_pattern", _GEMMA_PATTERN)
        is_local = [n % pattern > 0 for n in range(1, len(kv_heads) + 1)]
    if len(is_local) != len(kv_heads) or not all(isinstance(local, bool | int) for local in is_local):
        raise fields.damaged("attention.sliding_window_pattern", "a whole number or one entry for each layer")
    return tuple("sliding_attention" if local else "full_attention" for local in is_local)


def _refuse_other_arithmetic(fields: Fields, architecture: Architecture) -> None:
    """Raise UnsupportedModelError for a field with which another model would be computed.

    The names: https://github.com/ggml-org/llama.cpp/blob/master/gguf-py/gguf/constants.py
    """
    head_dim = architecture.head_dim
    fields.allow_only("rope.dimension_count", head_dim)
    fields.allow_only("attention.value_length", head_dim)
    fields.allow_only("attention.scale", float(head_dim**-0.5), 0.0)
    fields.allow_only("attention.causal", True)
    fields.allow_only("rope.scaling.type", "none")
    fields.allow_only("rope.scale_linear", 1.0)
    if fields.get("rope.scaling.type") is None:  # then llama.cpp takes the factor for a linear one
        fields.allow_only("rope.scaling.factor", 0.0, 1.0)
    fields.allow_only("expert_count", 0)
    fields.allow_only("use_parallel_residual", False)
    for name in ("logit_scale", "residual_scale", "embedding_scale"):
        fields.allow_only(name, 0.0, 1.0)
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "attention.clamp_kqv"):
        fields.allow_only(name, 0.0)
    fields.allow_only("attention.max_alibi_bias", 0.0)
    window = fields.get("attention.sliding_window")
    if architecture.family == "gemma3":  # its windows are computed
        return
    if window and not (isinstance(window, int) and window >= architecture.context_length):
        raise fields.unsupported("attention.sliding_window")
