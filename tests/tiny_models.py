"""Tiny models with random weights: GGUF files of every family, and what numpy says they compute."""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, CONTEXT = 64, 2, 4, 2, 32, 96, 4096
EPS, THETA = 1e-5, 10000.0
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


VOCABULARY = [*SPECIALS, *byte_alphabet(), "th", "the"]
MERGES = ["t h", "th e"]


def random_weights(family: str, *, tied: bool = True, seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 weights by Hugging Face name."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def norm(size: int) -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(size)).astype(np.float32)

    weights = {
        "model.embed_tokens.weight": matrix(len(VOCABULARY), HIDDEN),
        "model.norm.weight": norm(HIDDEN),
    }
    if not tied:
        weights["lm_head.weight"] = matrix(len(VOCABULARY), HIDDEN)
    for layer in range(LAYERS):
        p = f"model.layers.{layer}"
        q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
        sizes = {"q": (q, HIDDEN), "k": (kv, HIDDEN), "v": (kv, HIDDEN), "o": (HIDDEN, q)}
        for name, (rows, columns) in sizes.items():
            weights[f"{p}.self_attn.{name}_proj.weight"] = matrix(rows, columns)
            if family == "qwen2" and name != "o":
                weights[f"{p}.self_attn.{name}_proj.bias"] = 0.1 * norm(rows)
        if family == "qwen3":
            weights[f"{p}.self_attn.q_norm.weight"] = norm(HEAD_DIM)
            weights[f"{p}.self_attn.k_norm.weight"] = norm(HEAD_DIM)
        weights[f"{p}.mlp.gate_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        weights[f"{p}.mlp.up_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        weights[f"{p}.mlp.down_proj.weight"] = matrix(HIDDEN, INTERMEDIATE)
        weights[f"{p}.input_layernorm.weight"] = norm(HIDDEN)
        weights[f"{p}.post_attention_layernorm.weight"] = norm(HIDDEN)
    return weights


_GGML_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def ggml_name(name: str) -> str:
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in top:
        return top[name]
    _, _, layer, part, kind = name.replace("self_attn.", "self_attn@").replace("mlp.", "mlp@").split(".")
    return f"blk.{layer}.{_GGML_NAMES[part.replace('@', '.')]}.{kind}"


def write_gguf(
    path: Path,
    family: str,
    weights: dict[str, np.ndarray],
    kind: str = "F32",
    *,
    extra: dict[str, str] | None = None,
    without: str | None = None,
    pre: str = "gpt-2",
) -> Path:
    """Write weights as a GGUF file whose matrices have the ggml type `kind`."""
    writer = GGUFWriter(str(path), family)
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_rope_freq_base(THETA)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in VOCABULARY])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for key, value in (extra or {}).items():
        writer.add_string(key, value)
    quantization = GGMLQuantizationType[kind]
    for name, values in weights.items():
        if name == without:
            continue
        rows = permuted(values) if family == "llama" and ("q_proj" in name or "k_proj" in name) else values
        if values.ndim == 2 and kind != "F32":
            writer.add_tensor(ggml_name(name), quantize(rows, quantization), raw_dtype=quantization)
        else:
            writer.add_tensor(ggml_name(name), rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permuted(rows: np.ndarray) -> np.ndarray:
    """ggml's row order of Llama's q and k: row 2i is the first half's i-th, row 2i+1 the second half's."""
    heads = rows.reshape(-1, 2, HEAD_DIM // 2, *rows.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)


def reference_logits(weights: dict[str, np.ndarray], token_ids: list[int]) -> np.ndarray:
    """Logits after each token, shape (tokens, vocabulary), in float64 by the textbook."""
    w = {name: values.astype(np.float64) for name, values in weights.items()}

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)

    n = len(token_ids)
    angles = np.outer(np.arange(n), THETA ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def rotate(x: np.ndarray) -> np.ndarray:
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def heads(x: np.ndarray, count: int, norm_name: str | None) -> np.ndarray:
        x = x.reshape(n, count, HEAD_DIM)
        return norm(x, w[norm_name]) if norm_name in w else x

    x = w["model.embed_tokens.weight"][token_ids]
    for layer in range(LAYERS):
        p = f"model.layers.{layer}"
        h = norm(x, w[f"{p}.input_layernorm.weight"])
        q = rotate(heads(linear(h, f"{p}.self_attn.q_proj"), HEADS, f"{p}.self_attn.q_norm.weight"))
        k = rotate(heads(linear(h, f"{p}.self_attn.k_proj"), KV_HEADS, f"{p}.self_attn.k_norm.weight"))
        v = heads(linear(h, f"{p}.self_attn.v_proj"), KV_HEADS, None)
        k, v = (np.repeat(t, HEADS // KV_HEADS, axis=1) for t in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(HEAD_DIM)
        scores = np.where(np.tri(n)[None] > 0, scores, -np.inf)
        probabilities = np.exp(scores - scores.max(-1, keepdims=True))
        probabilities /= probabilities.sum(-1, keepdims=True)
        attention = np.einsum("hqk,khd->qhd", probabilities, v).reshape(n, -1)
        x = x + linear(attention, f"{p}.self_attn.o_proj")
        h = norm(x, w[f"{p}.post_attention_layernorm.weight"])
        gate = linear(h, f"{p}.mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, f"{p}.mlp.up_proj"), f"{p}.mlp.down_proj")
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return norm(x, w["model.norm.weight"]) @ head.T
