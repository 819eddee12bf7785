"""Streaming decoding: whole characters only, and together the text that decoding at once gives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as RawTokenizer

from tests import tiny_models as tiny
from tinykit.tokenizer import Detokenizer

ALPHABET = tiny.byte_alphabet()


def byte_level():
    """Like GPT-2, SmolLM2, Qwen, Llama 3: each byte is a character of its own."""
    raw = RawTokenizer(models.BPE(vocab={t: i for i, t in enumerate([*ALPHABET, "th", "the"])}, merges=[]))
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<end>", special=True)])
    return raw


def byte_fallback():
    """Like Llama 2, Gemma: words with a mark for the space, and bytes for what has no word."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {token: 256 + i for i, token in enumerate(["<unk>", "▁", "▁▁", "a", "▁a", "é", "▁漢"])}
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    raw.decoder = decoders.Sequence(steps)
    raw.add_special_tokens([AddedToken("<end>", special=True)])
    return raw


def words():
    """Like T5: the mark of the space alone."""
    raw = RawTokenizer(models.BPE(vocab={t: i for i, t in enumerate(["▁", "▁a", "b", "é"])}, merges=[]))
    raw.decoder = decoders.Metaspace()
    return raw


def word_pieces():
    """Like BERT: pieces of words, joined."""
    tokens = ["[UNK]", "a", "##b", "c", ".", "##.", "##漢"]
    raw = RawTokenizer(models.WordPiece(vocab={t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    raw.decoder = decoders.WordPiece()
    return raw


BYTE_LEVEL, FALLBACK = byte_level(), byte_fallback()


def streamed(raw, token_ids):
    stream = Detokenizer(raw)
    return [stream.feed(token_id) for token_id in token_ids], stream.flush()


@pytest.mark.parametrize("raw", [BYTE_LEVEL, FALLBACK], ids=["byte_level", "byte_fallback"])
@settings(deadline=None)
@given(st.text(max_size=12))
def test_text_as_single_bytes_comes_out_whole_characters_as_soon_as_they_are(raw, text):
    data = text.replace("\ufffd", "").encode()
    ids = [raw.token_to_id(ALPHABET[byte]) for byte in data] if raw is BYTE_LEVEL else list(data)
    pieces, rest = streamed(raw, ids)
    whole = raw.decode(ids)  # a vocabulary may swallow the first space
    assert whole in (data.decode(), data.decode()[1:])
    assert ("".join(pieces), rest) == (whole, "")
    ends = [at + 1 for at in range(len(data)) if at + 1 == len(data) or data[at + 1] & 0xC0 != 0x80]
    late = [at + 1 for at, piece in enumerate(pieces) if piece]
    assert set(ends) - set(late) <= {1}  # the swallowed space


@pytest.mark.parametrize(
    "raw", [BYTE_LEVEL, words(), word_pieces()], ids=["byte_level", "words", "word_pieces"]
)
@settings(deadline=None)
@given(st.data())
def test_any_tokens_give_together_what_decoding_at_once_gives(raw, data):
    ids = data.draw(st.lists(st.integers(0, raw.get_vocab_size() - 1), max_size=16))
    pieces, rest = streamed(raw, ids)
    assert "".join(pieces) + rest == raw.decode(ids)
    assert not any(piece.endswith("\ufffd") for piece in pieces)


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sampled_from([256, 257, 258, 259, 260, 261, 262, 263]).map(lambda index: [index]),
            st.text(max_size=2).map(lambda text: list(text.encode())),
            st.binary(max_size=3).map(list),
        ),
        max_size=8,
    )
)
def test_broken_bytes_among_words_spoil_only_themselves(parts):
    ids = [index for part in parts for index in part]
    pieces, rest = streamed(FALLBACK, ids)
    text, whole = "".join(pieces) + rest, FALLBACK.decode(ids)
    if "\ufffd" not in whole:
        assert text == whole
    # at once, one bad byte takes its neighbors with it: a stream shows more of them, and all words
    kept = [character for character in whole if character != "\ufffd"]
    shown = iter(text)
    assert all(character in shown for character in kept)


def test_bad_byte_after_a_shown_character_does_not_end_the_stream():
    ids = [0xC3, 0xA9, 0xF0, 0x9F, 260, 259]
    assert streamed(FALLBACK, ids) == (["", "é", "", "", "\ufffd\ufffd a", "a"], "")
    assert streamed(FALLBACK, ids[:4]) == (["", "é", "", ""], "\ufffd\ufffd")


def test_flushed_stream_is_empty():
    stream = Detokenizer(FALLBACK)
    stream.feed(0xC3)
    assert (stream.flush(), stream.flush()) == ("\ufffd", "")
