from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFValueType, GGUFWriter

from tests import tiny_models as tiny
from tinykit import loading, store
from tinykit.convert.checkpoint import pack_int8
from tinykit.convert.fields import Fields
from tinykit.convert.gguf import GgufFile, _kv_heads, _layer_kinds, hugging_face_name
from tinykit.convert.importer import import_model
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


def test_number_format_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "m.gguf"
    writer = GGUFWriter(str(path), "llama")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        UnsupportedModelError, match=r"m\.gguf has the tensor token_embd\.weight in .* I32"
    ) as caught:
        GgufFile(path)
    assert "Q8_0" in caught.value.hint


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16", "IQ4_NL", "MXFP4"])
def test_number_formats_become_floats(kind, tmp_path):
    """Those that the gguf package can also write with blocks of 32; it reads K-quants by the same call."""
    weights = tiny.random_weights("qwen2")
    try:
        path = tiny.write_gguf(tmp_path / "m.gguf", "qwen2", weights, kind)
    except NotImplementedError:
        pytest.skip(f"this gguf package does not write {kind}")
    name = "model.layers.0.mlp.up_proj.weight"
    values = GgufFile(path).floats(name)
    assert np.corrcoef(values.ravel(), weights[name].ravel())[0, 1] > 0.98


def test_unknown_family_and_rope_scaling_are_named(tmp_path):
    path = tiny.write_gguf(tmp_path / "a.gguf", "gpt2", tiny.random_weights("gpt2"))
    with pytest.raises(UnsupportedModelError, match="'gpt2'.*llama, qwen2, qwen3"):
        GgufFile(path)
    extra = {"llama.rope.scaling.type": "yarn"}
    path = tiny.write_gguf(tmp_path / "b.gguf", "llama", tiny.random_weights("llama"), extra=extra)
    with pytest.raises(UnsupportedModelError, match="yarn"):
        GgufFile(path)


@pytest.fixture
def changed(tmp_path, monkeypatch):
    """Write a model file with some fields changed, added, or left out where the value is None."""

    def write(changes, family="llama", weights=None):
        add, written = GGUFWriter.add_key_value, set()

        def add_changed(writer, key, value, kind, *rest, **options):
            written.add(key)
            if key not in changes:
                add(writer, key, value, kind, *rest, **options)
            elif changes[key] is not None:
                add(writer, key, changes[key], GGUFValueType.get_type(changes[key]))

        def add_rest(writer):
            for key in changes.keys() - written:
                writer.add_key_value(key, changes[key], GGUFValueType.get_type(changes[key]))
            write_header(writer)

        write_header = GGUFWriter.write_header_to_file
        with monkeypatch.context() as patch:
            patch.setattr(GGUFWriter, "add_key_value", add_changed)
            patch.setattr(GGUFWriter, "write_header_to_file", add_rest)
            weights = tiny.random_weights(family) if weights is None else weights
            return tiny.write_gguf(tmp_path / "m.gguf", family, weights, "Q8_0")

    return write


FIELDS = (
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.rope.freq_base",
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.chat_template",
)


HARMLESS = {
    "llama.context_length": (2_000_000_000,),
    "llama.attention.layer_norm_rms_epsilon": (1.5, 2_000_000_000),
    "llama.rope.freq_base": (1.5, 2_000_000_000),
    "tokenizer.ggml.bos_token_id": (0,),
    "tokenizer.ggml.eos_token_id": (0,),
    "tokenizer.chat_template": ("x",),
}


@pytest.mark.parametrize("value", [0, -1, 2_000_000_000, 1.5, float("nan"), "x", ["x"], [2, 2], True])
@pytest.mark.parametrize("field", FIELDS)
def test_one_damaged_field_is_an_error_that_names_the_file(field, value, changed, tmp_path):
    path = changed({field: value})
    if value in HARMLESS.get(field, ()):
        import_model(GgufFile(path), tmp_path, dtype="q8")
    else:
        with pytest.raises(ModelFileError, match=r"m\.gguf"):
            import_model(GgufFile(path), tmp_path, dtype="q8")


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("llama.block_count", 20_000_000, "block_count is 20000000, but the file holds 2 layers"),
        ("llama.block_count", 1, "block_count is 1, but the file holds 2 layers"),
        ("llama.context_length", 0, "context_length is 0"),
        ("llama.attention.head_count", 0, "head_count is 0"),
        ("llama.attention.head_count_kv", [2, 2], r"head_count_kv is \[2, 2\]"),
        ("llama.attention.layer_norm_rms_epsilon", None, "layer_norm_rms_epsilon is missing"),
        ("llama.rope.freq_base", -1.0, "freq_base is -1.0"),
        ("tokenizer.ggml.bos_token_id", 999_999, "bos_token_id is 999999"),
        ("tokenizer.ggml.eos_token_id", 999_999, "eos_token_id is 999999"),
        ("tokenizer.ggml.merges", "x", r"incomplete: tokenizer\.ggml\.merges"),
        ("tokenizer.chat_template", "{% if %}", "chat template is not valid"),
        ("tokenizer.chat_template", [1, 2], "chat_template must be text"),
    ],
)
def test_damaged_field_is_named_and_nothing_is_kept(field, value, match, changed):
    path = changed({field: value})
    with pytest.raises(ModelFileError, match=rf"m\.gguf.*{match}"):
        loading.load(path)
    assert store.entries() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rope.dimension_count", 16),
        ("rope.scale_linear", 2.0),
        ("rope.scaling.factor", 4.0),
        ("rope.scaling.type", "linear"),
        ("attention.sliding_window", 1024),
        ("attention.value_length", 16),
        ("attention.scale", 0.5),
        ("attention.causal", False),
        ("attention.clamp_kqv", 8.0),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("expert_count", 8),
        ("logit_scale", 0.25),
        ("use_parallel_residual", True),
    ],
)
def test_fields_that_change_the_arithmetic_are_refused_by_name(field, value, changed):
    with pytest.raises(UnsupportedModelError, match=field):
        GgufFile(changed({f"llama.{field}": value}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rope.dimension_count", tiny.HEAD_DIM),
        ("rope.scaling.type", "none"),
        ("attention.sliding_window", tiny.CONTEXT),
        ("attention.sliding_window", 0),
        ("attention.scale", tiny.HEAD_DIM**-0.5),
        ("expert_count", 0),
        ("logit_scale", 1.0),
    ],
)
def test_the_same_fields_with_their_usual_values_are_fine(field, value, changed):
    assert GgufFile(changed({f"llama.{field}": value})).architecture.layers == tiny.LAYERS


@pytest.mark.parametrize(
    ("family", "name", "shape", "error", "match"),
    [
        ("llama", "self_attn.o_proj.bias", 64, UnsupportedModelError, r"o_proj\.bias"),
        ("llama", "mlp.up_proj.bias", 96, UnsupportedModelError, r"up_proj\.bias"),
        ("llama", "self_attn.q_norm.weight", 32, UnsupportedModelError, r"q_norm\.weight"),
        ("llama", "self_attn.q_proj.bias", 128, ModelFileError, r"lacks the tensor .*k_proj\.bias"),
        ("qwen2", "self_attn.q_proj.bias", 64, ModelFileError, r"q_proj\.bias has shape \(64,\)"),
        ("qwen2", "self_attn.v_proj.bias", None, ModelFileError, r"lacks the tensor .*v_proj\.bias"),
        ("qwen3", "self_attn.q_norm.weight", None, ModelFileError, r"lacks the tensor .*q_norm\.weight"),
    ],
)
def test_tensors_that_nobody_reads_and_missing_ones_are_named(family, name, shape, error, match, changed):
    weights = tiny.random_weights(family)
    name = f"model.layers.1.{name}"
    if shape is None:
        del weights[name]
    else:
        weights[name] = np.ones(shape, np.float32)
    with pytest.raises(error, match=match):
        GgufFile(changed({}, family, weights))


def test_vocabulary_larger_than_the_embedding_is_refused(changed, tmp_path):
    tokens = [*tiny.VOCABULARY, "zz"]
    path = changed({"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [1] * len(tokens)})
    with pytest.raises(ModelFileError, match=r"m\.gguf.*token id 261.*261 rows"):
        import_model(GgufFile(path), tmp_path, dtype="q8")


def test_weights_that_are_not_finite_are_refused(tmp_path):
    weights = tiny.random_weights("llama")
    weights["model.layers.0.mlp.up_proj.weight"][5, 5] = np.nan
    file = GgufFile(tiny.write_gguf(tmp_path / "m.gguf", "llama", weights))
    with pytest.raises(ModelFileError, match="not finite"):
        file.floats("model.layers.0.mlp.up_proj.weight")


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ([0, 2], "head_count_kv is .* a list of 3 whole numbers"),
        ([0, 0, 0], "not all of them 0"),
        ([0, -1, 2], "head_count_kv is"),
        ([0, "2", 2], "head_count_kv is"),
        ([1, 0, 2], "head_count_kv = .* cannot compute"),
        (0, "head_count_kv is 0"),
    ],
)
def test_key_heads_of_each_layer_are_checked(value, match):
    fields = Fields({"lfm2.attention.head_count_kv": value}, Path("m.gguf"), "lfm2.")
    with pytest.raises(ModelFileError, match=match):
        _kv_heads(fields, "lfm2", 4, 3)


@pytest.mark.parametrize("pattern", [0, -1, "6", [True], [True, False, "x"]])
def test_pattern_of_windows_is_checked(pattern):
    fields = Fields({"gemma3.attention.sliding_window_pattern": pattern}, Path("m.gguf"), "gemma3.")
    with pytest.raises(ModelFileError, match="sliding_window_pattern"):
        _layer_kinds(fields, "gemma3", [1, 1, 1])


def test_pattern_of_windows_is_a_number_or_a_list():
    def kinds(value):
        fields = Fields({"gemma3.attention.sliding_window_pattern": value}, Path("m.gguf"), "gemma3.")
        return [kind.partition("_")[0] for kind in _layer_kinds(fields, "gemma3", [1] * 6)]

    assert kinds(None) == ["sliding"] * 5 + ["full"]
    assert kinds(2) == ["sliding", "full"] * 3
    assert kinds([True, False, False, True, True, True]) == ["sliding", "full", "full"] + ["sliding"] * 3
