import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests import tiny_models as tiny
from tinykit import TinySession, store
from tinykit.backends.onnx import OnnxBackend
from tinykit.convert.gguf import GgufFile
from tinykit.convert.huggingface import HuggingFaceFolder
from tinykit.convert.importer import import_model
from tinykit.errors import ModelFileError, UnsupportedModelError

IDS = [1, 40, 41, 42, 200, 7]
FIXTURES = Path(__file__).parent.parent / "fixtures"


def write_folder(folder, family, weights, shards=1, **changes):
    folder.mkdir()
    config = {
        "model_type": family,
        "num_hidden_layers": tiny.LAYERS,
        "hidden_size": tiny.HIDDEN,
        "intermediate_size": tiny.INTERMEDIATE,
        "num_attention_heads": tiny.HEADS,
        "num_key_value_heads": tiny.KV_HEADS,
        "head_dim": tiny.HEAD_DIM,
        "vocab_size": len(tiny.VOCABULARY),
        "max_position_embeddings": tiny.CONTEXT,
        "rms_norm_eps": tiny.EPS,
        "rope_parameters": {"rope_type": "default", "rope_theta": tiny.THETA},
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    names = sorted(weights)
    if shards == 1:
        save_file(weights, folder / "model.safetensors")
    else:
        index = {}
        for shard in range(shards):
            part = {name: weights[name] for name in names[shard::shards]}
            save_file(part, folder / f"part{shard}.safetensors")
            index |= dict.fromkeys(part, f"part{shard}.safetensors")
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": index}), encoding="utf-8"
        )
    gguf = GgufFile(tiny.write_gguf(folder.with_suffix(".gguf"), "llama", tiny.random_weights("llama")))
    gguf.write_tokenizer(folder)
    return folder


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_folder_computes_what_the_textbook_says(family, shards, tmp_path):
    weights = tiny.random_weights(family)
    source = HuggingFaceFolder(write_folder(tmp_path / "model", family, weights, shards))
    out = tmp_path / "out"
    out.mkdir()
    graph = import_model(source, out, dtype="fp32")
    backend = OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1)
    logits = backend.forward(IDS, backend.new_state())[0]
    np.testing.assert_allclose(logits, tiny.reference_logits(weights, IDS)[-1], atol=2e-4)


def test_session_takes_a_folder(tmp_path):
    folder = write_folder(tmp_path / "model", "llama", tiny.random_weights("llama"))
    with TinySession(folder, progress=False) as session:
        assert session.spec.key == "model"
        assert session.complete("hello", max_tokens=3).usage.completion_tokens <= 3


def test_end_tokens_come_from_the_generation_config_first(tmp_path):
    folder = write_folder(tmp_path / "model", "llama", tiny.random_weights("llama"))
    assert HuggingFaceFolder(folder).architecture.eos_ids == (2,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [0, 2]}', encoding="utf-8")
    assert HuggingFaceFolder(folder).architecture.eos_ids == (0, 2)


@pytest.mark.parametrize("field", ["rope_theta", "rope_parameters"])
def test_rope_theta_is_found_in_old_and_new_configs(field, tmp_path):
    change = {"rope_theta": 5e5, "rope_parameters": None}
    if field == "rope_parameters":
        change = {"rope_parameters": {"rope_theta": 5e5}}
    folder = write_folder(tmp_path / "model", "llama", tiny.random_weights("llama"), **change)
    assert HuggingFaceFolder(folder).architecture.rope_theta == 5e5


def test_linear_rope_scaling_divides_all_frequencies(tmp_path):
    scaling = {"rope_type": "linear", "factor": 4.0, "rope_theta": tiny.THETA}
    folder = write_folder(tmp_path / "m", "llama", tiny.random_weights("llama"), rope_parameters=scaling)
    assert HuggingFaceFolder(folder).rope_divisors().tolist() == [4.0] * 16


def test_llama3_rope_scaling_stretches_only_long_waves(tmp_path):
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
        "rope_theta": tiny.THETA,
    }
    folder = write_folder(tmp_path / "m", "llama", tiny.random_weights("llama"), rope_parameters=scaling)
    divisors = HuggingFaceFolder(folder).rope_divisors()
    inverse = tiny.THETA ** (-np.arange(0, tiny.HEAD_DIM, 2) / tiny.HEAD_DIM)
    waves = 2 * np.pi / inverse
    np.testing.assert_allclose(divisors[waves < 256 / 4], 1)
    np.testing.assert_allclose(divisors[waves > 256], 8)
    between = divisors[(waves > 256 / 4) & (waves < 256)]
    assert len(between)
    assert np.all((between > 1) & (between < 8))


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"model_type": "mamba"}, UnsupportedModelError, "'mamba'.*llama, qwen2, qwen3"),
        ({"hidden_size": 128}, ModelFileError, "configuration says"),
        ({"num_hidden_layers": 3}, ModelFileError, "num_hidden_layers is 3, but the file holds 2 layers"),
        ({"num_hidden_layers": 20_000_000}, ModelFileError, "num_hidden_layers is 20000000"),
        ({"vocab_size": None}, ModelFileError, "vocab_size is missing"),
        ({"num_attention_heads": 0}, ModelFileError, "num_attention_heads is 0"),
        ({"num_key_value_heads": [2]}, ModelFileError, r"num_key_value_heads is \[2\]"),
        ({"max_position_embeddings": 0}, ModelFileError, "max_position_embeddings is 0"),
        ({"rms_norm_eps": "small"}, ModelFileError, "rms_norm_eps is 'small'"),
        ({"eos_token_id": ["</s>"]}, ModelFileError, r"eos_token_id is \['</s>'\]"),
        ({"bos_token_id": 999}, ModelFileError, "bos_token_id is 999"),
        ({"rope_parameters": [1]}, ModelFileError, r"rope_parameters is \[1\]"),
        ({"rope_parameters": {"rope_type": "linear"}}, ModelFileError, r"rope_parameters\.factor is missing"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8}}, ModelFileError, "original_max_position"),
        ({"rope_parameters": None, "rope_theta": 0}, ModelFileError, "rope_theta is 0"),
        ({"tie_word_embeddings": False}, ModelFileError, r"lacks the tensor lm_head\.weight"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_named(changes, error, match, tmp_path):
    folder = write_folder(tmp_path / "m", "llama", tiny.random_weights("llama"), **changes)
    with pytest.raises(error, match=match):
        HuggingFaceFolder(folder)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
        (
            {"rope_parameters": {"partial_rotary_factor": 0.5}},
            r"rope_parameters\.partial_rotary_factor = 0.5",
        ),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor = 0.25"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"sliding_window": 1024}, "sliding_window = 1024"),
        ({"sliding_window": 1024, "use_sliding_window": True}, "sliding_window = 1024"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types = "),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config = "),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_fields_that_change_the_arithmetic_are_refused_by_name(changes, match, tmp_path):
    folder = write_folder(tmp_path / "m", "llama", tiny.random_weights("llama"), **changes)
    with pytest.raises(UnsupportedModelError, match=match):
        HuggingFaceFolder(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"partial_rotary_factor": 1.0, "hidden_act": "silu", "mlp_bias": False, "sliding_window": None},
        {"sliding_window": 1024, "use_sliding_window": False},
        {"sliding_window": tiny.CONTEXT, "use_sliding_window": True},
        {"layer_types": ["full_attention"] * 2, "quantization_config": None, "tie_word_embeddings": True},
    ],
    ids=["usual", "window_off", "window_of_the_whole_context", "all_layers_full"],
)
def test_the_same_fields_with_their_usual_values_are_fine(changes, tmp_path):
    folder = write_folder(tmp_path / "m", "llama", tiny.random_weights("llama"), **changes)
    assert HuggingFaceFolder(folder).architecture.layers == tiny.LAYERS


@pytest.mark.parametrize(
    ("family", "name", "size", "error", "match"),
    [
        ("llama", "self_attn.o_proj.bias", 64, UnsupportedModelError, r"o_proj\.bias"),
        ("llama", "mlp.down_proj.bias", 64, UnsupportedModelError, r"down_proj\.bias"),
        ("llama", "self_attn.sinks", 4, UnsupportedModelError, "sinks"),
        ("llama", "self_attn.q_proj.bias", 128, ModelFileError, r"lacks the tensor .*k_proj\.bias"),
        ("qwen2", "self_attn.k_proj.bias", 3, ModelFileError, r"k_proj\.bias has shape \(3,\)"),
    ],
)
def test_tensors_that_nobody_reads_are_named(family, name, size, error, match, tmp_path):
    weights = tiny.random_weights(family) | {f"model.layers.1.{name}": np.ones(size, np.float32)}
    with pytest.raises(error, match=match):
        HuggingFaceFolder(write_folder(tmp_path / "m", family, weights))


def test_stored_rotary_frequencies_are_left_alone(tmp_path):
    weights = tiny.random_weights("llama")
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(16, np.float32)
    assert HuggingFaceFolder(write_folder(tmp_path / "m", "llama", weights)).rope_divisors() is None


@pytest.mark.parametrize("weight_map", [[], {}, {"a": 1}, "x"], ids=repr)
def test_damaged_list_of_files_is_named(weight_map, tmp_path):
    folder = write_folder(tmp_path / "m", "llama", tiny.random_weights("llama"), shards=2)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    with pytest.raises(ModelFileError, match=r"index\.json: the field weight_map is"):
        HuggingFaceFolder(folder)


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("tokenizer.json", "{}", r"m cannot be used: tokenizer\.json is not a readable"),
        ("tokenizer_config.json", "{nope", r"tokenizer_config\.json is not valid JSON"),
        ("tokenizer_config.json", "[]", r"tokenizer_config\.json holds no JSON object"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}', "chat template is not valid"),
        (
            "tokenizer_config.json",
            '{"chat_template": [5]}',
            r"tokenizer_config\.json: the field chat_template",
        ),
        ("chat_template.jinja", "{{ x", "chat template is not valid"),
    ],
)
def test_unusable_tokenizer_is_named_and_nothing_is_kept(name, text, match, tmp_path):
    folder = write_folder(tmp_path / "m", "llama", tiny.random_weights("llama"))
    (folder / name).write_text(text, encoding="utf-8")
    with pytest.raises(ModelFileError, match=match):
        TinySession(folder, progress=False)
    assert store.entries() == []


def test_vocabulary_larger_than_the_embedding_is_refused(tmp_path):
    weights = tiny.random_weights("llama")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:-1]
    folder = write_folder(tmp_path / "m", "llama", weights, vocab_size=len(tiny.VOCABULARY) - 1)
    with pytest.raises(ModelFileError, match="token id 260, but its embedding has 260 rows"):
        import_model(HuggingFaceFolder(folder), tmp_path, dtype="q8")


def test_folder_without_weights_or_tokenizer_is_named(tmp_path):
    folder = write_folder(tmp_path / "m", "llama", tiny.random_weights("llama"))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match=r"no tokenizer\.json"):
        HuggingFaceFolder(folder).write_tokenizer(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"no file .*model\.safetensors"):
        HuggingFaceFolder(folder)


def as_folder(family, folder, **changes):
    """The tiny model in `tests/fixtures`, and the same as safetensors with what transformers writes."""
    gguf = GgufFile(FIXTURES / "gguf" / f"{family}-Q8_0.gguf")
    arch, is_gemma = gguf.architecture, family == "gemma3"
    weights = {}
    for name in gguf._tensors:
        values = gguf.floats(name)
        if is_gemma and name.endswith("norm.weight"):
            values = values - np.float32(1)
        weights[name] = values[:, None] if ".conv.conv." in name else values
    own = {
        "gemma3": {
            "model_type": "gemma3_text",
            "rms_norm_eps": arch.norm_eps,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": arch.head_dim,
            "sliding_window": arch.window,
            "rope_local_base_freq": arch.local_rope_theta,
        },
        "lfm2": {"norm_eps": arch.norm_eps, "conv_L_cache": arch.conv_width, "conv_bias": False},
    }
    fields = arch.config() | own[family] | {"layer_types": list(arch.kinds), "hidden_act": None} | changes
    folder.mkdir()
    save_file(
        {name: np.ascontiguousarray(values) for name, values in weights.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    gguf.write_tokenizer(folder)
    return gguf


def logits_of(source, folder):
    folder.mkdir()
    graph = import_model(source, folder, dtype="fp32")
    backend = OnnxBackend(graph, dtype="fp32", context_length=64, threads=1)
    return backend.forward(IDS * 5, backend.new_state())


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("gemma3", {}),
        (
            "gemma3",
            {"rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": {}}},
        ),
        ("lfm2", {}),
        ("lfm2", {"intermediate_size": 1}),
    ],
    ids=["gemma3", "gemma3_rope_by_kind", "lfm2", "lfm2_size_to_be_rounded"],
)
def test_folder_of_other_families_is_the_gguf_file(family, changes, tmp_path):
    gguf = as_folder(family, tmp_path / "model", **changes)
    source = HuggingFaceFolder(tmp_path / "model")
    assert dataclasses.replace(source.architecture, attention_scale=None, eos_ids=()) == dataclasses.replace(
        gguf.architecture, eos_ids=()
    )
    np.testing.assert_allclose(
        logits_of(source, tmp_path / "a"), logits_of(gguf, tmp_path / "b"), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize(
    ("family", "changes", "match"),
    [
        ("gemma3", {"layer_types": ["full_attention"]}, "layer_types is .* it must be a list of"),
        ("gemma3", {"layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
        ("gemma3", {"sliding_window": None}, "sliding_window is missing"),
        ("gemma3", {"hidden_activation": "silu"}, "hidden_activation = 'silu'"),
        ("gemma3", {"final_logit_softcapping": 30.0}, r"final_logit_softcapping = 30\.0"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        (
            "gemma3",
            {"rope_parameters": {"full_attention": {}, "sliding_attention": {"rope_type": "linear"}}},
            r"rope_parameters\.sliding_attention\.rope_type = 'linear'",
        ),
        ("lfm2", {"layer_types": None}, "full_attn_idxs is missing"),
        ("lfm2", {"conv_L_cache": "3"}, "conv_L_cache is '3'"),
    ],
)
def test_fields_of_other_families_are_checked(family, changes, match, tmp_path):
    as_folder(family, tmp_path / "model", **changes)
    with pytest.raises(ModelFileError, match=match):
        HuggingFaceFolder(tmp_path / "model")


@pytest.mark.parametrize("family", ["gemma3", "lfm2"])
def test_layer_of_another_kind_is_not_computed_as_one_that_is_known(family, tmp_path):
    gguf = as_folder(family, tmp_path / "known")
    kinds = ["chunked_attention", *gguf.architecture.kinds[1:]]
    as_folder(family, tmp_path / "model", layer_types=kinds)
    with pytest.raises(UnsupportedModelError, match="layer_types = .*chunked"):
        HuggingFaceFolder(tmp_path / "model")
