"""A GGUF vocabulary as a `tokenizers` tokenizer and a Hugging Face tokenizer folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
    "lfm2": (_TIKTOKEN % "{1,3}",),
    "qwen2": (_TIKTOKEN % "",),
}
# Vocabularies where a whole word that is a token stays one, whatever the merges say.
_WHOLE_WORDS = ("llama-bpe", "lfm2")
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "\u2581"  # how SentencePiece writes a space


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF file's metadata describes: byte-level BPE or SentencePiece's BPE.

    Raises:
        UnsupportedModelError: another kind of vocabulary or an unknown pre-tokenizer.
        ModelFileError: tokens, merges or scores are missing, or do not fit together.
    """
    from tokenizers import AddedToken

    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if kind != "llama" and (kind != "gpt2" or not isinstance(pre, str) or pre not in _SPLITS):
        what = f"vocabulary {kind!r}" if kind != "gpt2" else f"pre-tokenizer {pre!r}"
        raise UnsupportedModelError(
            f"The GGUF file has the {what}; the importer knows SentencePiece, and byte-level BPE with "
            f"{', '.join(_SPLITS)}."
        )
    tokens, types = _listed(metadata, "tokens", str), _listed(metadata, "token_type", int)
    if not tokens or len(tokens) != len(types):
        raise ModelFileError(
            f"The GGUF file's vocabulary is incomplete: {len(tokens)} in tokenizer.ggml.tokens, "
            f"{len(types)} in tokenizer.ggml.token_type."
        )
    tokenizer = _sentencepiece(metadata, tokens, types) if kind == "llama" else _byte_level(metadata, tokens)
    for index, token_type in enumerate(types):
        if token_type == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(tokens[index], normalized=False, special=True)])
        elif token_type == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(tokens[index], normalized=False)])
    return tokenizer


def _listed(metadata: Mapping[str, Any], name: str, *kinds: type) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list) or not all(isinstance(one, kinds) for one in value):
        raise ModelFileError(f"The GGUF file's vocabulary is incomplete: tokenizer.ggml.{name}.")
    return value


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    pre, merges = metadata.get("tokenizer.ggml.pre", "gpt-2"), _listed(metadata, "merges", str)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    try:
        pairs = [tuple(merge.split(" ", 1)) for merge in merges]
        model = models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre in _WHOLE_WORDS)
    except Exception as error:
        raise ModelFileError(f"The GGUF file's merges do not fit its tokens: {error}") from error
    tokenizer = Tokenizer(model)
    splits = [pre_tokenizers.Split(Regex(rule), behavior="isolated") for rule in _SPLITS[pre]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    """SentencePiece's BPE, as transformers writes it for Gemma and Llama 2: merges instead of scores."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = _listed(metadata, "scores", float, int)
    if len(scores) != len(tokens):
        raise ModelFileError(
            f"The GGUF file's vocabulary is incomplete: {len(tokens)} in tokenizer.ggml.tokens, "
            f"{len(scores)} in tokenizer.ggml.scores."
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    merges = merges_from_scores(vocabulary, scores)
    try:
        model = models.BPE(
            vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
    except Exception as error:
        raise ModelFileError(f"The GGUF file's scores do not fit its tokens: {error}") from error
    tokenizer = Tokenizer(model)
    has_prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    prefix = [normalizers.Prepend(_SPACE)] if has_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    spaces = decoders.Replace(_SPACE, " ")
    tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), *strip])
    return tokenizer


def merges_from_scores(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges that act like SentencePiece, which joins the two pieces that give the best-scored token.

    Each way to cut a token in two tokens is a merge; better scores come first.
    """
    found = []
    for token, index in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None:
                found.append((-scores[index], left, right, token[:cut], token[cut:]))
    return [(left, right) for *_, left, right in sorted(found)]


def quick_to_read(tokenizer_json: bytes) -> bytes:
    """The same ``tokenizer.json`` with each merge as one text, as all versions of `tokenizers` read it.

    That takes two thirds of the time of merges as pairs. Merges of tokens with a space in them stay pairs,
    and what is no such file stays what it is.
    """
    try:
        description = json.loads(tokenizer_json)
        texts = [f"{left} {right}" for left, right in description["model"]["merges"]]
        if any(text.count(" ") != 1 for text in texts):
            return tokenizer_json
        description["model"]["merges"] = texts
        return json.dumps(description, ensure_ascii=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, LookupError):
        return tokenizer_json


def write_tokenizer(metadata: Mapping[str, Any], folder: Path, *, path: Path | None = None) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` (with the chat template) into `folder`.

    Args:
        metadata: The GGUF file's fields.
        folder: Where to write.
        path: The GGUF file, to name it in errors.

    Raises:
        ModelFileError: as `build_tokenizer`, or a special token's id that is not in the vocabulary.
    """
    text = build_tokenizer(metadata).to_str(pretty=False)
    (folder / "tokenizer.json").write_bytes(quick_to_read(text.encode()))
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
