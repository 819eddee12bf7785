import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models

from tests.generation import vocabularies
from tinykit.token_bytes import byte_level, sentencepiece
from tinykit.tokenizer import Tokenizer


def test_byte_level_letters_are_bytes():
    assert byte_level(["Ġthe", "Ċ", "Ã©", "", "!", "Ā"]) == [b" the", b"\n", "é".encode(), b"", b"!", b"\0"]


def test_each_letter_of_the_alphabet_is_its_byte_and_others_are_a_question_mark():
    reference = {byte: chr(byte) for byte in (*range(33, 127), *range(161, 173), *range(174, 256))}
    for byte in range(256):
        reference.setdefault(byte, chr(256 + len(reference) - 188))
    assert byte_level([reference[byte] for byte in range(256)]) == [bytes([byte]) for byte in range(256)]
    assert byte_level(["日本", "a😀b", "\ud800", "ǿ"]) == [b"??", b"a?b", b"?", b"?"]


def test_ids_with_gaps_have_empty_texts():
    raw = RawTokenizer(models.BPE(vocab={"a": 0, "b": 3, "c": 7}, merges=[]))
    raw.decoder = decoders.ByteLevel()
    assert Tokenizer(raw, {}, None).token_bytes() == [b"a", b"", b"", b"b", b"", b"", b"", b"c"]


def test_sentencepiece():
    assert sentencepiece(["▁the", "<0x0A>", "é", "▁▁", "<0x0AB>"]) == [
        b" the",
        b"\n",
        "é".encode(),
        b"  ",
        b"<0x0AB>",
    ]


@pytest.mark.parametrize("make", [vocabularies.byte_level, vocabularies.sentencepiece])
@pytest.mark.parametrize("text", ["Hello the world", "naïve café 日本 😀", "a\n\tb  c", "yes 12", ""])
def test_tokens_of_a_text_add_up_to_it(make, text):
    tokenizer = make()
    texts = tokenizer.token_bytes()
    joined = b"".join(texts[index] for index in tokenizer.encode(text)).decode()
    assert joined.removeprefix(" ") == text
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens_add_nothing():
    assert vocabularies.byte_level().token_bytes()[:4] == [b""] * 4


def test_json_marks_all_control_tokens():
    assert '"<|im_end|>"' in vocabularies.byte_level().to_json()
