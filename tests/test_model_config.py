import json

import pytest

from tinykit.errors import ModelFileError
from tinykit.model_config import read_config


def write(folder, **files):
    for name, value in files.items():
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    return read_config({path.name: path for path in folder.iterdir()})


def test_hub_layout(tmp_path):
    config = write(
        tmp_path,
        config={
            "model_type": "llama",
            "max_position_embeddings": 4096,
            "eos_token_id": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 384,
        },
        generation_config={"eos_token_id": [7, 2]},
    )
    assert (config.family, config.context_length, config.vocab_size) == ("llama", 4096, 384)
    assert config.eos_ids == (7, 2)
    assert config.sizes["kv_cache_dim"] == 16
    assert config.windows() == config.presents() == {}


def test_genai_layout(tmp_path):
    decoder = {
        "head_size": 32,
        "num_key_value_heads": 1,
        "num_hidden_layers": 2,
        "conv_cache_size": 2,
        "inputs": {"input_ids": "input_ids", "past_key_names": "kv.%d.key", "past_conv_names": "c.%d"},
        "outputs": {"logits": "logits", "present_key_names": "out.%d.key", "present_conv_names": "c_out.%d"},
        "sliding_window": {"window_size": 16, "layers": [1]},
    }
    model = {"type": "gemma3_text", "context_length": 512, "eos_token_id": [1, 106], "decoder": decoder}
    config = write(tmp_path, genai_config={"model": model})
    assert (config.family, config.context_length, config.eos_ids) == ("gemma3_text", 512, (1, 106))
    assert config.sizes == {
        "kv_cache_dim": 32, "head_size": 32, "head_dim": 32, "num_key_value_heads": 1, "conv_cache_size": 2
    }  # fmt: skip
    assert config.presents() == {
        "kv.0.key": "out.0.key", "kv.1.key": "out.1.key", "c.0": "c_out.0", "c.1": "c_out.1"
    }  # fmt: skip
    assert config.windows() == {"kv.1.key": 16}


def test_shorter_context_counts(tmp_path):
    config = write(
        tmp_path,
        config={"max_position_embeddings": 40960},
        genai_config={"model": {"context_length": 4096}},
    )
    assert config.context_length == 4096


def test_text_part_of_a_multimodal_configuration_counts(tmp_path):
    nested = {"model_type": "gemma3_text", "max_position_embeddings": 100}
    assert write(tmp_path, config={"model_type": "gemma3", "text_config": nested}).family == "gemma3_text"


def test_no_files_say_nothing():
    config = read_config({})
    assert (config.family, config.context_length, config.eos_ids, config.layers) == ("", None, (), 0)


@pytest.mark.parametrize(
    ("text", "match"),
    [("{", "cannot be read"), ("[1]", "holds no JSON object"), ('{"max_position_embeddings": "x"}', "kind")],
    ids=["cut", "list", "type"],
)
def test_damaged_files_are_named(tmp_path, text, match):
    with pytest.raises(ModelFileError, match=match):
        write(tmp_path, config=text)
