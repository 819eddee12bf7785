"""A GGUF vocabulary as a `tokenizers` tokenizer and a Hugging Face tokenizer folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinykit.convert.fields import Fields
from tinykit.errors import ModelFileError, UnsupportedModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TIKTOKEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How each kind of vocabulary cuts text before byte-pair merging; the names are those of
# https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp
_SPLITS: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_TIKTOKEN % "{1,3}",),
    "qwen2": (_TIKTOKEN % "",),
}
_CONTROL, _USER_DEFINED = 3, 4


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The byte-level BPE tokenizer that a GGUF file's metadata describes.

    Raises:
        UnsupportedModelError: another kind of vocabulary (SentencePiece) or an unknown pre-tokenizer.
        ModelFileError: tokens or merges are missing, or do not fit together.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "gpt2" or not isinstance(pre, str) or pre not in _SPLITS:
        what = f"vocabulary {kind!r}" if kind != "gpt2" else f"pre-tokenizer {pre!r}"
        raise UnsupportedModelError(
            f"The GGUF file has the {what}; the importer knows byte-level BPE with {', '.join(_SPLITS)}."
        )
    tokens = _listed(metadata, "tokens", str)
    types, merges = _listed(metadata, "token_type", int), _listed(metadata, "merges", str)
    if not tokens or len(tokens) != len(types):
        raise ModelFileError(
            f"The GGUF file's vocabulary is incomplete: {len(tokens)} in tokenizer.ggml.tokens, "
            f"{len(types)} in tokenizer.ggml.token_type."
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        model = models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre == "llama-bpe")
    except Exception as error:
        raise ModelFileError(f"The GGUF file's merges do not fit its tokens: {error}") from error
    tokenizer = Tokenizer(model)
    splits = [pre_tokenizers.Split(Regex(rule), behavior="isolated") for rule in _SPLITS[pre]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    for index, token_type in enumerate(types):
        if token_type == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(tokens[index], normalized=False, special=True)])
        elif token_type == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(tokens[index], normalized=False)])
    return tokenizer


def _listed(metadata: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list) or not all(isinstance(one, kind) for one in value):
        raise ModelFileError(f"The GGUF file's vocabulary is incomplete: tokenizer.ggml.{name}.")
    return value


def write_tokenizer(metadata: Mapping[str, Any], folder: Path, *, path: Path | None = None) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` (with the chat template) into `folder`.

    Args:
        metadata: The GGUF file's fields.
        folder: Where to write.
        path: The GGUF file, to name it in errors.

    Raises:
        ModelFileError: as `build_tokenizer`, or a special token's id that is not in the vocabulary.
    """
    build_tokenizer(metadata).save(str(folder / "tokenizer.json"), pretty=False)
    tokens = metadata["tokenizer.ggml.tokens"]
    fields = Fields(metadata, path or folder, "tokenizer.ggml.")

    def text_of(kind: str) -> str | None:
        index = fields.token_id(f"{kind}_token_id", len(tokens))
        return None if index is None else tokens[index]

    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": text_of("bos"),
        "eos_token": text_of("eos"),
        "pad_token": text_of("padding"),
        "unk_token": text_of("unknown"),
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata.get("tokenizer.chat_template"),
    }
    text = json.dumps(config, ensure_ascii=False, indent=1)
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
