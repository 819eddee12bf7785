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
from tinykit.errors import CacheError, ChecksumError, ModelFileError, UnknownModelError
from tinykit.markup import Table
from tinykit.model_config import read_config
from tinykit.progress import size_text
from tinykit.registry import FileSource, HubSource, ModelSpec, WheelSource, get_model, known_models

_OF_THIS_MACHINE = ("disk_bytes", "source", "builds")


@dataclass(frozen=True)
class Removal:
    """What `remove_model` did.

    Attributes:
        freed_bytes: Room that is free again.
        kept: Files of the model that were left where they are, because they are not ours alone.
        hint: How to remove those that others put there; None if there is nothing to say.
    """

    freed_bytes: int
    kept: tuple[Path, ...]
    hint: str | None = None


def model_rows() -> list[dict[str, Any]]:
    """One row for each known model, then one for each other model that is here, by its hub id or file.

    `builds` are the imports that are ready, with their bytes; `old_builds` those that are of no use any more,
    because the weights, the adapter or tinykit have changed, or that another file of this name has left.
    """
    entries = store.entries(damaged=True)
    known = [model_row(spec, entries) for spec in known_models().values()]
    others = [{**model_row(spec, entries), "is_known": False} for spec in other_models(entries)]
    return [*known, *others]


def model_row(spec: ModelSpec, entries: Sequence[store.Entry] | None = None) -> dict[str, Any]:
    """What is known of a model, and what of it is here; uses no network."""
    found, old = _sorted_builds(spec, entries)
    builds = {entry.path.name: entry.size_bytes for entry in found}
    copies = _copies(spec)
    path = sources.locate(spec)
    if path is None and copies:
        path = copies[0].path
    entries_damaged = any(entry.is_damaged for entry in (*found, *_stored_sources(spec)))
    is_damaged = entries_damaged or any(copy.is_damaged for copy in copies)
    return {
        "key": spec.key,
        "label": spec.label,
        "group": spec.group,
        "task": spec.task,
        "family": spec.family or _family(copies),
        "dtype": spec.dtype,
        "context_length": spec.context_length,
        "thinking": spec.thinking,
        "good_for": spec.good_for,
        "description": spec.description,
        "license": spec.license,
        "refusals": dict(spec.refusals),
        "from": [_source_text(source) for source in spec.sources],
        "download_bytes": _download_bytes(spec) or (copies[0].size_bytes if copies else 0),
        "here": "damaged" if is_damaged else "ready" if builds else "fetched" if path else "no",
        "disk_bytes": sum(builds.values()) + _copies_bytes(copies),
        "source": str(path) if path else None,
        "builds": builds,
        "old_builds": {entry.path.name: entry.size_bytes for entry in old},
        "is_known": True,
    }


def other_models(entries: Sequence[store.Entry] | None = None) -> list[ModelSpec]:
    """Models that are here without being known: fetched by hub id, or imported from a file or an adapter."""
    entries = store.entries(damaged=True) if entries is None else entries
    known = known_models()
    noted = {_identity(s) for spec in known.values() for s in spec.sources if isinstance(s, HubSource)}
    found = {
        source.name: ModelSpec(source.name, source.repo, "", (source,), good_for="(by its hub id)")
        for source in hub.sources_here()
        if _identity(source) not in noted
    }
    folders = {store.entry("models", key).path for key in (*known, *found)}
    for entry in entries:
        info = entry.info()
        if entry.path.parent.parent == store.entry("models").path and entry.path.parent not in folders:
            key = str(info.get("model", entry.path.parent.name))
            where = info.get("adapter") or info.get("origin") or info.get("source")
            found.setdefault(key, ModelSpec(key, key, "", (), good_for=f"(made from {where or 'a file'})"))
    return list(found.values())


def find_model(name: str) -> ModelSpec:
    """The model with this name, as `get_model` finds it, or what is left here of one that it does not find.

    Raises:
        UnknownModelError: There is neither.
    """
    spec: ModelSpec | None = None
    try:
        spec = get_model(name)
        if _is_here(spec) or not all(isinstance(source, HubSource) for source in spec.sources):
            return spec
    except UnknownModelError:
        pass
    left = next((other for other in other_models() if other.key == name), spec)
    return get_model(name) if left is None else left


def model_table() -> str:
    """The same as text."""
    found = model_rows()
    rows = [
        (
            row["key"],
            row["here"],
            _size(row["disk_bytes"]),
            _size(row["download_bytes"], unknown="?" if row["from"] else "-"),
            row["family"] or "?",
            row["dtype"] or "auto",
            row["good_for"],
        )
        for row in found
    ]
    table = text_table(("model", "here", "on disk", "download", "family", "dtype", "good for"), rows)
    asks = "\n\n?  not noted; 'tinykit models info MODEL --remote' asks the hub"
    return table + (asks if any(row[3] == "?" for row in rows) else "") + _old_builds_note(found)


def _old_builds_note(rows: Sequence[dict[str, Any]]) -> str:
    old = {row["key"]: sum(row["old_builds"].values()) for row in rows if row["old_builds"]}
    if not old:
        return ""
    sizes = "\n".join(f"{size_text(size)} of {key}" for key, size in old.items())
    remedy = "Remove it with: tinykit models remove --old --all"
    return f"\n\nAlso on disk, and of no use any more:\n{sizes}\n{remedy}"


def models_view(*, with_sizes: bool = False) -> Table:
    """The models for a notebook; how much lies on the disk is left out if not asked for."""
    header = ["model", "for", "download", "family", "here"] + ["on disk"] * with_sizes
    rows = [
        [
            row["key"],
            row["good_for"],
            _size(row["download_bytes"], unknown="?" if row["from"] else "-"),
            row["family"] or "?",
            row["here"],
            *([_size(row["disk_bytes"])] if with_sizes else []),
        ]
        for row in model_rows()
    ]
    return Table.of("Models that are known or here", header, rows, {2, 5})


def info_view(row: dict[str, Any], *, with_paths: bool = False) -> Table:
    """A row of `model_rows` for a notebook, one fact a line; paths and sizes of this machine on request."""
    kept = {name: of for name, of in row.items() if with_paths or name not in _OF_THIS_MACHINE}
    shown = [(name.replace("_", " ").removesuffix(" bytes"), _fact(name, of)) for name, of in kept.items()]
    return Table.of(str(row["key"]), ("fact", "value"), [(name, value) for name, value in shown if value])


def info_table(row: dict[str, Any]) -> str:
    """A row of `model_rows` as text, one fact a line."""
    shown = [
        (name.replace("_", " ").removesuffix(" bytes"), _fact(name, value)) for name, value in row.items()
    ]
    return text_table(("fact", "value"), [(name, value) for name, value in shown if value])


def verify_model(spec: ModelSpec) -> int:
    """Read every file of a model that is here and compare it with its hash.

    What has changed is marked as damaged: it is not used any more, but fetched or made again.

    Returns:
        How many copies and imports were checked; 0 if nothing is here.

    Raises:
        ChecksumError: A file has changed or is missing.
    """
    error: ChecksumError | None = None
    checked = _things(spec)
    for thing in checked:
        try:
            thing.verify()
        except ChecksumError as exc:
            error = error or exc
            _mark(thing, damaged=True)
        else:
            if thing.is_damaged:
                _mark(thing, damaged=False)
    if error is not None:
        raise error
    return len(checked)


def drop_damaged(spec: ModelSpec) -> None:
    """Remove what of our own store is marked as damaged, so that it is made again."""
    for entry in (*_builds(spec), *_stored_sources(spec)):
        if entry.is_damaged:
            entry.remove()


def damaged_dtypes(spec: ModelSpec) -> list[str]:
    """Precisions of a hub model whose copies are marked as damaged."""
    return [copy.dtype for copy in _copies(spec) if copy.is_damaged]


def remove_old_builds(spec: ModelSpec) -> Removal:
    """Remove what was made under a model's name and is of no use any more; the model stays as it is."""
    _, old = _sorted_builds(spec)
    freed_bytes = sum(entry.size_bytes for entry in old)
    for entry in old:
        entry.remove()
    return Removal(freed_bytes, ())


def remove_model(spec: ModelSpec) -> Removal:
    """Remove a model's imports and downloads from our store, and nothing outside it."""
    copies = _copies(spec)
    kept = [copy.path for copy in copies]
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
    left = sources.locate(spec)  # a file of the user's, or weights in an installed package
    if left is not None and left.exists() and not left.is_relative_to(store.home()):
        kept.append(left)
    return Removal(freed_bytes, tuple(dict.fromkeys(kept)), _removal_hint(copies))


def _removal_hint(copies: Sequence[hub.HubCopy]) -> str | None:
    if not copies:
        return None
    repos = " ".join(dict.fromkeys(f"model/{copy.source.repo}" for copy in copies))
    return (
        f"The hub's cache belongs to other programs too, so {size_text(_copies_bytes(copies))} stay there. "
        f"Remove them with: hf cache rm {repos}"
    )


def _is_here(spec: ModelSpec) -> bool:
    return bool(_things(spec)) or sources.locate(spec) is not None


def _things(spec: ModelSpec) -> list[store.Entry | hub.HubCopy]:
    """All that can be checked of a model."""
    return [*_builds(spec), *_stored_sources(spec), *_copies(spec)]


def _mark(thing: store.Entry | hub.HubCopy, *, damaged: bool) -> None:
    """Note what a check found; where that cannot be written, the error alone must do."""
    if isinstance(thing, hub.HubCopy):
        hub.mark(thing, damaged=damaged)
    else:
        with suppress(CacheError):
            thing.mark(damaged=damaged)


def _entries(spec: ModelSpec, entries: Sequence[store.Entry] | None = None) -> list[store.Entry]:
    """All that was made under this model's key, also from other files."""
    folder = store.entry("models", spec.key).path
    found = store.entries(damaged=True) if entries is None else entries
    return [entry for entry in found if entry.path.parent == folder]


def _builds(spec: ModelSpec, entries: Sequence[store.Entry] | None = None) -> list[store.Entry]:
    """The finished imports and prepared graphs of this model."""
    return _sorted_builds(spec, entries)[0]


def _sorted_builds(
    spec: ModelSpec, entries: Sequence[store.Entry] | None = None
) -> tuple[list[store.Entry], list[store.Entry]]:
    """What was made under this model's key: of the model as it is, and of what it was or of other files."""
    found = _entries(spec, entries)
    if not found or not spec.sources:
        return found, []
    from tinykit.builds import build_entries

    folders = [source.path for source in spec.sources if isinstance(source, FileSource)]
    folders += [copy.path for copy in _copies(spec)]
    own = {entry.path for entry in found if _is_graph_of(entry, folders)}
    for source in dict.fromkeys((*spec.sources[:1], *map(FileSource, folders))):
        with suppress(ModelFileError, OSError):  # a file that is not there any more has no imports that count
            own |= {entry.path for entry in build_entries(replace(spec, sources=(source,)))}
    mine = [entry for entry in found if entry.path in own]
    return mine, [entry for entry in found if entry.path not in own]


def _is_graph_of(entry: store.Entry, folders: Sequence[Path]) -> bool:
    """Whether this is a prepared graph of one of these folders."""
    source = entry.info().get("source")
    return isinstance(source, str) and any(Path(source).is_relative_to(folder) for folder in folders)


def _copies(spec: ModelSpec) -> list[hub.HubCopy]:
    return [copy for source in spec.sources if isinstance(source, HubSource) for copy in hub.copies(source)]


def _stored_sources(spec: ModelSpec) -> list[store.Entry]:
    wheels = (sources.stored_entry(source) for source in spec.sources if isinstance(source, WheelSource))
    return [entry for entry in wheels if entry.is_complete() or entry.is_damaged]


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


def _copies_bytes(copies: Sequence[hub.HubCopy]) -> int:
    """Bytes of all files; several precisions share tokenizer and configuration."""
    return sum(
        {
            (copy.folder, name): file.size_bytes for copy in copies for name, file in copy.files.items()
        }.values()
    )


def _family(copies: Sequence[hub.HubCopy]) -> str:
    for copy in copies:
        configs = {Path(name).name: copy.folder / name for name in copy.files if name.endswith("config.json")}
        with suppress(ModelFileError):
            return read_config(configs).family
    return ""


def _identity(source: HubSource) -> tuple[str, str | None, str, str]:
    return source.repo, source.revision, source.backend, source.gguf


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
        is_sizes = name in ("builds", "old_builds", "dtypes")
        return "; ".join(f"{key}: {size_text(of) if is_sizes else of}" for key, of in value.items())
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
