"""What the families of decoders call the parts of a layer, and how their layers differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Family = Literal["llama", "qwen2", "qwen3", "gemma3", "lfm2"]
# attention over everything, attention over the last tokens only, or a short convolution
LayerKind = Literal["full_attention", "sliding_attention", "conv"]


@dataclass(frozen=True)
class PartNames:
    """Names of a layer's parts in Hugging Face checkpoints, and what ggml calls those that differ.

    Attributes:
        input_norm: Norm before attention or convolution.
        ffn_norm: Norm before the feed-forward part.
        output: Projection after attention.
        q_norm: Norm of each query head, where there is one.
        k_norm: Norm of each key head.
        gate: Feed-forward projection that goes through the activation.
        up: Feed-forward projection that it multiplies.
        down: Projection back.
        last_norm: Norm before the output head.
        after_attention: Norm of what attention adds; empty if there is none.
        after_ffn: Norm of what the feed-forward part adds; empty if there is none.
        ggml_last_norms: Names that GGUF files have for the last norm.
    """

    input_norm: str = "input_layernorm"
    ffn_norm: str = "post_attention_layernorm"
    output: str = "self_attn.o_proj"
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    last_norm: str = "model.norm"
    after_attention: str = ""
    after_ffn: str = ""
    ggml_last_norms: tuple[str, ...] = ("output_norm.weight",)

    def by_ggml_name(self) -> dict[str, str]:
        """Hugging Face names by the names of ggml, for the parts of a layer."""
        names = {
            "attn_norm": self.input_norm,
            "ffn_norm": self.ffn_norm,
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": self.output,
            "attn_q_norm": self.q_norm,
            "attn_k_norm": self.k_norm,
            "ffn_gate": self.gate,
            "ffn_up": self.up,
            "ffn_down": self.down,
            "post_attention_norm": self.after_attention,
            "post_ffw_norm": self.after_ffn,
            "shortconv.conv": "conv.conv",
            "shortconv.in_proj": "conv.in_proj",
            "shortconv.out_proj": "conv.out_proj",
        }
        return {ggml: name for ggml, name in names.items() if name}


_PLAIN = PartNames()
PART_NAMES: Final[dict[Family, PartNames]] = {
    "llama": _PLAIN,
    "qwen2": _PLAIN,
    "qwen3": _PLAIN,
    "gemma3": PartNames(
        ffn_norm="pre_feedforward_layernorm",
        after_attention="post_attention_layernorm",
        after_ffn="post_feedforward_layernorm",
    ),
    "lfm2": PartNames(
        input_norm="operator_norm",
        ffn_norm="ffn_norm",
        output="self_attn.out_proj",
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
        gate="feed_forward.w1",
        up="feed_forward.w3",
        down="feed_forward.w2",
        last_norm="model.embedding_norm",
        ggml_last_norms=("token_embd_norm.weight", "output_norm.weight"),
    ),
}
FAMILIES: Final = tuple(PART_NAMES)
