"""Weights of any source to a model folder in the layout of hub ONNX repositories."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from tinykit.convert.adapter import AdaptedCheckpoint, Adapter
from tinykit.convert.checkpoint import BLOCK, Checkpoint, matrix_shapes
from tinykit.convert.decoder import write_decoder
from tinykit.convert.gguf import GgufFile
from tinykit.convert.huggingface import HuggingFaceFolder
from tinykit.convert.layout import GRAPH_NAMES, DecoderDtype
from tinykit.convert.rotation import can_rotate
from tinykit.errors import ModelFileError, OptionError
from tinykit.tokenizer import Tokenizer


class Source(Checkpoint, Protocol):
    """A checkpoint with its tokenizer."""

    path: Path

    def tensor_types(self) -> set[str]:
        """The number formats of the matrices inside the layers."""
        ...

    def write_tokenizer(self, folder: Path) -> None:
        """Write the files that `tinykit.tokenizer` reads."""
        ...


def open_source(path: Path) -> Source:
    """A GGUF file or a folder with safetensors."""
    return HuggingFaceFolder(path) if path.is_dir() else GgufFile(path)


def resolve_dtype(source: Source, dtype: str) -> DecoderDtype:
    """The precision to import to: ``auto`` keeps 4 bits where that is exact and takes 8 bits elsewhere.

    Raises:
        OptionError: a precision that these weights cannot be imported to.
    """
    return choose_dtype(dtype, source.tensor_types(), source.path.name)


def possible_dtypes(tensor_types: Collection[str]) -> tuple[DecoderDtype, ...]:
    """The precisions that weights can be imported to, the one for `auto` first."""
    return (*(("q4",) if "Q4_0" in tensor_types else ()), "q8", "w8a8", "fp32")


def offered_dtypes(source: Source) -> tuple[DecoderDtype, ...]:
    """The same for weights that are open, whose family is known."""
    possible = possible_dtypes(source.tensor_types())
    return tuple(dtype for dtype in possible if dtype != "w8a8" or can_rotate(source.architecture))


def choose_dtype(dtype: str, tensor_types: Collection[str], name: str) -> DecoderDtype:
    """The same from the number formats of the matrices; `name` is what to call the weights in the error."""
    possible = possible_dtypes(tensor_types)
    if dtype == "auto":
        return possible[0]
    for one in possible:
        if dtype == one:
            return one
    raise OptionError(
        f"{name} can be imported as {', '.join(possible)}, not as {dtype!r}.",
        hint="Rounding to 4 bits once more ruins small models, so q4 is offered for Q4_0 files only."
        if dtype == "q4"
        else None,
        name="dtype",
        value=dtype,
    )


def needed_bytes(source: Source, dtype: DecoderDtype) -> int:
    """Disk space that must be free for the import."""
    return import_bytes(source, dtype) + 16 * 2**20


def import_bytes(source: Source, dtype: DecoderDtype) -> int:
    """About what the imported weights weigh."""
    arch = source.architecture
    weights = sum(map(math.prod, matrix_shapes(arch).values())) + arch.vocab_size * arch.hidden
    per_weight = 4.0 if dtype == "fp32" else 1 + 4 / BLOCK
    tables = 4 * arch.context_length * arch.head_dim
    is_tied = arch.tied_embeddings and dtype != "w8a8"
    untied = 0 if is_tied else arch.vocab_size * arch.hidden
    return int((weights + untied) * per_weight) + tables


def import_model(
    source: Source,
    folder: Path,
    *,
    dtype: DecoderDtype,
    adapter: Adapter | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> Path:
    """Write config, tokenizer and graph into `folder`; returns the graph's path.

    `adapter` is merged into the float weights before they are rounded. `advance` is called with 1 after
    each layer.

    Raises:
        ModelFileError: weights, tokenizer or adapter are damaged or do not fit together.
    """
    checkpoint = source if adapter is None else AdaptedCheckpoint(source, adapter)
    write_tokenizer(source, folder)
    config = json.dumps(checkpoint.architecture.config(), indent=1)
    (folder / "config.json").write_text(config, encoding="utf-8")
    graph = folder / "onnx" / GRAPH_NAMES[dtype]
    graph.parent.mkdir(exist_ok=True)
    write_decoder(checkpoint, graph, dtype=dtype, advance=advance)
    return graph


def write_tokenizer(source: Source, folder: Path) -> None:
    """Refuse a tokenizer that cannot be opened or that has more tokens than the embedding has rows."""
    rows = source.architecture.vocab_size
    try:
        source.write_tokenizer(folder)
        tokenizer = Tokenizer.from_folder(folder)
        tokenizer.check()
    except ModelFileError as error:
        reason = str(error).replace(f"{folder}{os.sep}", "")  # the folder is gone when the user reads this
        raise type(error)(
            f"The tokenizer of {source.path} cannot be used: {reason}", hint=error.hint, path=source.path
        ) from error
    if tokenizer.highest_id >= rows:
        raise ModelFileError(
            f"{source.path}: its vocabulary has the token id {tokenizer.highest_id}, but its embedding has "
            f"{rows:,} rows.",
            hint="The tokenizer belongs to another model, or tokens were added without their weights.",
            path=source.path,
        )
