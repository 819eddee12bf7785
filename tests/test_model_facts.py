"""What `tinykit models info` finds in files, for every layout."""

import json
import shutil
from pathlib import Path

import pytest

from tests import tiny_models as tiny
from tests.convert.test_huggingface import write_folder
from tinykit import registry
from tinykit.model_facts import local_facts

FIXTURES = Path(__file__).parent / "fixtures"


def facts(path):
    return local_facts(registry.get_model(path))


def test_folder_of_transformers_js():
    found = facts(FIXTURES / "hub" / "lfm2")
    graphs = FIXTURES / "hub" / "lfm2" / "onnx"
    assert found["layout"] == "transformers.js"
    assert (found["family"], found["context_length"]) == ("lfm2", 512)
    assert found["dtypes"]["q4"] == sum(f.stat().st_size for f in graphs.glob("model_q4.onnx*"))
    assert list(found["dtypes"])[:2] == ["q4", "q8"]
    assert "past_conv.N" in found["states"] and "past_key_values.N.key" in found["states"]
    assert found["tokenizer"].startswith("tokenizer.json, ") and found["chat_template"] != "none"
    assert "problem" not in found


@pytest.mark.parametrize(
    ("folder", "layout", "family", "state"),
    [
        ("genai/lfm2-int4", "onnxruntime-genai", "lfm2", "past.N.conv"),
        ("genai/llama-int4", "onnxruntime-genai", "llama", "past_key_values.N.value"),
        ("genai/qwen3-int8", "onnxruntime-genai", "qwen3", "past_key_values.N.key"),
        ("hub/falcon_h1", "transformers.js", "falcon_h1", "past_ssm.N"),
        ("hub/gpt2", "transformers.js", "gpt2", "past_key_values.N.key"),
    ],
)
def test_other_folders(folder, layout, family, state):
    found = facts(FIXTURES / folder)
    assert (found["layout"], found["family"]) == (layout, family)
    assert state in found["states"]
    assert found["dtypes"] and all(size > 0 for size in found["dtypes"].values())


def test_gguf_file():
    found = facts(FIXTURES / "gguf" / "gemma3-Q8_0.gguf")
    assert (found["layout"], found["family"], found["weights"]) == ("gguf", "gemma3", "Q8_0")
    assert set(found["dtypes"]) == {"q8", "fp32"} and found["dtypes"]["fp32"] > found["dtypes"]["q8"]
    assert "sliding window" in found["states"]
    assert " tokens" in found["tokenizer"] and found["chat_template"] in ("in the file", "none")


def test_folder_of_safetensors(tmp_path):
    folder = write_folder(tmp_path / "m", "qwen2", tiny.random_weights("qwen2"))
    found = facts(folder)
    assert (found["layout"], found["family"]) == ("safetensors", "qwen2")
    assert set(found["dtypes"]) == {"q8", "w8a8", "fp32"}
    assert found["states"] == "keys and values of 2 layers"
    assert found["context_length"] > 0


def test_damage_is_a_problem_and_no_error(tmp_path):
    path = tmp_path / "cut.gguf"
    path.write_bytes((FIXTURES / "gguf" / "lfm2-Q8_0.gguf").read_bytes()[:5000])
    assert "cut.gguf" in facts(path)["problem"]
    folder = shutil.copytree(FIXTURES / "hub" / "llama", tmp_path / "m")
    for graph in (folder / "onnx").glob("*.onnx"):
        graph.write_bytes(b"x")
    assert "is not a readable ONNX graph" in facts(folder)["problem"]
    (folder / "tokenizer.json").write_text("{")
    assert facts(folder)["tokenizer"] == "damaged"
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text("{}")
    found = facts(folder)
    assert found["tokenizer"] == "missing"
    assert "AutoTokenizer" in found["problem"] or "has no tokenizer.json" in found["problem"]


def test_template_is_found_where_it_is(tmp_path):
    folder = shutil.copytree(FIXTURES / "hub" / "llama", tmp_path / "m")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert facts(folder)["chat_template"] == "none"
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert facts(folder)["chat_template"] == "chat_template.jinja"


def test_model_that_is_not_here_has_none():
    assert local_facts(registry.MODELS["lfm2.5-230m"]) == {}
