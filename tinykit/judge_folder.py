"""A folder with a judge model, to a judge that is ready."""

from __future__ import annotations

from pathlib import Path

from tinykit.errors import ModelFileError
from tinykit.folders import file_names, folder_tokenizer
from tinykit.generation.judging import MAX_TOKENS, Judge, Marks
from tinykit.model_config import read_config
from tinykit.model_files import choose_files, onnx_choices
from tinykit.tokenizer import Tokenizer

_CLASS_ID = 2  # of a judge model whose tokenizer names neither a class token nor one for the beginning


def is_judge_folder(folder: Path) -> bool:
    """Whether a folder of graphs has the layout of a judge model: a tokenizer, and no model configuration."""
    names = {Path(name).name for choice in onnx_choices(file_names(folder)) for name in choice.extra}
    return "tokenizer.json" in names and names.isdisjoint(("config.json", "genai_config.json"))


def open_judge(folder: Path, dtype: str, *, threads: int | None = None) -> Judge:
    """Open the graph of a judge model in the precision asked for, on the CPU whatever the device.

    Raises:
        OptionError: this precision is not there; the message lists those that are.
        ModelFileError: the files cannot be used, or are no judge model.
    """
    from tinykit.backends.onnx_encoder import EncoderBackend

    choice = choose_files(file_names(folder), dtype)
    files = {Path(name).name: folder / name for name in choice.extra}
    tokenizer = folder_tokenizer(folder, files)
    context_length = read_config(files).context_length or MAX_TOKENS
    backend = EncoderBackend(
        folder / choice.graph, dtype=choice.dtype, context_length=context_length, threads=threads
    )
    return Judge(backend, tokenizer.encode_document, _marks(folder, tokenizer))


def _marks(folder: Path, tokenizer: Tokenizer) -> Marks:
    """A judge's special tokens, by the names that its tokenizer's configuration gives them."""
    mask, separator = (tokenizer.named_token(name) for name in ("mask_token", "sep_token"))
    if mask is None or separator is None:
        raise ModelFileError(
            f"The tokenizer of {folder} names no mask_token or no sep_token, which a judge model needs.",
            hint="Fetch the model again; tokenizer_config.json belongs to it.",
            path=folder / "tokenizer_config.json",
        )
    begin = tokenizer.named_token("cls_token") or tokenizer.named_token("bos_token")
    padding = tokenizer.named_token("pad_token")
    return Marks(
        mask_id=mask[1],
        class_id=begin[1] if begin else _CLASS_ID,
        separator_id=separator[1],
        pad_id=padding[1] if padding else 0,
        mask_text=mask[0],
    )
