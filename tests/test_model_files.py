import pytest

from tinykit.errors import OptionError, UnsupportedModelError
from tinykit.model_files import SUFFIXES, choose_files, choose_safetensors, onnx_choices

EXTRA = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
)  # fmt: skip
IGNORED = (
    "README.md",
    ".gitattributes",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "pytorch_model.bin",
)
SMOLLM2 = (
    *EXTRA, *IGNORED, "model.safetensors",
    "onnx/model.onnx", "onnx/model_bnb4.onnx", "onnx/model_fp16.onnx", "onnx/model_int8.onnx", "onnx/model_q4.onnx",
    "onnx/model_q4f16.onnx", "onnx/model_quantized.onnx", "onnx/model_uint8.onnx",
)  # fmt: skip
LIQUID = (
    *EXTRA, "genai_config.json",
    *(f"onnx/model{suffix}.onnx{data}" for suffix in ("", "_fp16", "_q4", "_q4f32", "_q8") for data in ("", "_data")),
    "onnx/model.onnx_data_1",
)  # fmt: skip
GENAI = ("genai_config.json", "model.onnx", "model.onnx.data", "tokenizer.json", "chat_template.jinja")
FOLDER = "onnxruntime/cpu_and_mobile/cpu-int4-kld-block-128/"
MIXED = (*EXTRA, "onnx/model_q4.onnx", *(FOLDER + name for name in (*GENAI, "config.json")))
ONLY_FOLDER = ("README.md", "config.json", *(FOLDER + name for name in GENAI))
MERGED = (
    *EXTRA,
    "onnx/decoder_model_merged.onnx",
    "onnx/decoder_model_merged_quantized.onnx",
    "onnx/decoder_model.onnx",
)
ROOT = ("config.json", "tokenizer.json", "model.onnx", "model.onnx.data")
VISION = (
    *EXTRA,
    "onnx/embed_tokens_q4.onnx",
    "onnx/vision_encoder.onnx",
    "onnx/decoder_model_merged_q4.onnx",
)


@pytest.mark.parametrize(
    ("names", "dtype", "chosen", "graph", "data"),
    [
        (SMOLLM2, "auto", "q4", "onnx/model_q4.onnx", ()),
        (SMOLLM2, "fp32", "fp32", "onnx/model.onnx", ()),
        (SMOLLM2, "q8", "q8", "onnx/model_quantized.onnx", ()),
        (SMOLLM2, "uint8", "uint8", "onnx/model_uint8.onnx", ()),
        (SMOLLM2, "bnb4", "bnb4", "onnx/model_bnb4.onnx", ()),
        (LIQUID, "auto", "q4", "onnx/model_q4.onnx", ("onnx/model_q4.onnx_data",)),
        (LIQUID, "q8", "q8", "onnx/model_q8.onnx", ("onnx/model_q8.onnx_data",)),
        (LIQUID, "fp32", "fp32", "onnx/model.onnx", ("onnx/model.onnx_data", "onnx/model.onnx_data_1")),
        (tuple(n for n in LIQUID if "_q4." not in n), "q4", "q4f32", "onnx/model_q4f32.onnx", ("onnx/model_q4f32.onnx_data",)),
        (tuple(n for n in SMOLLM2 if "_quant" not in n), "q8", "int8", "onnx/model_int8.onnx", ()),
        (GENAI, "auto", "auto", "model.onnx", ("model.onnx.data",)),
        (MIXED, "auto", "q4", "onnx/model_q4.onnx", ()),
        (ONLY_FOLDER, "q4", "q4", FOLDER + "model.onnx", (FOLDER + "model.onnx.data",)),
        (MERGED, "auto", "q8", "onnx/decoder_model_merged_quantized.onnx", ()),
        (ROOT, "auto", "fp32", "model.onnx", ("model.onnx.data",)),
    ],
    ids=[
        "auto", "fp32", "q8", "uint8", "bnb4", "liquid auto", "liquid q8", "chunks", "q4f32 answers q4", "int8 answers q8",
        "genai", "onnx before genai", "genai folder", "merged", "root",
    ],
)  # fmt: skip
def test_files_of_a_dtype(names, dtype, chosen, graph, data):
    choice = choose_files(names, dtype)
    assert (choice.dtype, choice.graph, choice.data) == (chosen, graph, data)
    assert choice.names[-1] == graph
    assert not {name.rpartition("/")[2] for name in choice.names} & set(IGNORED)


def test_configuration_comes_from_beside_a_genai_graph_and_else_from_the_root():
    assert choose_files(ONLY_FOLDER, "auto").extra == (
        "config.json", FOLDER + "genai_config.json", FOLDER + "tokenizer.json", FOLDER + "chat_template.jinja",
    )  # fmt: skip
    assert choose_files(SMOLLM2, "auto").extra == EXTRA
    assert "genai_config.json" in choose_files(LIQUID, "auto").extra


def test_old_tokenizer_files_only_without_a_new_one():
    names = ("config.json", "vocab.json", "merges.txt", "onnx/model.onnx")
    assert choose_files(names, "auto").extra == ("config.json", "vocab.json", "merges.txt")


@pytest.mark.parametrize("dtype", ["q8", "q2", "int8"])
def test_missing_dtype_says_what_there_is(dtype):
    names = ("config.json", "onnx/model_q4.onnx", "onnx/model_fp16.onnx")
    with pytest.raises(OptionError, match=f"no dtype '{dtype}' of this model; there are q4, fp16") as caught:
        choose_files(names, dtype)
    assert "dtype='q4'" in caught.value.hint


def test_precision_that_no_name_tells_cannot_be_asked_for():
    with pytest.raises(OptionError, match="does not tell its precision"):
        choose_files(GENAI, "q4")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (VISION, "images or sound"),
        (("config.json", "model.safetensors"), r"no ONNX graph .* 2 files"),
        ((), "no files at all"),
        (("onnx/encoder_model.onnx", "onnx/model_strange.onnx"), "no ONNX graph"),
    ],
    ids=["vision", "safetensors", "empty", "other graphs"],
)
def test_no_graph_of_a_text_model(names, message):
    with pytest.raises(UnsupportedModelError, match=message):
        choose_files(names, "auto")


def test_every_suffix_is_tried_for_auto():
    names = [f"onnx/model{suffix}.onnx" for suffix in SUFFIXES]
    assert {choice.graph for choice in onnx_choices(names)} == set(names)
    assert [choice.dtype for choice in onnx_choices(names)][:4] == ["q4", "q8", "q8", "int8"]


def test_safetensors():
    shards = (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    )
    choice = choose_safetensors((*EXTRA, *IGNORED, *shards, "original/consolidated.safetensors"))
    assert (choice.graph, choice.data, choice.extra) == ("", shards, EXTRA)
    choice = choose_safetensors((*EXTRA, *IGNORED, "model.safetensors"), with_old_tokenizers=True)
    assert choice.data == ("model.safetensors",)
    assert set(choice.extra) == {*EXTRA, "special_tokens_map.json", "vocab.json", "merges.txt"}
    with pytest.raises(UnsupportedModelError, match="no weights"):
        choose_safetensors(("pytorch_model.bin", "config.json"))
