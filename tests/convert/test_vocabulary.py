import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer

from tests import tiny_models as tiny
from tinykit import TinySession
from tinykit.backends.onnx import OnnxBackend
from tinykit.convert.gguf import GgufFile
from tinykit.convert.importer import import_model
from tinykit.convert.vocabulary import build_tokenizer, quick_to_read, write_tokenizer
from tinykit.errors import ModelFileError, UnsupportedModelError
from tinykit.tokenizer import Message, Tokenizer

GGUF = Path(__file__).parents[1] / "fixtures" / "gguf"


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


def test_written_merges_are_texts_and_mean_the_same(metadata, tmp_path):
    write_tokenizer(metadata, tmp_path)
    written = tmp_path / "tokenizer.json"
    merges = json.loads(written.read_bytes())["model"]["merges"]
    assert merges and all(isinstance(merge, str) for merge in merges)
    assert RawTokenizer.from_file(str(written)).to_str() == build_tokenizer(metadata).to_str()


@pytest.mark.parametrize(
    "data",
    [
        b'{"model": {"merges": [["a b", "c"], ["x", "y"]]}}',  # as one text it would have two spaces
        b'{"model": {"merges": ["a b", "c d"]}}',
        b'{"model": {"vocab": {}}}',
        b'{"model": {"merges": [["\\ud800", "c"]]}}',
        b"\xff",
        b"no file",
    ],
)
def test_other_tokenizer_files_stay_what_they_are(data):
    assert quick_to_read(data) == data


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"tokenizer.ggml.model": "bert"}, UnsupportedModelError, "vocabulary 'bert'"),
        ({"tokenizer.ggml.model": "llama"}, ModelFileError, "scores"),
        ({"tokenizer.ggml.pre": "klingon"}, UnsupportedModelError, "pre-tokenizer 'klingon'"),
        ({"tokenizer.ggml.tokens": None}, ModelFileError, "incomplete"),
        ({"tokenizer.ggml.token_type": [1]}, ModelFileError, "incomplete"),
        ({"tokenizer.ggml.merges": ["x yy"]}, ModelFileError, "merges do not fit"),
    ],
    ids=[
        "other_kind",
        "sentencepiece_without_scores",
        "unknown_split",
        "no_tokens",
        "types_too_short",
        "merge_of_unknown_tokens",
    ],
)
def test_what_cannot_be_read_is_named(change, error, match, metadata):
    with pytest.raises(error, match=match):
        build_tokenizer({**metadata, **change})


# ---- SentencePiece ------------------------------------------------------------------------------

PIECES = ["▁", "t", "h", "e", "a", "n", "▁t", "th", "he", "▁th", "the", "▁the", "an", "▁a", "▁▁", "▁an"]
TOKENS = ["<unk>", "<bos>", "<end_of_turn>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
SCORES = [0.0] * 259 + [-100.0 - n if len(piece) == 1 else -float(n) for n, piece in enumerate(PIECES)]


def sentencepiece(**change):
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": SCORES,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES),
        "tokenizer.ggml.add_space_prefix": False,
        **change,
    }


def joined_by_score(text):
    """What SentencePiece does: join the neighbors that make the best-scored token, leftmost first."""
    pieces = list(text.replace(" ", "▁"))
    while True:
        pairs = [
            (SCORES[TOKENS.index(a + b)], -at)
            for at, (a, b) in enumerate(itertools.pairwise(pieces))
            if a + b in TOKENS
        ]
        if not pairs:
            return pieces
        at = -max(pairs)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@settings(deadline=None)  # a busy machine is no failure
@given(st.text(alphabet="then a", max_size=40))
def test_scores_join_like_sentencepiece(text):
    assert build_tokenizer(sentencepiece()).encode(text).tokens == joined_by_score(text)


@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=20))
def test_sentencepiece_gives_any_text_back(text):
    tokenizer = build_tokenizer(sentencepiece())
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_unknown_characters_are_bytes():
    assert build_tokenizer(sentencepiece()).encode("é").tokens == ["<0xC3>", "<0xA9>"]


def test_space_before_the_text_where_the_model_wants_one():
    tokenizer = build_tokenizer(sentencepiece(**{"tokenizer.ggml.add_space_prefix": True}))
    assert tokenizer.encode("the").tokens == ["▁the"]
    assert tokenizer.decode(tokenizer.encode("the a").ids) == "the a"


def test_control_tokens_of_sentencepiece_are_special(tmp_path):
    write_tokenizer(sentencepiece(**{"tokenizer.ggml.eos_token_id": 1}), tmp_path)
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert set(tokenizer.end_ids()) == {1, 2}
    assert tokenizer.decode(tokenizer.encode("<bos>")) == "<bos>"


def test_lfm2_keeps_whole_words(metadata):
    tokenizer = build_tokenizer({**metadata, "tokenizer.ggml.pre": "lfm2", "tokenizer.ggml.merges": []})
    assert tokenizer.encode("the").tokens == ["the"]


# ---- Gemma 3, whose files have such vocabularies --------------------------------------------------

GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + m['role'] + '\n' + m['content'] | trim "
    "+ '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)


def gemma_vocabulary(size=384):
    """As in Gemma's files: control tokens, bytes, pieces, and tokens for runs of newlines that are text."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokens = [*special, "\n", "\n\n", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    types = [3, 3, 3, 2, 3, 3, 4, 4, *[6] * 256, *[1] * len(PIECES)]
    scores = [0.0] * 264 + SCORES[259:]
    spare = size - len(tokens)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [*tokens, *(f"<unused{n}>" for n in range(spare))],
        "tokenizer.ggml.scores": [*scores, *[-1000.0] * spare],
        "tokenizer.ggml.token_type": [*types, *[3] * spare],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": GEMMA_TEMPLATE,
    }


def with_vocabulary(source, vocabulary, path):
    """The weights of one GGUF file with the vocabulary of another."""
    reader = GGUFReader(source)
    writer = GGUFWriter(str(path), reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "tokenizer.", "general.architecture")):
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, inner[-1] if inner else None)
    for name, value in vocabulary.items():
        writer.add_key_value(name, value, GGUFValueType.get_type(value))
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data.copy(), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gemma_with_a_sentencepiece_vocabulary_is_imported_and_answers(tmp_path):
    path = with_vocabulary(GGUF / "gemma3-Q8_0.gguf", gemma_vocabulary(), tmp_path / "gemma-Q8_0.gguf")
    with TinySession(str(path), progress=False) as session:
        engine = session.load().engine
        ids = engine.tokenizer.encode_chat([Message("user", " the <end_of_turn> then\n\né ")])
        tokens = [engine.tokenizer._raw.id_to_token(index) for index in ids]
        assert tokens[:4] == ["<bos>", "<start_of_turn>", *tokens[2:4]]
        assert tokens.count("<end_of_turn>") == 1  # what the user wrote is text
        assert {"the", "▁the", "\n\n", "<0xC3>", "<0xA9>"} <= set(tokens)
        assert set(engine.eos_ids) >= {1, 5}
        assert session.complete("the", max_tokens=3) is not None
        same = OnnxBackend(
            import_model(GgufFile(GGUF / "gemma3-Q8_0.gguf"), tmp_path, dtype="q8"),
            dtype="q8", context_length=512, threads=1,
        )  # fmt: skip
        backend = engine.backend
        ours, theirs = (b.forward(ids, b.new_state()) for b in (backend, same))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
