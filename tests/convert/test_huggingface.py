import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests import tiny_models as tiny
from tinykit import TinySession
from tinykit.backends.onnx import OnnxBackend
from tinykit.convert.gguf import GgufFile
from tinykit.convert.huggingface import HuggingFaceFolder
from tinykit.convert.importer import import_model
from tinykit.errors import ModelFileError, UnsupportedModelError

IDS = [1, 40, 41, 42, 200, 7]


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
    logits = backend.forward(IDS, backend.new_state())
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
        ({"num_hidden_layers": 3}, ModelFileError, r"lacks the tensor model\.layers\.2"),
        ({"vocab_size": None}, ModelFileError, "lacks or garbles"),
    ],
    ids=["family", "shape", "layers", "field"],
)
def test_what_does_not_fit_is_named(changes, error, match, tmp_path):
    folder = write_folder(tmp_path / "m", "llama", tiny.random_weights("llama"), **changes)
    with pytest.raises(error, match=match):
        HuggingFaceFolder(folder)


def test_unknown_rope_scaling_is_named(tmp_path):
    folder = write_folder(
        tmp_path / "m", "llama", tiny.random_weights("llama"), rope_parameters={"rope_type": "yarn"}
    )
    with pytest.raises(UnsupportedModelError, match="yarn"):
        HuggingFaceFolder(folder).rope_divisors()


def test_folder_without_weights_or_tokenizer_is_named(tmp_path):
    folder = write_folder(tmp_path / "m", "llama", tiny.random_weights("llama"))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match=r"no tokenizer\.json"):
        HuggingFaceFolder(folder).write_tokenizer(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"no file .*model\.safetensors"):
        HuggingFaceFolder(folder)
