"""A dense decoder in PyTorch with an adapter to train: small enough to read, quick on a CPU.

The weights come from any `Checkpoint` and stay frozen, q, k and v fused into one product, gate and up into
another. What all prompts begin with is computed once a batch, the layers below the first adapted one give
states that never change and can be kept, and the last layer and the output head run only where a loss is
wanted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from tinykit.convert.checkpoint import Checkpoint, matrix_shapes
from tinykit.tune.families import require_trainable
from tinykit.tune.lora import LoraLinear, Tensor

_FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
MATRICES = tuple(name for names in _FUSED.values() for name in names)

KeysValues = tuple[Tensor, Tensor]  # each (batch, kv heads, tokens, head size)


@dataclass(frozen=True)
class _Layer:
    """The frozen weights of one layer, and its trainable pairs in the order of the fused matrices."""

    weights: dict[str, Tensor]
    norms: dict[str, Tensor]
    qkv_bias: Tensor | None
    pairs: dict[str, list[Tensor]] | None


class Decoder:
    """A frozen model with a trainable adapter on every matrix of the layers from `first_layer` up.

    Args:
        checkpoint: The weights.
        rank: Rank of the adapter.
        alpha: The adapter's part is multiplied by ``alpha / rank``.
        first_layer: The layers below have no adapter.
        seed: Of the random half of the adapter; the other half begins as zeros.

    Raises:
        UnsupportedModelError: a family whose layers it does not compute.
    """

    def __init__(
        self, checkpoint: Checkpoint, *, rank: int, alpha: float, first_layer: int = 0, seed: int = 0
    ) -> None:
        require_trainable(checkpoint)
        self.architecture = checkpoint.architecture
        self.first_layer = first_layer
        self.scale = alpha / rank
        self.adapter = self._new_adapter(rank, seed)
        self._layers = [self._layer(checkpoint, layer) for layer in range(self.architecture.layers)]
        self._embedding = _tensor(checkpoint, "model.embed_tokens.weight")
        self._norm = _tensor(checkpoint, "model.norm.weight")
        tied = self.architecture.tied_embeddings
        self._head = self._embedding if tied else _tensor(checkpoint, "lm_head.weight")
        self._angles = self._rotary_table(checkpoint)

    @property
    def parameters(self) -> list[Tensor]:
        """The trainable tensors, always in the same order."""
        return [tensor for pair in self.adapter.values() for tensor in pair]

    def prefix(self, token_ids: Sequence[int]) -> list[KeysValues]:
        """Keys and values, layer by layer, of the tokens that all prompts begin with."""
        x = self._embedding[torch.tensor([list(token_ids)])]
        found = []
        for layer in self._layers:
            x, kv = self._run(layer, x, None)
            found.append(kv)
        return found

    def lower(self, token_ids: Tensor, prefix: list[KeysValues]) -> Tensor:
        """States below the first adapted layer, shape (batch, tokens, hidden); no training changes them.

        `token_ids` (batch, tokens) continue the prefix and are padded at their ends.
        """
        with torch.no_grad():
            x = self._embedding[token_ids]
            for layer, before in zip(self._layers[: self.first_layer], prefix, strict=False):
                x, _ = self._run(layer, x, before)
            return x

    def upper(self, x: Tensor, prefix: list[KeysValues], rows: Tensor) -> Tensor:
        """Logits, shape (rows, vocabulary), at `rows` of the flattened (batch, tokens)."""
        top = len(self._layers) - 1
        for index in range(self.first_layer, top + 1):
            x, _ = self._run(self._layers[index], x, prefix[index], rows if index == top else None)
        return self._normed(x, self._norm) @ self._head.T

    def _run(
        self, layer: _Layer, x: Tensor, before: KeysValues | None, rows: Tensor | None = None
    ) -> tuple[Tensor, KeysValues]:
        """One layer on x (batch, tokens, hidden); with `rows`, only these go on after the attention."""
        batch, tokens, hidden = x.shape
        q, k, v = self._heads(layer, x, 0 if before is None else before[0].shape[2])
        keys_values = k, v
        if before is not None:
            k = torch.cat([before[0].expand(batch, -1, -1, -1), k], 2)
            v = torch.cat([before[1].expand(batch, -1, -1, -1), v], 2)
        y = self._attention(q, k, v).transpose(1, 2).reshape(batch * tokens, -1)
        x = x.reshape(batch * tokens, hidden)
        if rows is not None:
            x, y = x[rows], y[rows]
        x = x + self._linear(layer, "out", y)
        x = x + self._feed_forward(layer, x)
        return (x if rows is not None else x.view(batch, tokens, hidden)), keys_values

    def _heads(self, layer: _Layer, x: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (batch, heads, tokens, head size), the first two rotated."""
        batch, tokens, hidden = x.shape
        arch = self.architecture
        flat = self._linear(layer, "qkv", self._normed(x, layer.norms["input"]).view(-1, hidden))
        if layer.qkv_bias is not None:
            flat = flat + layer.qkv_bias
        q, k, v = flat.view(batch, tokens, -1, arch.head_dim).split(
            [arch.heads, arch.kv_heads, arch.kv_heads], 2
        )
        q = self._rotated(self._head_normed(layer, q, "q"), start)
        k = self._rotated(self._head_normed(layer, k, "k"), start)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    def _head_normed(self, layer: _Layer, part: Tensor, name: str) -> Tensor:
        return self._normed(part, layer.norms[name]) if name in layer.norms else part

    def _rotated(self, part: Tensor, start: int) -> Tensor:
        """Rotary positions on (batch, tokens, heads, head size), by halves."""
        cos, sin = (table[start : start + part.shape[1], None] for table in self._angles)
        first, second = part.chunk(2, -1)
        return part * cos + torch.cat([-second, first], -1) * sin

    def _attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention in which q may begin later than k."""
        group = self.architecture.heads // self.architecture.kv_heads
        k, v = (part.repeat_interleave(group, 1) for part in (k, v))
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def _feed_forward(self, layer: _Layer, x: Tensor) -> Tensor:
        gate, up = self._linear(layer, "gate_up", self._normed(x, layer.norms["post"])).chunk(2, -1)
        return self._linear(layer, "down", F.silu(gate) * up)

    def _linear(self, layer: _Layer, name: str, x: Tensor) -> Tensor:
        weight = layer.weights[name]
        if layer.pairs is None:
            return x @ weight.T
        return LoraLinear.apply(x, weight, self.scale, *layer.pairs[name])

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, self.architecture.norm_eps)

    def _new_adapter(self, rank: int, seed: int) -> dict[str, tuple[Tensor, Tensor]]:
        """Pairs (A, B) by the name of the matrix, as peft begins them: A random, B zero."""
        random = torch.Generator().manual_seed(seed)
        shapes = matrix_shapes(self.architecture)
        pairs = {}
        for layer in range(self.first_layer, self.architecture.layers):
            for name in MATRICES:
                full = f"model.layers.{layer}.{name}"
                rows, columns = shapes[f"{full}.weight"]
                a = (torch.rand(rank, columns, generator=random) * 2 - 1) / math.sqrt(columns)
                pairs[full] = (a.requires_grad_(), torch.zeros(rows, rank).requires_grad_())
        return pairs

    def _layer(self, checkpoint: Checkpoint, index: int) -> _Layer:
        at = f"model.layers.{index}"
        norms = {
            "input": f"{at}.input_layernorm.weight",
            "post": f"{at}.post_attention_layernorm.weight",
            "q": f"{at}.self_attn.q_norm.weight",
            "k": f"{at}.self_attn.k_norm.weight",
        }
        biases = [f"{at}.{name}.bias" for name in _FUSED["qkv"]]
        return _Layer(
            weights={
                fused: torch.cat([_tensor(checkpoint, f"{at}.{name}.weight") for name in names])
                for fused, names in _FUSED.items()
            },
            norms={key: _tensor(checkpoint, name) for key, name in norms.items() if name in checkpoint},
            qkv_bias=torch.cat([_tensor(checkpoint, n) for n in biases]) if biases[0] in checkpoint else None,
            pairs={
                fused: [tensor for name in names for tensor in self.adapter[f"{at}.{name}"]]
                for fused, names in _FUSED.items()
            }
            if index >= self.first_layer
            else None,
        )

    def _rotary_table(self, checkpoint: Checkpoint) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each (positions, head size)."""
        arch = self.architecture
        steps = torch.arange(0, arch.head_dim, 2, dtype=torch.float64) / arch.head_dim
        frequencies = arch.rope_theta**-steps
        divisors = checkpoint.rope_divisors()
        if divisors is not None:
            frequencies = frequencies / torch.from_numpy(divisors)
        angles = torch.outer(torch.arange(arch.context_length), frequencies)
        angles = torch.cat([angles, angles], -1)
        return angles.cos().float(), angles.sin().float()


def _tensor(checkpoint: Checkpoint, name: str) -> Any:
    return torch.from_numpy(checkpoint.floats(name).copy())
