"""What is on this machine: models with their sizes as rows and as a table; checking and removing them.

Only what lies in our own store is ever removed. Files of the hub stay in the hub's cache, where other
programs may use them; what is removed here is our note about them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tinykit import hub, sources, store
from tinykit.errors import ModelFileError
from tinykit.progress import size_text
from tinykit.registry import FileSource, HubSource, ModelSpec, WheelSource, known_models


@dataclass(frozen=True)
class Removal:
    """What `remove_model` did.

    Attributes:
        freed_bytes: Room that is free again.
        kept: Files of the model that were left where they are, because they are not ours alone.
    """

    freed_bytes: int
    kept: tuple[Path, ...]


def model_rows() -> list[dict[str, Any]]:
    """One row for each known model; `builds` are the imports that are ready, with their bytes."""
    entries = store.entries()
    return [model_row(spec, entries) for spec in known_models().values()]


def model_row(spec: ModelSpec, entries: Sequence[store.Entry] | None = None) -> dict[str, Any]:
    """What is known of a model, and what of it is here; uses no network."""
    builds = {entry.path.name: entry.size_bytes for entry in _builds(spec, entries)}
    copies = _copies(spec)
    path = sources.locate(spec)
    if path is None and copies:
        path = copies[0].path
    return {
        "key": spec.key,
        "label": spec.label,
        "group": spec.group,
        "task": spec.task,
        "family": spec.family,
        "dtype": spec.dtype,
        "context_length": spec.context_length,
        "thinking": spec.thinking,
        "good_for": spec.good_for,
        "description": spec.description,
        "license": spec.license,
        "refusals": dict(spec.refusals),
        "from": [_source_text(source) for source in spec.sources],
        "download_bytes": _download_bytes(spec),
        "here": "ready" if builds else ("fetched" if path else "no"),
        "disk_bytes": sum(builds.values()) + sum(copy.size_bytes for copy in copies),
        "source": str(path) if path else None,
        "builds": builds,
    }


def model_table() -> str:
    """The same as text."""
    rows = [
        (
            row["key"],
            row["here"],
            _size(row["disk_bytes"]),
            _size(row["download_bytes"], unknown="?"),
            row["family"] or "?",
            row["dtype"] or "auto",
            row["good_for"],
        )
        for row in model_rows()
    ]
    return text_table(("model", "here", "on disk", "download", "family", "dtype", "good for"), rows)


def info_table(row: dict[str, Any]) -> str:
    """A row of `model_rows` as text, one fact a line."""
    shown = [
        (name.replace("_", " ").removesuffix(" bytes"), _fact(name, value)) for name, value in row.items()
    ]
    return text_table(("fact", "value"), [(name, value) for name, value in shown if value])


def verify_model(spec: ModelSpec) -> int:
    """Read every file of a model that is here and compare it with its hash.

    Returns:
        How many copies and imports were checked; 0 if nothing is here.

    Raises:
        ChecksumError: A file has changed or is missing.
    """
    checked: list[store.Entry | hub.HubCopy] = [*_builds(spec), *_stored_sources(spec), *_copies(spec)]
    for thing in checked:
        thing.verify()
    return len(checked)


def remove_model(spec: ModelSpec) -> Removal:
    """Remove a model's imports and downloads from our store, and nothing outside it."""
    kept = [copy.path for copy in _copies(spec)]
    doomed = _entries(spec)
    for entry in _stored_sources(spec):
        if _is_shared(spec, entry):
            kept.append(entry.path)
        else:
            doomed.append(entry)
    freed_bytes = sum(entry.size_bytes for entry in doomed)
    for entry in doomed:
        entry.remove()
    for source in spec.sources:
        if isinstance(source, HubSource):
            hub.forget(source)
    kept += [
        source.path for source in spec.sources if isinstance(source, FileSource) and source.path.exists()
    ]
    return Removal(freed_bytes, tuple(kept))


def _entries(spec: ModelSpec, entries: Sequence[store.Entry] | None = None) -> list[store.Entry]:
    """All that was made under this model's key, also from other files."""
    folder = store.entry("models", spec.key).path
    found = store.entries() if entries is None else entries
    return [entry for entry in found if entry.path.parent == folder]


def _builds(spec: ModelSpec, entries: Sequence[store.Entry] | None = None) -> list[store.Entry]:
    """The finished imports and prepared graphs of this model, less those of other files under its key."""
    found = _entries(spec, entries)
    if not found:
        return []
    from tinykit.loading import build_entries  # numpy, which a machine without imports is spared

    folders = [source.path for source in spec.sources if isinstance(source, FileSource)]
    folders += [copy.path for copy in _copies(spec)]
    own = {entry.path for entry in found if _is_graph_of(entry, folders)}
    for source in dict.fromkeys((*spec.sources[:1], *map(FileSource, folders))):
        with suppress(ModelFileError, OSError):  # a file that is not there any more has no imports that count
            own |= {entry.path for entry in build_entries(replace(spec, sources=(source,)))}
    return [entry for entry in found if entry.path in own]


def _is_graph_of(entry: store.Entry, folders: Sequence[Path]) -> bool:
    """Whether this is a prepared graph of one of these folders."""
    source = entry.info().get("source")
    return isinstance(source, str) and any(Path(source).is_relative_to(folder) for folder in folders)


def _copies(spec: ModelSpec) -> list[hub.HubCopy]:
    return [copy for source in spec.sources if isinstance(source, HubSource) for copy in hub.copies(source)]


def _stored_sources(spec: ModelSpec) -> list[store.Entry]:
    wheels = (sources.stored_entry(source) for source in spec.sources if isinstance(source, WheelSource))
    return [entry for entry in wheels if entry.is_complete()]


def _is_shared(spec: ModelSpec, entry: store.Entry) -> bool:
    """True if another model that is in use here comes from the same download."""
    others = (other for other in known_models().values() if other.key != spec.key)
    return any(entry in _stored_sources(other) and _entries(other) for other in others)


def _download_bytes(spec: ModelSpec) -> int:
    for source in spec.sources:
        if isinstance(source, WheelSource):
            return source.wheel_size_bytes
        if isinstance(source, HubSource) and spec.refusal(source.backend) is None:
            return source.size_bytes
    return 0


def _source_text(source: WheelSource | HubSource | FileSource) -> str:
    if isinstance(source, WheelSource):
        return f"package {source.package}=={source.version}"
    return f"{source.backend} {source.name}" if isinstance(source, HubSource) else str(source.path)


def _size(size_bytes: int, unknown: str = "-") -> str:
    return size_text(size_bytes) if size_bytes else unknown


def _fact(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return _size(value)
    if isinstance(value, dict):
        return "; ".join(f"{key}: {size_text(of) if name == 'builds' else of}" for key, of in value.items())
    if isinstance(value, list):
        return ", ".join(value)
    return ("yes" if value else "no") if isinstance(value, bool) else str(value or "")


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in (header, *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)
