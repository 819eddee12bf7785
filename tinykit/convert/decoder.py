"""Weights to an ONNX decoder graph: Llama, Qwen2, Qwen3, Gemma 3 and LFM2.

The graph follows what hub exports look like (``input_ids``, ``attention_mask``, ``past_key_values.N.key`` …),
with what makes it fast on a CPU: rotary positions fused into GroupQueryAttention, logits of the last
``num_logits_to_keep`` positions only, and one table for the embeddings and the output head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tinykit.convert.checkpoint import BLOCK, Architecture, Checkpoint, Floats, Packed, pack_int8
from tinykit.convert.graph import GraphWriter
from tinykit.convert.layout import DecoderDtype

# Meaning: "the caller may bind one buffer as both past and present"; read by the ONNX backend.
SHARED_KV = "tinykit.shared_kv"

_EVERYTHING = 2**62


def write_decoder(
    checkpoint: Checkpoint,
    path: Path,
    *,
    dtype: DecoderDtype = "q8",
    advance: Callable[[int], None] = lambda done: None,
) -> None:
    """Write the graph to `path` and its weights to ``<path>_data``.

    With ``q8`` every matrix has 8 bits in blocks of 32, those that were Q8_0 bit for bit; ``q4`` keeps Q4_0
    matrices as they are and has 8 bits elsewhere. ``w8a8`` is the graph of `tinykit.convert.integers`.
    `advance` is called with 1 after each layer.

    Raises:
        UnsupportedModelError: ``w8a8`` of a family that it is not for.
    """
    graph = GraphWriter(path)
    try:
        if dtype == "w8a8":
            from tinykit.convert.integers import IntegerDecoderGraph

            IntegerDecoderGraph(checkpoint, graph).build(advance)
        else:
            DecoderGraph(checkpoint, graph, dtype).build(advance)
        graph.save({SHARED_KV: "1"})
    finally:
        graph.close()


class DecoderGraph:
    """Writes one decoder; `build` adds all of it to the graph."""

    def __init__(self, checkpoint: Checkpoint, graph: GraphWriter, dtype: DecoderDtype) -> None:
        self.checkpoint = checkpoint
        self.arch: Architecture = checkpoint.architecture
        self.graph = graph
        self.dtype = dtype

    def build(self, advance: Callable[[int], None]) -> None:
        """Add inputs, layers and outputs; `advance` is called with 1 after each layer."""
        graph, arch = self.graph, self.arch
        graph.input("input_ids", np.int64, ["batch_size", "sequence_length"])
        graph.input("attention_mask", np.int64, ["batch_size", "total_sequence_length"])
        graph.input("num_logits_to_keep", np.int64, [])
        self._lengths()
        self._rotary_tables()
        hidden = self._embedding()
        normed = self._norm(hidden, f"model.layers.0.{arch.names.input_norm}", "layer0.normed")
        for layer in range(arch.layers):
            hidden, normed = self._layer(layer, hidden, normed)
            advance(1)
        self._head(normed)

    def _lengths(self) -> None:
        graph = self.graph
        one = graph.constant("one", [1], np.int64)
        total = graph.node("ReduceSum", ["attention_mask", one], "mask.sum", keepdims=0)
        last = graph.node("Sub", [total, one], "mask.last")
        graph.node("Cast", [last], "seqlens_k", to=6)
        shape = graph.node("Shape", ["attention_mask"], "mask.shape")
        longest = graph.node(
            "Gather", [shape, graph.constant("axis1", np.array(1), np.int64)], "mask.longest"
        )
        graph.node("Cast", [longest], "total_sequence_length_k", to=6)

    def _rotary_tables(self) -> None:
        arch = self.arch
        divisors = self.checkpoint.rope_divisors()
        self._rotary_table("", arch.rope_theta, 1.0 if divisors is None else divisors)
        if "sliding_attention" in arch.kinds:
            self._rotary_table("_local", arch.local_rope_theta, 1.0)

    def _rotary_table(self, suffix: str, theta: float, divisors: Floats | float) -> None:
        arch = self.arch
        inverse = theta ** (-np.arange(0, arch.head_dim, 2, dtype=np.float64) / arch.head_dim) / divisors
        angles = np.outer(np.arange(arch.context_length), inverse)
        self.graph.constant(f"cos_cache{suffix}", np.cos(angles), np.float32)
        self.graph.constant(f"sin_cache{suffix}", np.sin(angles), np.float32)

    # ---- embeddings and output head: one table --------------------------------------------------

    def _embedding(self) -> str:
        found = self._lookup()
        if self.arch.embedding_scale == 1:
            return found
        scale = self.graph.constant("embed.scale", np.array(self.arch.embedding_scale), np.float32)
        return self.graph.node("Mul", [found, scale], "hidden0.scaled")

    def _lookup(self) -> str:
        graph, arch = self.graph, self.arch
        name = "model.embed_tokens.weight"
        if self.dtype == "fp32":
            graph.constant("embed.weight", self.checkpoint.floats(name))
            return graph.node("Gather", ["embed.weight", "input_ids"], "hidden0", axis=0)
        # The head's MatMulNBits wants the blocks in three dimensions and prepacks only an initializer, so the
        # look-up gets the reshaped view: the other way round a token cost 13.8 instead of 9.2 ms.
        packed = self._embedding_table = self._packed_rows([name])
        graph.constant("embed.codes", packed.codes)
        graph.constant("embed.scales", packed.scales)
        shape = graph.constant("embed.shape", [arch.vocab_size, -1], np.int64)
        flat = graph.node("Reshape", ["embed.codes", shape], "embed.flat")
        return graph.contrib(
            "GatherBlockQuantized",
            [flat, "input_ids", "embed.scales"],
            "hidden0",
            bits=packed.bits,
            block_size=BLOCK,
            gather_axis=0,
            quantize_axis=1,
        )

    def _head(self, normed: str) -> None:
        graph, arch = self.graph, self.arch
        negative = graph.node("Neg", ["num_logits_to_keep"], "keep.negative")
        start = graph.node("Reshape", [negative, "one"], "keep.start")
        end = graph.constant("keep.end", [_EVERYTHING], np.int64)
        kept = graph.node("Slice", [normed, start, end, "one"], "kept")
        if not arch.tied_embeddings:
            logits = self._matmul(kept, ["lm_head"], "head")
        elif self.dtype == "fp32":
            logits = graph.contrib("FusedMatMul", [kept, "embed.weight"], "head", transB=1)
        else:
            logits = self._matmul_nbits(kept, self._embedding_table, "embed", "head")
        graph.node("Identity", [logits], "logits")
        graph.output("logits", np.float32, ["batch_size", "num_logits", arch.vocab_size])

    # ---- one layer ------------------------------------------------------------------------------

    def _layer(self, layer: int, hidden: str, normed: str) -> tuple[str, str]:
        """Returns the names of the residual stream and of its norm for the next layer."""
        names, prefix = self.arch.names, f"model.layers.{layer}"
        is_conv = self.arch.kind(layer) == "conv"
        mixed = self._convolution(layer, normed) if is_conv else self._attention(layer, normed)
        mixed = self._norm_if(mixed, prefix, names.after_attention)
        hidden, normed = self._add_and_norm(hidden, mixed, f"{prefix}.{names.ffn_norm}")
        down = self._norm_if(self._feed_forward(layer, normed), prefix, names.after_ffn)
        last = layer + 1 == self.arch.layers
        following = names.last_norm if last else f"model.layers.{layer + 1}.{names.input_norm}"
        return self._add_and_norm(hidden, down, following)

    def _convolution(self, layer: int, normed: str) -> str:
        """A gated convolution over the last few tokens, whose inputs are the layer's state.

        LFM2's operator: https://github.com/huggingface/transformers/blob/main/src/transformers/models/lfm2
        """
        graph, arch, tag = self.graph, self.arch, f"layer{layer}.conv"
        prefix = f"model.layers.{layer}.conv"
        projected = self._matmul(normed, [f"{prefix}.in_proj"], f"{tag}.in")
        sizes = graph.constant("conv.sizes", [arch.hidden] * 3, np.int64)
        graph.node("Split", [projected, sizes], [f"{tag}.b", f"{tag}.c", f"{tag}.x"], axis=-1)
        gated = graph.node("Mul", [f"{tag}.b", f"{tag}.x"], f"{tag}.gated")
        turned = graph.node("Transpose", [gated], f"{tag}.turned", perm=[0, 2, 1])
        dims: list[int | str] = ["batch_size", arch.hidden, arch.conv_width - 1]
        past = graph.input(f"past_conv.{layer}", np.float32, dims)
        line = graph.node("Concat", [past, turned], f"{tag}.line", axis=2)
        weights = self.checkpoint.floats(f"{prefix}.conv.weight").reshape(arch.hidden, 1, arch.conv_width)
        inputs = [line, graph.constant(f"{tag}.weight", weights)]
        if f"{prefix}.conv.bias" in self.checkpoint:
            inputs.append(graph.constant(f"{tag}.bias", self.checkpoint.floats(f"{prefix}.conv.bias")))
        y = graph.node("Conv", inputs, f"{tag}.y", kernel_shape=[arch.conv_width], group=arch.hidden)
        start = graph.constant("conv.start", [1 - arch.conv_width], np.int64)
        end, axis = (
            graph.constant("conv.end", [_EVERYTHING], np.int64),
            graph.constant("axis2", [2], np.int64),
        )
        graph.node("Slice", [line, start, end, axis], graph.output(f"present_conv.{layer}", np.float32, dims))
        back = graph.node("Transpose", [y], f"{tag}.back", perm=[0, 2, 1])
        out = graph.node("Mul", [f"{tag}.c", back], f"{tag}.out")
        return self._matmul(out, [f"{prefix}.out_proj"], f"layer{layer}.o")

    def _attention(self, layer: int, normed: str) -> str:
        graph, arch, prefix = self.graph, self.arch, f"model.layers.{layer}.self_attn"
        names = [f"{prefix}.{part}_proj" for part in "qkv"]
        q_norm, k_norm = (f"model.layers.{layer}.{n}" for n in (arch.names.q_norm, arch.names.k_norm))
        if f"{q_norm}.weight" in self.checkpoint:
            q, k, v = (
                self._matmul(normed, [n], f"layer{layer}.{part}")
                for n, part in zip(names, "qkv", strict=True)
            )
            q = self._norm_heads(q, q_norm, arch.heads)
            k = self._norm_heads(k, k_norm, arch.kv_heads)
            projected = [q, k, v]
        else:
            projected = [self._matmul(normed, names, f"layer{layer}.qkv"), "", ""]
        past, present = [], []
        for part in ("key", "value"):
            dims: list[int | str] = ["batch_size", arch.kv_heads, "past_sequence_length", arch.head_dim]
            past.append(graph.input(f"past_key_values.{layer}.{part}", np.float32, dims))
            dims[2] = "total_sequence_length"
            present.append(graph.output(f"present.{layer}.{part}", np.float32, dims))
        is_local = arch.kind(layer) == "sliding_attention"
        tables = [f"{table}_cache{'_local' if is_local else ''}" for table in ("cos", "sin")]
        window = {"local_window_size": arch.window} if is_local else {}
        mixed = graph.contrib(
            "GroupQueryAttention",
            [*projected, *past, "seqlens_k", "total_sequence_length_k", *tables],
            [f"layer{layer}.attention", *present],
            num_heads=arch.heads,
            kv_num_heads=arch.kv_heads,
            do_rotary=1,
            rotary_interleaved=0,
            scale=float(arch.attention_scale or arch.head_dim**-0.5),
            **window,
        )
        return self._matmul(mixed, [f"model.layers.{layer}.{arch.names.output}"], f"layer{layer}.o")

    def _feed_forward(self, layer: int, normed: str) -> str:
        graph, arch, tag = self.graph, self.arch, f"layer{layer}"
        gate, up, down = (
            f"model.layers.{layer}.{name}" for name in (arch.names.gate, arch.names.up, arch.names.down)
        )
        self._gate_and_up(normed, gate, up, tag)
        if arch.is_gelu:
            active = graph.node("Gelu", [f"{tag}.gate"], f"{tag}.gelu", approximate="tanh")
        else:
            sigmoid = graph.node("Sigmoid", [f"{tag}.gate"], f"{tag}.sigmoid")
            active = graph.node("Mul", [f"{tag}.gate", sigmoid], f"{tag}.silu")
        gated = graph.node("Mul", [active, f"{tag}.up"], f"{tag}.gated")
        return self._matmul(gated, [down], f"{tag}.down")

    def _gate_and_up(self, normed: str, gate: str, up: str, tag: str) -> None:
        """Make ``<tag>.gate`` and ``<tag>.up``."""
        graph, arch = self.graph, self.arch
        both = self._matmul(normed, [gate, up], f"{tag}.gate_up")
        sizes = graph.constant("gate_up.sizes", [arch.intermediate, arch.intermediate], np.int64)
        graph.node("Split", [both, sizes], [f"{tag}.gate", f"{tag}.up"], axis=-1)

    # ---- pieces ---------------------------------------------------------------------------------

    def _norm(self, x: str, weight: str, out: str) -> str:
        return self.graph.node(
            "SimplifiedLayerNormalization",
            [x, self._weight(weight)],
            out,
            axis=-1,
            epsilon=self.arch.norm_eps,
            stash_type=1,
        )

    def _norm_if(self, x: str, prefix: str, name: str) -> str:
        """The norm of that name, where the family has it."""
        return self._norm(x, f"{prefix}.{name}", f"{x}.after") if name else x

    def _norm_heads(self, x: str, weight: str, heads: int) -> str:
        graph, arch = self.graph, self.arch
        split = graph.constant("heads.split", [0, -1, arch.head_dim], np.int64)
        # (B, S, heads * d) -> (B, S * heads, d): the norm runs over each head's d
        rows = graph.node("Reshape", [x, split], f"{x}.rows")
        normed = self._norm(rows, weight, f"{x}.normed")
        joined = graph.constant(f"heads.join{heads}", [0, -1, heads * arch.head_dim], np.int64)
        return graph.node("Reshape", [normed, joined], f"{x}.joined")

    def _add_and_norm(self, hidden: str, delta: str, weight: str) -> tuple[str, str]:
        normed, total = f"{delta}.normed", f"{delta}.sum"
        self.graph.contrib(
            "SkipSimplifiedLayerNormalization",
            [hidden, delta, self._weight(weight)],
            [normed, "", "", total],
            epsilon=self.arch.norm_eps,
        )
        return total, normed

    def _weight(self, name: str) -> str:
        return self.graph.constant(f"{name}.weight", self.checkpoint.floats(f"{name}.weight"))

    def _matmul(self, x: str, names: Sequence[str], out: str) -> str:
        """Multiply by one matrix or several stacked by rows, and add their bias if they have one."""
        graph = self.graph
        weights = [f"{name}.weight" for name in names]
        y = self._product(x, weights, out)
        if f"{names[0]}.bias" in self.checkpoint:
            bias = np.concatenate([self.checkpoint.floats(f"{name}.bias") for name in names])
            y = graph.node("Add", [y, graph.constant(f"{out}.bias", bias)], f"{out}.biased")
        return y

    def _product(self, x: str, weights: Sequence[str], out: str) -> str:
        graph = self.graph
        if self.dtype == "fp32":
            stacked = np.concatenate([self.checkpoint.floats(w) for w in weights])
            return graph.node("MatMul", [x, graph.constant(f"{out}.weight", stacked.T)], out)
        packed = self._packed_rows(weights)
        graph.constant(f"{out}.codes", packed.codes)
        graph.constant(f"{out}.scales", packed.scales)
        return self._matmul_nbits(x, packed, out, out)

    def _matmul_nbits(self, x: str, packed: Packed, weights: str, out: str) -> str:
        # accuracy_level 4: int8 activations; without it 8-bit weights take a path up to 80 times slower
        return self.graph.contrib(
            "MatMulNBits",
            [x, f"{weights}.codes", f"{weights}.scales"],
            out,
            K=packed.columns,
            N=packed.rows,
            bits=packed.bits,
            block_size=BLOCK,
            accuracy_level=4,
        )

    def _packed_rows(self, names: Sequence[str]) -> Packed:
        """The matrices stacked by rows; their own blocks where all can keep them, else 8 bits."""
        own = [self.checkpoint.packed(name) for name in names]
        allowed = (4, 8) if self.dtype == "q4" else (8,)
        if all(p is not None and p.bits in allowed for p in own) and len({p.bits for p in own if p}) == 1:
            parts = [p for p in own if p is not None]
        else:
            parts = [pack_int8(self.checkpoint.floats(name)) for name in names]
        return Packed(
            np.concatenate([p.codes for p in parts]), np.concatenate([p.scales for p in parts]), parts[0].bits
        )
