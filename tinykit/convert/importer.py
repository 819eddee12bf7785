"""Weights of any source to a model folder in the layout of hub ONNX repositories."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from tinykit.convert.adapter import AdaptedCheckpoint, Adapter
from tinykit.convert.checkpoint import BLOCK, Checkpoint
from tinykit.convert.decoder import DecoderDtype, write_decoder
from tinykit.convert.gguf import GgufFile
from tinykit.convert.huggingface import HuggingFaceFolder
from tinykit.errors import OptionError

# Raise when the written files change; folders made by another version are not used.
IMPORT_VERSION: Final = 1
GRAPH_NAMES: Final[dict[DecoderDtype, str]] = {
    "fp32": "model.onnx",
    "q8": "model_quantized.onnx",
    "q4": "model_q4.onnx",
}


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
    possible: tuple[DecoderDtype, ...] = ("q8", "fp32")
    if "Q4_0" in source.tensor_types():
        possible = ("q4", "q8", "fp32")
    if dtype == "auto":
        return possible[0]
    for name in possible:
        if dtype == name:
            return name
    raise OptionError(
        f"{source.path.name} can be imported as {', '.join(possible)}, not as {dtype!r}.",
        hint="Rounding to 4 bits once more ruins small models, so q4 is offered for Q4_0 files only."
        if dtype == "q4"
        else None,
        name="dtype",
        value=dtype,
    )


def needed_bytes(source: Source, dtype: DecoderDtype) -> int:
    """Disk space that the import takes, rounded up."""
    arch = source.architecture
    attention = 2 * arch.hidden * (arch.heads + arch.kv_heads) * arch.head_dim
    weights = arch.layers * (attention + 3 * arch.hidden * arch.intermediate) + arch.vocab_size * arch.hidden
    per_weight = 4.0 if dtype == "fp32" else 1 + 4 / BLOCK
    tables = 4 * arch.context_length * arch.head_dim
    untied = 0 if arch.tied_embeddings else arch.vocab_size * arch.hidden
    return int((weights + untied) * per_weight) + tables + 16 * 2**20


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
    """
    checkpoint = source if adapter is None else AdaptedCheckpoint(source, adapter)
    source.write_tokenizer(folder)
    config = json.dumps(checkpoint.architecture.config(), indent=1)
    (folder / "config.json").write_text(config, encoding="utf-8")
    graph = folder / "onnx" / GRAPH_NAMES[dtype]
    graph.parent.mkdir(exist_ok=True)
    write_decoder(checkpoint, graph, dtype=dtype, advance=advance)
    return graph
