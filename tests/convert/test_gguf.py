from pathlib import Path

import numpy as np
import pytest

from tests import tiny_models as tiny
from tinykit.convert.checkpoint import pack_int8
from tinykit.convert.gguf import GgufFile, hugging_face_name
from tinykit.errors import ModelFileError, UnsupportedModelError


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_floats_come_back_in_hugging_face_order(family, tmp_path):
    weights = tiny.random_weights(family)
    file = GgufFile(tiny.write_gguf(tmp_path / "m.gguf", family, weights))
    assert set(weights) == {name for name in weights if name in file}
    for name, values in weights.items():
        np.testing.assert_array_equal(file.floats(name), values, err_msg=name)


def test_architecture_is_read(tmp_path):
    arch = GgufFile(tiny.write_gguf(tmp_path / "m.gguf", "qwen3", tiny.random_weights("qwen3"))).architecture
    assert (arch.family, arch.layers, arch.hidden, arch.heads, arch.kv_heads) == ("qwen3", 2, 64, 4, 2)
    assert (arch.head_dim, arch.intermediate, arch.context_length) == (32, 96, 4096)
    assert (arch.vocab_size, arch.bos_id, arch.eos_ids) == (len(tiny.VOCABULARY), 0, (2, 0))
    assert arch.tied_embeddings


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_packed_blocks_are_the_files_own_values(kind, tmp_path):
    file = GgufFile(tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.random_weights("llama"), kind))
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"):
        packed = file.packed(name)
        codes = packed.codes
        if packed.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:2], -1)
        values = (codes.astype(np.float32) - 2 ** (packed.bits - 1)) * packed.scales[..., None]
        np.testing.assert_array_equal(values.reshape(packed.rows, packed.columns), file.floats(name))


@pytest.mark.parametrize("kind", ["F32", "F16", "Q4_1"])
def test_types_without_an_equal_are_not_packed(kind, tmp_path):
    file = GgufFile(tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.random_weights("llama"), kind))
    assert file.packed("model.layers.0.mlp.up_proj.weight") is None


def test_pack_int8_is_off_by_half_a_step_at_most():
    values = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    values[3, :32] = 0  # a block of zeros has no scale to divide by
    packed = pack_int8(values)
    back = ((packed.codes.astype(np.float32) - 128) * packed.scales[..., None]).reshape(values.shape)
    steps = np.repeat(packed.scales, 32, axis=1)
    assert np.all(np.abs(back - values) <= steps / 2 + 1e-7)
    assert np.all(back[3, :32] == 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("blk.7.attn_q.weight", "model.layers.7.self_attn.q_proj.weight"),
        ("blk.0.ffn_norm.weight", "model.layers.0.post_attention_layernorm.weight"),
        ("blk.12.attn_k.bias", "model.layers.12.self_attn.k_proj.bias"),
        ("output.weight", "lm_head.weight"),
        ("rope_freqs.weight", "rope_freqs.weight"),
    ],
)
def test_hugging_face_name(name, expected):
    assert hugging_face_name(name) == expected


@pytest.mark.parametrize(
    ("family", "name", "expected"),
    [
        ("gemma3", "blk.1.ffn_norm.weight", "model.layers.1.pre_feedforward_layernorm.weight"),
        ("gemma3", "blk.1.post_ffw_norm.weight", "model.layers.1.post_feedforward_layernorm.weight"),
        ("lfm2", "blk.0.shortconv.conv.weight", "model.layers.0.conv.conv.weight"),
        ("lfm2", "blk.0.ffn_gate.weight", "model.layers.0.feed_forward.w1.weight"),
        ("lfm2", "token_embd_norm.weight", "model.embedding_norm.weight"),
    ],
)
def test_hugging_face_name_of_other_families(family, name, expected):
    assert hugging_face_name(name, family) == expected


def test_kinds_of_layers():
    gguf = Path(__file__).parents[1] / "fixtures" / "gguf"
    gemma, lfm2 = (GgufFile(gguf / f"{name}-Q8_0.gguf").architecture for name in ("gemma3", "lfm2"))
    assert gemma.kinds == ("sliding_attention", "full_attention", "sliding_attention")
    assert (gemma.window, gemma.local_rope_theta, gemma.is_gelu) == (16, 10000.0, True)
    assert lfm2.kinds == ("conv", "full_attention", "conv", "full_attention")
    assert (lfm2.conv_width, lfm2.kv_heads) == (3, 2)


@pytest.mark.parametrize("keep", [0, 3, 4, 20, 500, 4000, -200, -1], ids=lambda n: f"first_{n}_bytes")
def test_truncated_file_is_refused(keep, tmp_path):
    path = tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.random_weights("llama"))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelFileError, match=r"m\.gguf"):
        GgufFile(path)


def test_scrambled_files_are_read_or_refused_but_never_crash(tmp_path):
    path = tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.random_weights("llama"))
    whole = path.read_bytes()
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(60):
        data = bytearray(whole)
        for at in rng.integers(4, 6000, size=8):
            data[at] = rng.integers(0, 256)
        path.write_bytes(data)
        try:
            GgufFile(path)
        except ModelFileError:
            refused += 1
    assert refused > 10


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "page.gguf"
    path.write_text("<!doctype html>", encoding="utf-8")
    with pytest.raises(ModelFileError, match="does not start with 'GGUF'"):
        GgufFile(path)
    with pytest.raises(ModelFileError, match="There is no file"):
        GgufFile(tmp_path / "absent.gguf")


def test_missing_tensor_is_named(tmp_path):
    gone = "model.layers.1.mlp.up_proj.weight"
    path = tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.random_weights("llama"), without=gone)
    with pytest.raises(ModelFileError, match=gone):
        GgufFile(path)


def test_wrong_shape_is_named(tmp_path):
    weights = tiny.random_weights("llama")
    weights["model.layers.0.mlp.up_proj.weight"] = weights["model.layers.0.mlp.up_proj.weight"][:64]
    with pytest.raises(ModelFileError, match=r"up_proj.*\(64, 64\).*\(96, 64\)"):
        GgufFile(tiny.write_gguf(tmp_path / "m.gguf", "llama", weights))


def test_unknown_family_and_rope_scaling_are_named(tmp_path):
    path = tiny.write_gguf(tmp_path / "a.gguf", "gpt2", tiny.random_weights("gpt2"))
    with pytest.raises(UnsupportedModelError, match="'gpt2'.*llama, qwen2, qwen3"):
        GgufFile(path)
    extra = {"llama.rope.scaling.type": "yarn"}
    path = tiny.write_gguf(tmp_path / "b.gguf", "llama", tiny.random_weights("llama"), extra=extra)
    with pytest.raises(UnsupportedModelError, match="yarn"):
        GgufFile(path)


def test_weights_that_are_not_finite_are_refused(tmp_path):
    weights = tiny.random_weights("llama")
    weights["model.layers.0.mlp.up_proj.weight"][5, 5] = np.nan
    file = GgufFile(tiny.write_gguf(tmp_path / "m.gguf", "llama", weights))
    with pytest.raises(ModelFileError, match="not finite"):
        file.floats("model.layers.0.mlp.up_proj.weight")
