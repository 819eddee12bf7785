"""Which files of a model repo or folder a precision needs, from nothing but the names of its files.

Two layouts of ONNX repos are known: that of transformers.js, `onnx/<base><suffix>.onnx` with the suffix
telling the precision, and that of onnxruntime-genai, one graph beside a `genai_config.json`. Repos without
ONNX graphs may hold safetensors. The same functions serve a listing of the hub and a local folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from tinykit.errors import OptionError, UnsupportedModelError

# what the suffix of a graph's name says; the empty one is float32
SUFFIXES = {
    "": "fp32", "_fp16": "fp16", "_quantized": "q8", "_q8": "q8", "_int8": "int8", "_uint8": "uint8",
    "_q4": "q4", "_q4f32": "q4f32", "_q4f16": "q4f16", "_bnb4": "bnb4",
    "_q2": "q2", "_q2f16": "q2f16", "_q1": "q1", "_q1f16": "q1f16",
}  # fmt: skip

# for each precision that one may ask for, the formats that answer it, best first
_ANSWERS = {
    "q8": ("q8", "int8", "uint8"),
    "q4": ("q4", "q4f32"),
}  # fmt: skip

# measured on CPUs: small and fast first, half floats last because CPUs widen them at every step
_CPU_ORDER = (
    "q4", "q8", "int8", "uint8", "q4f32", "fp32", "q4f16", "fp16", "bnb4", "q2", "q2f16", "q1", "q1f16",
)  # fmt: skip

_BASES = ("model", "decoder_model_merged")
_GRAPH = re.compile(rf"(?P<base>{'|'.join(_BASES)})(?P<suffix>_\w+)?\.onnx")
_GENAI = "genai_config.json"
# words in the name of an onnxruntime-genai folder, such as cpu-int4-kld-block-128
_FOLDER_WORDS = {"int4": "q4", "int8": "q8", "fp16": "fp16", "fp32": "fp32"}
_UNTOLD = "auto"  # the precision of a graph whose name does not tell it

_CONFIGS = ("config.json", "generation_config.json", _GENAI)
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json")
_OLD_TOKENIZER = ("vocab.json", "merges.txt", "tokenizer.model")
_MLX_TOKENIZER = (*_TOKENIZER, *_OLD_TOKENIZER, "special_tokens_map.json", "added_tokens.json")
_WEIGHTS_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class FileChoice:
    """The files of one precision of a model, as names relative to its root.

    Attributes:
        dtype: The precision that the graph's name tells; `auto` if it tells none.
        graph: The ONNX graph; empty for weights without a graph.
        data: Files with the graph's weights, or safetensors.
        extra: Configuration, tokenizer and chat template.
    """

    dtype: str
    graph: str
    data: tuple[str, ...]
    extra: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, in the order to fetch them: a graph that is there has its weights beside it."""
        return (*self.extra, *self.data, *((self.graph,) if self.graph else ()))


def choose_files(names: Sequence[str], dtype: str) -> FileChoice:
    """The ONNX files for a precision; `auto` takes what suits a CPU best.

    Args:
        names: All files, as paths with forward slashes relative to the root.
        dtype: A precision, or `auto`. It is never replaced by another one in silence.

    Raises:
        OptionError: There is no such precision here; the message lists those that there are.
        UnsupportedModelError: There is no graph of a text model.
    """
    choices = onnx_choices(names)
    if not choices:
        raise _no_graph(names)
    if dtype == "auto":
        return choices[0]
    for answer in _ANSWERS.get(dtype, (dtype,)):
        for choice in choices:
            if choice.dtype == answer:
                return choice
    raise _missing(choices, dtype)


def onnx_choices(names: Sequence[str]) -> list[FileChoice]:
    """Every precision that is here, in the order to try them on a CPU."""
    layouts = _suffix_graphs(names, "onnx/") or _genai_graphs(names) or _suffix_graphs(names, "")
    ordered = sorted(layouts, key=lambda found: _rank(found[0]))
    return [_choice(names, dtype, graph) for dtype, graph in ordered]


def choose_safetensors(names: Sequence[str], *, with_old_tokenizers: bool = False) -> FileChoice:
    """The safetensors weights at the root with their configuration, for an import or for MLX.

    Args:
        names: All files, as paths with forward slashes relative to the root.
        with_old_tokenizers: Also take the tokenizer files from before `tokenizer.json`, as MLX does.

    Raises:
        UnsupportedModelError: There are no safetensors.
    """
    shards = tuple(sorted(n for n in names if "/" not in n and n.endswith(".safetensors")))
    if not shards or "config.json" not in names:
        raise UnsupportedModelError(
            f"There are no weights that tinykit can use among {_few(names)}",
            hint="It needs ONNX graphs, or safetensors with their config.json.",
            path=None,
        )
    whole = [name for name in shards if name == "model.safetensors"]
    data = tuple(whole) or shards + ((_WEIGHTS_INDEX,) if _WEIGHTS_INDEX in names else ())
    extra = _extra(names, "")
    if with_old_tokenizers:
        tiktoken = [n for n in names if "/" not in n and n.endswith(".tiktoken")]
        extra = tuple(dict.fromkeys((*extra, *(n for n in _MLX_TOKENIZER if n in names), *tiktoken)))
    return FileChoice("auto", "", data, extra)


def _suffix_graphs(names: Sequence[str], folder: str) -> list[tuple[str, str]]:
    """Pairs of precision and graph, one for each file that the layout of transformers.js knows."""
    for base in _BASES:
        found = {
            match["suffix"] or "": name
            for name in names
            if name.startswith(folder)
            and (match := _GRAPH.fullmatch(name.removeprefix(folder)))
            and match["base"] == base
        }
        is_decoder_alone = base == "model" or not _is_multimodal(names, folder)
        if found and is_decoder_alone:
            return [(dtype, found[suffix]) for suffix, dtype in SUFFIXES.items() if suffix in found]
    return []


def _genai_graphs(names: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of precision and graph, one for each folder with a genai_config.json."""
    found = []
    for config in sorted(names):
        if PurePosixPath(config).name != _GENAI:
            continue
        folder = config.removesuffix(_GENAI)
        inside = [name for name in names if name.startswith(folder) and "/" not in name[len(folder) :]]
        graphs = [name for name in inside if name.endswith(".onnx")]
        if graphs:
            graph = f"{folder}model.onnx" if f"{folder}model.onnx" in graphs else min(graphs)
            found.append((_folder_dtype(folder), graph))
    return found


def _folder_dtype(folder: str) -> str:
    words = re.split(r"[-_/.]", folder.lower())
    return next((dtype for word, dtype in _FOLDER_WORDS.items() if word in words), _UNTOLD)


def _choice(names: Sequence[str], dtype: str, graph: str) -> FileChoice:
    data = (n for n in names if n.startswith((f"{graph}_data", f"{graph}.data")))
    folder = graph.rpartition("/")[0]
    is_genai = bool(folder) and f"{folder}/{_GENAI}" in names
    return FileChoice(dtype, graph, tuple(sorted(data)), _extra(names, f"{folder}/" if is_genai else ""))


def _extra(names: Sequence[str], folder: str) -> tuple[str, ...]:
    """Configuration and tokenizer: those beside the graph, else those at the root."""
    present = set(names)
    wanted: tuple[str, ...] = (*_CONFIGS, *_TOKENIZER)
    if not {f"{folder}tokenizer.json", "tokenizer.json"} & present:
        wanted += _OLD_TOKENIZER
    found = (next((n for n in (folder + name, name) if n in present), None) for name in wanted)
    return tuple(dict.fromkeys(name for name in found if name is not None))


def _rank(dtype: str) -> int:
    return _CPU_ORDER.index(dtype) if dtype in _CPU_ORDER else -1


def _is_multimodal(names: Sequence[str], folder: str) -> bool:
    return any(name.startswith(f"{folder}embed_tokens") for name in names)


def _no_graph(names: Sequence[str]) -> UnsupportedModelError:
    if _is_multimodal(names, "onnx/"):
        return UnsupportedModelError(
            "This is a model for images or sound as well: its decoder reads embeddings instead of text",
            hint="Look for a repo of the text model alone.",
            path=None,
        )
    return UnsupportedModelError(
        f"There is no ONNX graph of a text model among {_few(names)}",
        hint="It should be onnx/model*.onnx, or a model.onnx with a genai_config.json beside it.",
        path=None,
    )


def _missing(choices: Sequence[FileChoice], dtype: str) -> OptionError:
    there = list(dict.fromkeys(choice.dtype for choice in choices))
    if there == [_UNTOLD]:
        return OptionError(
            f"The name of {choices[0].graph} does not tell its precision, so {dtype!r} cannot be chosen",
            hint="Leave out the dtype, or use dtype='auto'.",
            name="dtype",
            value=dtype,
        )
    return OptionError(
        f"There is no dtype {dtype!r} of this model; there are {', '.join(there)}",
        hint=f"Use one of these, for instance dtype={there[0]!r}, or dtype='auto'.",
        name="dtype",
        value=dtype,
    )


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:5])
    return f"{len(names):,} files ({shown}{', …' if len(names) > 5 else ''})" if names else "no files at all"
