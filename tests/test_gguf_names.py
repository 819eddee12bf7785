import pytest

from tinykit.convert.families import FAMILIES as IMPORTED
from tinykit.errors import OptionError, UnsupportedModelError
from tinykit.gguf_names import FAMILIES, choose_gguf, gguf_choices, is_number_format, number_format

REPO = [
    ".gitattributes",
    "README.md",
    "Some-135M-Instruct-Q4_K_M.gguf",
    "Some-135M-Instruct-Q8_0.gguf",
    "Some-135M-Instruct-Q4_0.gguf",
    "Some-135M-Instruct-f16.gguf",
    "Some-135M-Instruct-IQ3_M.gguf",
    "Some-135M-Instruct.imatrix.gguf",
    "mmproj-Some-f16.gguf",
]
FILE = "Some-135M-Instruct-{}.gguf"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SmolLM2-135M-Instruct-Q4_K_M.gguf", "Q4_K_M"),
        ("qwen2.5-0.5b-instruct-q8_0.gguf", "Q8_0"),
        ("gemma-3-270m-it-UD-Q8_K_XL.gguf", "Q8_K_XL"),
        ("model.BF16.gguf", "BF16"),
        ("m-iq4_nl.gguf", "IQ4_NL"),
        ("BF16/Big-BF16-00001-of-00002.gguf", "BF16"),
        ("Q6_K/weights.gguf", "Q6_K"),
        ("gpt-MXFP4.gguf", "MXFP4"),
        ("Q8_0.gguf", "Q8_0"),
        ("llama2.gguf", ""),
        ("model-q4f16.gguf", ""),
    ],
)
def test_number_format(name, expected):
    assert number_format(name) == expected


@pytest.mark.parametrize(
    ("dtype", "choice", "expected"),
    [
        ("auto", "", "Q8_0"),
        ("q8", "", "Q8_0"),
        ("int8", "", "Q8_0"),
        ("fp32", "", "f16"),
        ("q4", "", "Q4_0"),
        ("q4_k_m", "", "Q4_K_M"),
        ("auto", "Q4_K_M", "Q4_K_M"),
        ("fp32", "q4_k_m", "Q4_K_M"),
        ("auto", FILE.format("IQ3_M"), "IQ3_M"),
        ("auto", "some-135m-instruct-f16", "f16"),
    ],
)
def test_one_file_is_chosen(dtype, choice, expected):
    assert choose_gguf(REPO, dtype, choice).name == FILE.format(expected)


@pytest.mark.parametrize(
    ("gone", "dtype", "expected"),
    [
        (("Q8_0",), "auto", "Q4_K_M"),  # the smallest loss among the small ones
        (("Q8_0",), "q8", "f16"),
        (("Q8_0", "Q4_K_M", "Q4_0", "f16"), "auto", "IQ3_M"),
    ],
)
def test_next_best_file(gone, dtype, expected):
    names = [name for name in REPO if name not in map(FILE.format, gone)]
    assert choose_gguf(names, dtype).name == FILE.format(expected)


@pytest.mark.parametrize(
    ("dtype", "choice", "match"),
    [
        ("auto", "Q5_K_M", r"no 'Q5_K_M' among its GGUF files; there are Q8_0, Q4_K_M, Q4_0, F16, IQ3_M"),
        ("q5_k_m", "", "no 'Q5_K_M' among"),
        ("fp16", "", "GGUF weights become q8 or fp32, not fp16"),
        ("auto", "other.gguf", r"no 'other\.gguf' among"),
    ],
)
def test_wrong_choice_lists_what_there_is(dtype, choice, match):
    with pytest.raises(OptionError, match=match) as caught:
        choose_gguf([name for name in REPO if dtype != "fp16" or "f16" not in name], dtype, choice)
    assert "owner/name:Q8_0" in caught.value.hint


def test_q4_needs_a_file_of_that_format():
    with pytest.raises(OptionError, match="no Q4_0 file"):
        choose_gguf([FILE.format("Q8_0"), FILE.format("Q4_K_M")], "q4")


def test_two_files_of_one_format_must_be_told_apart_by_name():
    names = ["a-Q8_0.gguf", "b-Q8_0.gguf"]
    with pytest.raises(OptionError, match=r"2 GGUF files that fit: a-Q8_0\.gguf, b-Q8_0\.gguf"):
        choose_gguf(names)
    assert choose_gguf(names, choice="b-Q8_0").name == "b-Q8_0.gguf"


def test_split_weights_are_refused_before_they_are_fetched():
    names = [f"m-Q8_0-0000{part}-of-00002.gguf" for part in (1, 2)]
    with pytest.raises(UnsupportedModelError, match="split over several files"):
        choose_gguf(names)


def test_choice_without_any_file():
    with pytest.raises(OptionError, match="no GGUF file here"):
        choose_gguf(["README.md"], choice="Q8_0")


def test_files_beside_the_weights_do_not_count():
    assert [choice.number_format for choice in gguf_choices(REPO)] == [
        "Q8_0",
        "Q4_K_M",
        "Q4_0",
        "F16",
        "IQ3_M",
    ]


@pytest.mark.parametrize("name", ["q8", "q4", "fp32", "q4f16", "auto", "bnb4"])
def test_precisions_are_no_number_formats(name):
    assert not is_number_format(name)


def test_families_are_those_of_the_importer():
    assert FAMILIES == IMPORTED
