"""What is on this machine: models with their sizes, as rows and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tinykit import sources, store
from tinykit.errors import ModelFileError
from tinykit.progress import size_text
from tinykit.registry import MODELS, ModelSpec, WheelSource


def model_rows() -> list[dict[str, Any]]:
    """One row for each known model; ``builds`` are the imports that are ready, with their bytes."""
    return [_row(spec) for spec in MODELS.values()]


def _row(spec: ModelSpec) -> dict[str, Any]:
    source = sources.locate(spec)
    builds = {e.path.name: e.size_bytes for e in _builds(spec)}
    return {
        "key": spec.key,
        "label": spec.label,
        "family": spec.family,
        "dtype": spec.dtype,
        "good_for": spec.good_for,
        "license": spec.license,
        "download_bytes": sum(s.wheel_size_bytes for s in spec.sources[:1] if isinstance(s, WheelSource)),
        "source": str(source) if source else None,
        "builds": builds,
    }


def _builds(spec: ModelSpec) -> list[store.Entry]:
    """The finished imports of this model; one from other files may stand beside them under the same key."""
    folder = store.entry("models", spec.key).path
    found = [entry for entry in store.entries() if entry.path.parent == folder]
    if not found:
        return []
    from tinykit.loading import DTYPES, build_entry  # numpy, which a machine without imports is spared

    with suppress(ModelFileError):  # a file that is not there any more has no imports that count
        own = {build_entry(spec, dtype).path for dtype in DTYPES}
        return [entry for entry in found if entry.path in own]
    return []


def model_table() -> str:
    """The same as text."""
    rows = [
        (
            row["key"],
            "ready" if row["builds"] else ("fetched" if row["source"] else "no"),
            size_text(sum(row["builds"].values())) if row["builds"] else "-",
            size_text(row["download_bytes"]),
            row["family"],
            row["dtype"] or "auto",
            row["good_for"],
        )
        for row in model_rows()
    ]
    return text_table(("model", "here", "on disk", "download", "family", "dtype", "good for"), rows)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in (header, *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)
