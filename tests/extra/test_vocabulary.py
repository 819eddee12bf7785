"""SentencePiece vocabularies of GGUF files cut text as transformers does. Needs torch and transformers."""

import pytest

from tests.convert.test_vocabulary import GGUF, gemma_vocabulary, with_vocabulary
from tinykit.convert.vocabulary import build_tokenizer

pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")
TEXTS = [
    "the then an and than hen", " the", "the  the   an", "", " ", "a\nthe\n\nhe\n\n\nan", "é 漢字 😀 the",
    "the<end_of_turn>an", "▁the", "<0xC3>", "\tthe\r\nan", "tthhee", "Then AN an",
]  # fmt: skip


def test_gemmas_vocabulary(tmp_path):
    vocabulary = gemma_vocabulary()
    path = with_vocabulary(GGUF / "gemma3-Q8_0.gguf", vocabulary, tmp_path / "gemma.gguf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    ours = build_tokenizer(vocabulary)
    found = {text: ours.encode(text, add_special_tokens=False).ids for text in TEXTS}
    expected = {text: theirs(text, add_special_tokens=False)["input_ids"] for text in TEXTS}
    assert found == expected
