"""What an importer needs to know of a model's weights, whatever file they come from.

Tensor names are those of Hugging Face checkpoints (``model.layers.0.self_attn.q_proj.weight``), so that
adapters in the PEFT layout and safetensors files need no second table of names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from tinykit.convert.families import PART_NAMES, Family, LayerKind, PartNames
from tinykit.errors import ModelFileError, UnsupportedModelError

MAX_CONTEXT = 32768  # the table of rotary angles grows with it: 16 MB at 32,768 positions of 64 dimensions
BLOCK = 32  # elements that share one scale, in ggml and in MatMulNBits alike

# Old Llama checkpoints store the rotary frequencies, which follow from rope_theta.
_RECOMPUTED = ".rotary_emb.inv_freq"

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Architecture:
    """The sizes and constants of a dense decoder with rotary positions and gated feed-forward.

    `kinds` has one entry for each layer; empty means full attention everywhere. `window` and
    `local_rope_theta` concern sliding attention, `conv_width` convolutions. `attention_scale` multiplies the
    scores; None means one over the root of `head_dim`.
    """

    family: Family
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope_theta: float
    tied_embeddings: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]
    kinds: tuple[LayerKind, ...] = ()
    window: int = 0
    local_rope_theta: float = 10000.0
    conv_width: int = 0
    attention_scale: float | None = None

    @property
    def names(self) -> PartNames:
        """What the family calls the parts of a layer."""
        return PART_NAMES[self.family]

    @property
    def embedding_scale(self) -> float:
        """What the embeddings are multiplied by."""
        return self.hidden**0.5 if self.family == "gemma3" else 1.0

    @property
    def is_gelu(self) -> bool:
        """Whether the feed-forward part uses GELU instead of SiLU."""
        return self.family == "gemma3"

    def kind(self, layer: int) -> LayerKind:
        """What mixes the tokens in this layer."""
        return self.kinds[layer] if self.kinds else "full_attention"

    def config(self) -> dict[str, Any]:
        """The same as the ``config.json`` of a Hugging Face checkpoint."""
        return {
            "model_type": self.family,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.context_length,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tied_embeddings,
            "hidden_act": "gelu_pytorch_tanh" if self.is_gelu else "silu",
            "bos_token_id": self.bos_id,
            "eos_token_id": list(self.eos_ids),
        }


@dataclass(frozen=True)
class Packed:
    """A matrix in blocks of 32 along its input axis, as MatMulNBits wants it.

    ``codes`` has shape (rows, blocks, bytes), ``scales`` (rows, blocks). The code of zero is
    ``2 ** (bits - 1)``.
    """

    codes: npt.NDArray[np.uint8]
    scales: Floats
    bits: Literal[4, 8]

    @property
    def rows(self) -> int:
        """Output features."""
        return int(self.codes.shape[0])

    @property
    def columns(self) -> int:
        """Input features."""
        return int(self.codes.shape[1]) * BLOCK


def pack_int8(weights: Floats) -> Packed:
    """Round each block of 32 to 8 bits with a symmetric scale; ``weights`` has shape (rows, columns)."""
    blocks = weights.reshape(weights.shape[0], -1, BLOCK)
    scales = np.abs(blocks).max(-1) / np.float32(127)
    safe = np.where(scales == 0, np.float32(1), scales)
    codes = np.rint(blocks / safe[..., None]) + 128
    return Packed(codes.astype(np.uint8), scales.astype(np.float32), 8)


class Checkpoint(Protocol):
    """Weights by Hugging Face name; matrices have shape (output features, input features)."""

    architecture: Architecture

    def __contains__(self, name: str) -> bool: ...

    def floats(self, name: str) -> Floats:
        """The tensor, dequantised."""
        ...

    def packed(self, name: str) -> Packed | None:
        """The matrix's own blocks, bit for bit, or None where MatMulNBits has no equal of its type."""
        ...

    def rope_divisors(self) -> Floats | None:
        """Factors that divide the rotary frequencies (Llama 3's long-context rule), shape (head_dim / 2)."""
        ...


def matrix_shapes(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """Name and shape (output, input features) of every matrix inside the layers."""
    return {
        f"model.layers.{layer}.{part}.weight": shape
        for layer in range(architecture.layers)
        for part, shape in (_mixer_shapes(architecture, layer) | _feed_forward_shapes(architecture)).items()
    }


def _mixer_shapes(a: Architecture, layer: int) -> dict[str, tuple[int, int]]:
    if a.kind(layer) == "conv":
        return {"conv.in_proj": (3 * a.hidden, a.hidden), "conv.out_proj": (a.hidden, a.hidden)}
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    return {
        "self_attn.q_proj": (q, a.hidden),
        "self_attn.k_proj": (kv, a.hidden),
        "self_attn.v_proj": (kv, a.hidden),
        a.names.output: (a.hidden, q),
    }


def _feed_forward_shapes(a: Architecture) -> dict[str, tuple[int, int]]:
    inner, names = a.intermediate, a.names
    return {names.gate: (inner, a.hidden), names.up: (inner, a.hidden), names.down: (a.hidden, inner)}


def _vector_sizes(a: Architecture, layer: int) -> dict[str, int]:
    """Name and size of every norm of a layer."""
    names = a.names
    norms = (names.input_norm, names.ffn_norm, names.after_attention, names.after_ffn)
    sizes = {norm: a.hidden for norm in norms if norm}
    if a.family in ("qwen3", "gemma3", "lfm2") and a.kind(layer) != "conv":
        sizes |= {names.q_norm: a.head_dim, names.k_norm: a.head_dim}
    return sizes


def check_layers(field: str, layers: int, names: Iterable[str], path: Path) -> None:
    """Raise ModelFileError unless `names` hold the layers 0 to `layers` - 1, no less and no more.

    Called before anything is made per layer, since a damaged number can be huge.
    """
    matches = (re.match(r"model\.layers\.([0-9]{1,9})\.", name) for name in names)
    present = {int(match[1]) for match in matches if match}
    if len(present) != layers or max(present, default=-1) != layers - 1:
        raise ModelFileError(
            f"{path}: the field {field} is {layers}, but the file holds {len(present)} layers.",
            hint="The file may be truncated or corrupt; make or fetch it again.",
            path=path,
            field=field,
        )


def check_tensors(
    architecture: Architecture,
    found: Mapping[str, tuple[int, ...]],
    path: Path,
    extra: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Raise unless `found` (shapes by name) has what the architecture needs, and nothing else.

    A tensor that nobody reads would be a part of the arithmetic that is left out. `extra` are tensors that
    the source reads by itself; they may be absent.

    Raises:
        ModelFileError: a tensor is missing or has another shape.
        UnsupportedModelError: a tensor that the importer does not know, or sizes that do not fill blocks.
    """
    a = architecture
    found = {name: _without_ones(name, shape) for name, shape in found.items()}
    needed = _needed_shapes(a, found)
    known = needed | dict(extra or {}) | {"lm_head.weight": (a.vocab_size, a.hidden)}
    for name in needed:
        if name not in found:
            raise ModelFileError(f"{path} lacks the tensor {name}.", path=path)
    for name, shape in found.items():
        if name not in known and not name.endswith(_RECOMPUTED):
            raise UnsupportedModelError(
                f"{path} holds the tensor {name}, which the importer does not use in a {a.family} model.",
                path=path,
            )
        if shape != known.get(name, shape):
            raise ModelFileError(
                f"{path}: the tensor {name} has shape {shape}, but the configuration says {known[name]}.",
                path=path,
            )
    if a.hidden % BLOCK or a.intermediate % BLOCK or a.heads * a.head_dim % BLOCK or a.head_dim % 2:
        raise UnsupportedModelError(f"{path}: its layer sizes are not multiples of {BLOCK}.", path=path)
    if a.heads % a.kv_heads:
        raise UnsupportedModelError(
            f"{path}: {a.heads} attention heads cannot share {a.kv_heads} key-value heads.", path=path
        )


def _without_ones(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Convolutions in checkpoints of torch have an axis of one for the input channels."""
    return tuple(size for size in shape if size != 1) if ".conv.conv.weight" in name else shape


def _needed_shapes(a: Architecture, found: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (a.vocab_size, a.hidden),
        f"{a.names.last_norm}.weight": (a.hidden,),
        **matrix_shapes(a),
    }
    for layer in range(a.layers):
        prefix = f"model.layers.{layer}"
        shapes |= {f"{prefix}.{name}.weight": (size,) for name, size in _vector_sizes(a, layer).items()}
        if a.kind(layer) == "conv":
            shapes[f"{prefix}.conv.conv.weight"] = (a.hidden, a.conv_width)
        biases = {f"{prefix}.{part}.bias": (size,) for part, size in _bias_sizes(a, layer).items()}
        if a.family == "qwen2" or not biases.keys().isdisjoint(found):  # all three or none
            shapes |= biases
    return shapes


def _bias_sizes(a: Architecture, layer: int) -> dict[str, int]:
    """Name and size of the biases that a layer may have."""
    if a.kind(layer) == "conv":
        return {"conv.in_proj": 3 * a.hidden, "conv.conv": a.hidden, "conv.out_proj": a.hidden}
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    return {"self_attn.q_proj": q, "self_attn.k_proj": kv, "self_attn.v_proj": kv}
