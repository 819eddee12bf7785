"""Read a GGUF file: architecture, weights, vocabulary, chat template.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tinykit.convert.checkpoint import MAX_CONTEXT, Architecture, Floats, Packed, check_shapes
from tinykit.convert.families import FAMILIES, PART_NAMES, Family, LayerKind
from tinykit.convert.vocabulary import write_tokenizer
from tinykit.errors import ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from gguf import ReaderTensor

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


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what a damaged file makes the reader raise into one error of ours."""
    try:
        yield
    except ModelFileError:
        raise
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError, UnicodeDecodeError) as error:
        raise ModelFileError(
            f"{path} is not a readable GGUF file: {error}",
            hint="The file may be truncated or corrupt; delete it and fetch it again.",
            path=path,
        ) from error


class GgufFile:
    """A GGUF file opened for reading; a `Checkpoint`.

    Raises:
        ModelFileError: the file is truncated, corrupt, or not GGUF.
        UnsupportedModelError: a family, tensor type or rope scaling that this importer does not know.
    """

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self.path = path
        if not path.is_file():
            raise ModelFileError(f"There is no file {path}.", hint="Check the path.", path=path)
        with path.open("rb") as file:
            if (magic := file.read(4)) != b"GGUF":
                raise ModelFileError(
                    f"{path} does not start with 'GGUF' but with {magic!r}: it is not a GGUF file.", path=path
                )
        with _readable(path):
            reader = GGUFReader(path)
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
                    raise ValueError(f"tensor {tensor.name} ends after the file does")
        with _readable(path):
            self.architecture = self._architecture()
        shapes = {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()}
        check_shapes(self.architecture, shapes, path)

    def _family(self) -> Family:
        found = self.metadata.get("general.architecture")
        for family in FAMILIES:
            if found == family:
                return family
        raise UnsupportedModelError(
            f"{self.path.name} holds a model of family {found!r}; the GGUF importer knows "
            f"{', '.join(FAMILIES)}.",
            path=self.path,
        )

    def _architecture(self) -> Architecture:
        family = self._family()

        def value(key: str, default: Any = None) -> Any:
            found = self.metadata.get(f"{family}.{key}", default)
            if found is None:
                raise ValueError(f"the key {family}.{key} is missing")
            return found

        scaling = self.metadata.get(f"{family}.rope.scaling.type", "none")
        if scaling != "none" or value("expert_count", 0) > 0:
            what = f"rope scaling {scaling!r}" if scaling != "none" else "a mixture of experts"
            raise UnsupportedModelError(f"{self.path.name} uses {what}, which the GGUF importer does not do.")
        heads = int(value("attention.head_count"))
        hidden = int(value("embedding_length"))
        eos = [self.metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
        tokens = self.metadata.get("tokenizer.ggml.tokens", [])
        if "<|endoftext|>" in tokens:  # ends a document whatever the chat's own end token is
            eos.append(tokens.index("<|endoftext|>"))
        layers = int(value("block_count"))
        kv_heads = value("attention.head_count_kv", heads)
        per_layer = kv_heads if isinstance(kv_heads, list) else [kv_heads] * layers
        return Architecture(
            family=family,
            layers=layers,
            hidden=hidden,
            intermediate=int(value("feed_forward_length")),
            heads=heads,
            kv_heads=int(max(per_layer)),
            head_dim=int(value("attention.key_length", hidden // heads)),
            vocab_size=int(self._tensors["model.embed_tokens.weight"].shape[1]),
            context_length=min(int(value("context_length")), MAX_CONTEXT),
            norm_eps=float(value("attention.layer_norm_rms_epsilon")),
            rope_theta=float(value("rope.freq_base", 10000.0)),
            tied_embeddings="lm_head.weight" not in self._tensors,
            bos_id=self.metadata.get("tokenizer.ggml.bos_token_id"),
            eos_ids=tuple(dict.fromkeys(int(e) for e in eos if e is not None)),
            kinds=_layer_kinds(family, per_layer, value("attention.sliding_window_pattern", _GEMMA_PATTERN)),
            window=int(value("attention.sliding_window", 0)) if family == "gemma3" else 0,
            local_rope_theta=float(value("rope.freq_base_swa", 10000.0)),
            conv_width=int(value("shortconv.l_cache")) if family == "lfm2" else 0,
        )

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor_types(self) -> set[str]:
        """The ggml types of the matrices inside the layers, for instance ``{"Q4_1"}``."""
        return {t.tensor_type.name for n, t in self._tensors.items() if ".layers." in n and len(t.shape) == 2}

    def floats(self, name: str) -> Floats:
        """The tensor, dequantised to float32, rows in Hugging Face order."""
        from gguf import dequantize

        tensor = self._tensors[name]
        try:
            values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"{self.path.name}: the tensor {name} has the type {tensor.tensor_type.name}, "
                "which cannot be dequantised.",
            ) from error
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
        write_tokenizer(self.metadata, folder)

    def rope_divisors(self) -> Floats | None:
        """Factors that divide the rotary frequencies (Llama 3's long-context rule), shape (head_dim / 2)."""
        return self.floats("rope_freqs.weight") if "rope_freqs.weight" in self._tensors else None


def _layer_kinds(
    family: Family, kv_heads: Sequence[int], pattern: int | Sequence[bool]
) -> tuple[LayerKind, ...]:
    """Layers without key heads are convolutions; most of Gemma's see only the last tokens."""
    if family == "lfm2":
        return tuple("full_attention" if heads else "conv" for heads in kv_heads)
    if family == "gemma3":
        numbers = range(1, len(kv_heads) + 1)
        is_local = [n % pattern > 0 for n in numbers] if isinstance(pattern, int) else pattern
        return tuple("sliding_attention" if local else "full_attention" for local in is_local)
    return ()
