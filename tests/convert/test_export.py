import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests import tiny_models as tiny
from tests.convert.test_adapter import random_pairs, write_adapter
from tinykit.convert.adapter import Adapter
from tinykit.convert.export import export_bytes, export_model
from tinykit.convert.gguf import GgufFile
from tinykit.convert.huggingface import HuggingFaceFolder
from tinykit.errors import UnsupportedModelError
from tinykit.tokenizer import Tokenizer


def gguf(tmp_path, family, **options):
    tied = options.pop("tied", True)
    weights = tiny.random_weights(family, tied=tied)
    return weights, GgufFile(tiny.write_gguf(tmp_path / f"{family}.gguf", family, weights, **options))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_exported_weights_are_the_files_own(family, tied, tmp_path):
    weights, source = gguf(tmp_path, family, tied=tied)
    done = []
    folder = tmp_path / "out"
    folder.mkdir()
    export_model(source, folder, advance=done.append)
    found = load_file(folder / "model.safetensors")
    assert found.keys() == weights.keys()
    for name, values in weights.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    assert sum(done) == tiny.LAYERS
    assert (folder / "model.safetensors").stat().st_size < export_bytes(source, "fp32")
    assert Tokenizer.from_folder(folder).encode("the")


def test_what_is_exported_can_be_read_again(tmp_path):
    _, source = gguf(tmp_path, "qwen3")
    folder = tmp_path / "out"
    folder.mkdir()
    again = HuggingFaceFolder(export_model(source, folder))
    assert again.architecture == source.architecture
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (config["rope_theta"], config["architectures"]) == (tiny.THETA, ["Qwen3ForCausalLM"])


def test_half_floats_take_half_the_room(tmp_path):
    weights, source = gguf(tmp_path, "llama")
    folder = tmp_path / "out"
    folder.mkdir()
    export_model(source, folder, dtype="fp16")
    found = load_file(folder / "model.safetensors")
    assert {array.dtype for array in found.values()} == {np.dtype(np.float16)}
    np.testing.assert_allclose(found["model.norm.weight"], weights["model.norm.weight"], rtol=1e-3)
    assert export_bytes(source, "fp32") > export_bytes(source, "fp16")


def test_family_without_a_common_configuration_is_refused(tmp_path, monkeypatch):
    _, source = gguf(tmp_path, "llama")
    monkeypatch.setattr(source, "rope_divisors", lambda: np.ones(16, np.float32))
    with pytest.raises(UnsupportedModelError, match="rotary positions with scaling of their own"):
        export_model(source, tmp_path)


def test_an_adapter_is_merged(tmp_path):
    weights, source = gguf(tmp_path, "llama")
    pairs = random_pairs(weights)
    adapter = Adapter(write_adapter(tmp_path / "adapter", pairs))
    folder = tmp_path / "out"
    folder.mkdir()
    export_model(source, folder, adapter=adapter)
    found = load_file(folder / "model.safetensors")
    for name in weights:
        delta = adapter.delta(name) if name in adapter.changes else 0
        np.testing.assert_allclose(found[name], weights[name] + delta, rtol=1e-6, err_msg=name)
    assert adapter.changes
