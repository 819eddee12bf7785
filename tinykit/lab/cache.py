"""Titles of earlier runs, by key, so that a changed sweep makes only what is new.

A folder of JSONL files, one for each first byte of a key. A line is appended in one write; one that is torn
is no row. Failures are not kept.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tinykit import store
from tinykit.lab.folder import row_line
from tinykit.lab.plan import Cell
from tinykit.lab.rows import Row

_DIGITS = 2


class RowCache:
    """Rows by key, in a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder if folder is not None else store.home() / "lab" / "cache"
        self._shards: dict[str, dict[str, Row]] = {}

    def get(self, key: str, cell: Cell, recipe: str, *, batch_size: int) -> Row | None:
        """A row for this cell; one that was made in a larger batch than wanted tells no honest time."""
        row = self._shard(key[:_DIGITS]).get(key)
        if row is None or row.batch_size > batch_size:
            return None
        return as_cached(row, cell, recipe)

    def put(self, row: Row) -> None:
        """Keep a row that did not fail."""
        if row.status == "failed" or row.cached or not row.key:
            return
        shard = self._shard(row.key[:_DIGITS])
        known = shard.get(row.key)
        if known is not None and known.batch_size <= row.batch_size:
            return
        shard[row.key] = row
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._path(row.key[:_DIGITS]).open("ab") as file:
            file.write(row_line(row))

    def _path(self, digits: str) -> Path:
        return self.folder / f"{digits}.jsonl"

    def _shard(self, digits: str) -> dict[str, Row]:
        if digits not in self._shards:
            self._shards[digits] = _read(self._path(digits))
        return self._shards[digits]


def as_cached(row: Row, cell: Cell, recipe: str) -> Row:
    """A row of another cell or run for this one; its times and its machine stay."""
    return replace(row, case=cell.case, variant=cell.variant, repeat=cell.repeat, recipe=recipe, cached=True)


def _read(path: Path) -> dict[str, Row]:
    found: dict[str, Row] = {}
    try:
        data = path.read_bytes()
    except OSError:
        return found
    for line in data.split(b"\n"):
        try:
            row = Row.from_dict(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue  # torn, or of another version
        found[row.key] = row
    return found
