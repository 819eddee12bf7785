"""Small tokenizers of both kinds that constraints must work with."""

from pathlib import Path

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as RawTokenizer

from tinykit.tokenizer import Tokenizer

FIXTURES = Path(__file__).parents[1] / "fixtures"
EOS = (0, 2)  # <|endoftext|> and <|im_end|> of the byte-level one, </s> and <end> of the other


def byte_level() -> Tokenizer:
    """Trained, of 384 tokens: all bytes and some words; 0 to 3 are control tokens."""
    return Tokenizer.from_folder(FIXTURES / "hub" / "llama")


def sentencepiece() -> Tokenizer:
    """As Llama 2 has it: ``▁`` for a space, bytes where there is no letter, no space at the beginning."""
    words = ["▁yes", "yes", "▁no", "no", "▁{", '▁"', '":', "▁▁", "title", "▁title", "12", "ab"]
    letters = [chr(code) for code in range(33, 127)]
    control = ["</s>", "<unk>", "<end>"]
    vocabulary = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *letters, *words]
    merges = [("y", "e"), ("ye", "s"), ("▁", "yes"), ("n", "o"), ("▁", "no"), ("1", "2"), ("a", "b")]
    vocabulary += ["ye"]
    ids = {text: index for index, text in enumerate(dict.fromkeys(vocabulary))}
    raw = RawTokenizer(
        models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    raw.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    return Tokenizer(raw, {}, None)
