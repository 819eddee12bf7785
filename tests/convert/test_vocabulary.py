import json

import pytest

from tests import tiny_models as tiny
from tinykit.convert.gguf import GgufFile
from tinykit.convert.vocabulary import build_tokenizer, write_tokenizer
from tinykit.errors import ModelFileError, UnsupportedModelError


@pytest.fixture
def metadata(tmp_path):
    return GgufFile(tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.random_weights("llama"))).metadata


def test_merges_are_applied_in_order(metadata):
    tokenizer = build_tokenizer(metadata)
    assert tokenizer.encode("the").tokens == ["the"]
    assert tokenizer.encode("tha th").tokens == ["th", "a", "Ġ", "th"]


def test_control_tokens_are_special(metadata):
    tokenizer = build_tokenizer(metadata)
    assert tokenizer.encode("a<|im_end|>").ids == [tiny.VOCABULARY.index("a"), 2]


def test_write_tokenizer_keeps_template_and_tokens(metadata, tmp_path):
    write_tokenizer(metadata, tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert config["chat_template"] == tiny.TEMPLATE
    assert (config["bos_token"], config["eos_token"], config["pad_token"]) == (
        "<|endoftext|>",
        "<|im_end|>",
        None,
    )


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"tokenizer.ggml.model": "llama"}, UnsupportedModelError, "vocabulary 'llama'"),
        ({"tokenizer.ggml.pre": "klingon"}, UnsupportedModelError, "pre-tokenizer 'klingon'"),
        ({"tokenizer.ggml.tokens": None}, ModelFileError, "incomplete"),
        ({"tokenizer.ggml.token_type": [1]}, ModelFileError, "incomplete"),
        ({"tokenizer.ggml.merges": ["x yy"]}, ModelFileError, "merges do not fit"),
    ],
    ids=["sentencepiece", "unknown_split", "no_tokens", "types_too_short", "merge_of_unknown_tokens"],
)
def test_what_cannot_be_read_is_named(change, error, match, metadata):
    with pytest.raises(error, match=match):
        build_tokenizer({**metadata, **change})
