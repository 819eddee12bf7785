"""What the files of a model say about it, read without loading it: layout, precisions, states, tokenizer."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tinykit import hub
from tinykit.errors import ModelFileError, OptionError, TinykitError
from tinykit.gguf_names import gguf_choices
from tinykit.model_config import read_config
from tinykit.model_files import FileChoice, onnx_choices
from tinykit.model_spec import BackendName, FileSource, HubSource, ModelSpec

if TYPE_CHECKING:
    from tinykit.convert.importer import Source

_TEMPLATES = ("chat_template.jinja", "chat_template.json")
_CONFIGS = ("config.json", "generation_config.json", "genai_config.json")
# a graph without its weights: those that hold them take long to read
_MAX_GRAPH_BYTES = 256 * 2**20


def local_facts(spec: ModelSpec) -> dict[str, Any]:
    """What the files of a model on this machine say; empty if there are none, or a package's weights.

    `dtypes` has the bytes of each precision that can be had of these files. What keeps the model from being
    used is told as `problem`.
    """
    places = [source.path for source in spec.sources if isinstance(source, FileSource)]
    places += [
        copy.path for source in spec.sources if isinstance(source, HubSource) for copy in hub.copies(source)
    ]
    place = next((place for place in places if place.exists()), None)
    if place is None:
        return {}
    return _Folder(place).facts() if place.is_dir() and _choices(place) else _weights_facts(place)


def remote_facts(spec: ModelSpec, dtype: str | None, backend: BackendName) -> dict[str, Any]:
    """What the hub says about a model, from the list of its files and its configuration.

    `files` and `fetch_bytes` are what a download of this precision needs, `missing_bytes` what of it is not
    here; `dtypes` are all precisions, with their bytes.

    Raises:
        OptionError: The model does not come from a hub for this backend, or has no such precision.
        SourceError: The hub cannot be asked (one of its kinds says why).
    """
    source = next((s for s in spec.sources_for(backend) if isinstance(s, HubSource)), None)
    if source is None:
        raise OptionError(
            f"{spec.key} does not come from a hub for {backend}, so there is nothing to ask",
            name="remote",
            value=spec.key,
        )
    plan = hub.plan(source, dtype or spec.dtype or "auto")
    files, names = plan.listing.files, list(plan.listing.files)
    choices = onnx_choices(names)
    is_gguf = any(name.endswith(".gguf") for name in plan.choice.names)
    dtypes = {choice.dtype: sum(files[name].size_bytes for name in choice.names) for choice in choices}
    if is_gguf:
        dtypes = {
            file.number_format or file.name: files[file.name].size_bytes for file in gguf_choices(names)
        }
    facts = {
        "commit": plan.listing.commit,
        "layout": _layout(choices[0]) if choices else "gguf" if is_gguf else "safetensors",
        "dtypes": dtypes,
        "tokenizer": "in the file" if is_gguf else _tokenizer_file(names),
        "files": list(plan.choice.names),
        "fetch_bytes": plan.size_bytes,
        "missing_bytes": plan.download_bytes,
    }
    if is_gguf and plan.listing.gguf_family:
        facts["family"] = plan.listing.gguf_family
    names = [name for name in plan.choice.names if PurePosixPath(name).name in _CONFIGS]
    with (
        tempfile.TemporaryDirectory() as folder,
        suppress(ModelFileError),  # a damaged configuration is said by what loads it
    ):
        facts |= _config_facts(hub.read_small(source, plan.listing, names, Path(folder)))
    return facts


@dataclass(frozen=True)
class _Folder:
    """A folder with graphs."""

    path: Path

    def facts(self) -> dict[str, Any]:
        choices = _choices(self.path)
        extra = {PurePosixPath(name).name: self.path / name for name in choices[0].extra}
        facts: dict[str, Any] = {
            "layout": _layout(choices[0]),
            "dtypes": {choice.dtype: self._bytes(choice) for choice in choices},
            **_tokenizer_facts(extra, self.path),
        }
        try:
            facts |= _config_facts(extra)
            facts["states"] = self._states(choices)
        except TinykitError as error:
            facts.setdefault("problem", str(error))
        return facts

    def _bytes(self, choice: FileChoice) -> int:
        """Bytes of graph and weights; a copy from the hub may hold one precision only."""
        return sum((self.path / name).stat().st_size for name in (choice.graph, *choice.data))

    def _states(self, choices: Sequence[FileChoice]) -> str:
        """The states that the smallest graph hands from step to step, in the words of its own names."""
        from tinykit.backends.signature import CONTROL_INPUTS
        from tinykit.convert.optimize import read_graph

        graph = min((self.path / choice.graph for choice in choices), key=lambda path: path.stat().st_size)
        if graph.stat().st_size > _MAX_GRAPH_BYTES:
            return ""
        model = read_graph(graph)
        weights = {tensor.name for tensor in model.graph.initializer}
        names = [value.name for value in model.graph.input if value.name not in weights | CONTROL_INPUTS]
        counts = Counter(re.sub(r"\d+", "N", name, count=1) for name in names)
        return ", ".join(f"{count} × {name}" for name, count in counts.items()) or "none"


def _choices(folder: Path) -> list[FileChoice]:
    """The graphs of a folder whose weights are there: a hub copy shows only what was fetched."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return onnx_choices(names)


def _layout(choice: FileChoice) -> str:
    if any(PurePosixPath(name).name == "genai_config.json" for name in choice.extra) and not re.match(
        r"(onnx/)?(model|decoder_model_merged)_\w+\.onnx", choice.graph
    ):
        return "onnxruntime-genai"
    return "transformers.js" if choice.graph.startswith("onnx/") else "ONNX graphs"


def _weights_facts(place: Path) -> dict[str, Any]:
    """Weights that are imported: a GGUF file, or a folder with safetensors."""
    from tinykit.convert.importer import import_bytes, offered_dtypes, open_source

    facts: dict[str, Any] = {"layout": "safetensors" if place.is_dir() else "gguf"}
    if place.is_dir():
        extra = {name: place / name for name in (*_CONFIGS, "tokenizer.json", "tokenizer_config.json")}
        extra |= {name: place / name for name in _TEMPLATES}
        extra = {name: path for name, path in extra.items() if path.is_file()}
        facts |= _tokenizer_facts(extra, place)
        with suppress(ModelFileError):
            facts |= _config_facts(extra)
    try:
        source = open_source(place)
    except TinykitError as error:
        return {"problem": str(error), **facts}
    architecture = source.architecture
    facts |= {
        "family": architecture.family,
        "context_length": architecture.context_length,
        "weights": ", ".join(sorted(source.tensor_types())),
        "dtypes": {name: import_bytes(source, name) for name in offered_dtypes(source)},
        "states": _architecture_states(source),
    }
    return facts if place.is_dir() else facts | _gguf_tokenizer_facts(source)


def _architecture_states(source: Source) -> str:
    kinds = Counter(source.architecture.kind(layer) for layer in range(source.architecture.layers))
    words = {
        "full_attention": "keys and values of {}",
        "sliding_attention": "keys and values of {} with a sliding window",
        "conv": "convolutions of {}",
    }
    return ", ".join(
        words[kind].format(f"{count} layer{'s' * (count != 1)}") for kind, count in kinds.items()
    )


def _gguf_tokenizer_facts(source: Source) -> dict[str, Any]:
    metadata: Mapping[str, Any] = getattr(source, "metadata", {})
    tokens = metadata.get("tokenizer.ggml.tokens") or ()
    return {
        "tokenizer": f"{metadata.get('tokenizer.ggml.model', 'none')}, {len(tokens):,} tokens",
        "chat_template": "in the file" if metadata.get("tokenizer.chat_template") else "none",
    }


def _config_facts(files: Mapping[str, Path]) -> dict[str, Any]:
    config = read_config({name: path for name, path in files.items() if name in _CONFIGS})
    facts = {"family": config.family, "context_length": config.context_length}
    return {name: value for name, value in facts.items() if value}


def _tokenizer_facts(files: Mapping[str, Path], folder: Path) -> dict[str, Any]:
    """Tokenizer and chat template of a folder; without a tokenizer the model cannot be used."""
    from tinykit.tokenizer import Tokenizer, missing_tokenizer

    if "tokenizer.json" not in files:
        error = missing_tokenizer(folder)
        return {"tokenizer": "missing", "problem": f"{error} {error.hint}"}
    try:
        tokenizer = Tokenizer.from_folder(files["tokenizer.json"].parent)
    except ModelFileError as error:
        return {"tokenizer": "damaged", "problem": str(error)}
    return {
        "tokenizer": f"tokenizer.json, {tokenizer.vocab_size:,} tokens",
        "chat_template": _template_file(files),
    }


def _template_file(files: Mapping[str, Path]) -> str:
    for name in _TEMPLATES:
        if name in files:
            return name
    with suppress(OSError, ValueError, KeyError):
        if json.loads(files["tokenizer_config.json"].read_text(encoding="utf-8")).get("chat_template"):
            return "tokenizer_config.json"
    return "none"


def _tokenizer_file(names: Sequence[str]) -> str:
    return next((name for name in names if PurePosixPath(name).name == "tokenizer.json"), "missing")
