"""Rows out of what users have: a list, a DataFrame of pandas or polars, a JSONL, CSV or JSON file."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tinykit.errors import OptionError

ENDINGS = (".jsonl", ".ndjson", ".json", ".csv")


def read_rows(source: Any, *, columns: Sequence[str]) -> Iterable[Any]:
    """The rows of a source as it has them; those of a DataFrame or CSV file as dicts.

    Args:
        source: A list or other iterable, a DataFrame, or the path of a file. In a CSV file an empty cell
            of the column `title` is None; the missing values of a DataFrame are all None.
        columns: What a DataFrame must have.

    Raises:
        OptionError: it is none of these, or the file cannot be read.
    """
    if isinstance(source, str | Path):
        return _rows_of_file(Path(source).expanduser())
    if hasattr(source, "columns"):
        return _rows_of_frame(source, columns)
    if isinstance(source, Iterable) and not isinstance(source, Mapping | bytes):
        return source
    raise OptionError(
        f"Cases must be a list of ({', '.join(columns)}), a DataFrame or a path, "
        f"not {type(source).__name__}.",
        hint='For example: ["a first message", "another one"]',
        name="cases",
        value=source,
    )


def _rows_of_frame(frame: Any, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of a DataFrame of pandas or polars, its missing values as None."""
    missing = [name for name in columns if name not in list(frame.columns)]
    if missing:
        raise OptionError(
            f"The DataFrame has no column {missing[0]!r}; it has {', '.join(map(str, frame.columns))}.",
            hint=f"Rename the one that is meant: frame.rename(columns={{...: {missing[0]!r}}})",
            name="cases",
            value=list(frame.columns),
        )
    records = frame.to_dicts() if hasattr(frame, "to_dicts") else frame.to_dict("records")
    return [
        {name: value if _is_there(value) else None for name, value in record.items()} for record in records
    ]


def _is_there(value: Any) -> bool:
    """Whether a cell holds something: pandas marks what is missing by NaN or by an NA that is neither."""
    if isinstance(value, str | list | tuple):
        return True
    return not (value is None or value != value or type(value).__name__ == "NAType")


def _rows_of_file(path: Path) -> Iterable[Any]:
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise OptionError(
            f"{path} must end in one of {', '.join(ENDINGS)}.",
            hint="For a single message, or lines of text: give a list.",
            name="cases",
            value=str(path),
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = "Save it as UTF-8." if isinstance(error, UnicodeDecodeError) else "Is it the right path?"
        raise OptionError(
            f"{path} cannot be read: {reason}.", hint=hint, name="cases", value=str(path)
        ) from error
    if ending == ".csv":
        return _rows_of_csv(text)
    return _rows_of_json(text, path) if ending == ".json" else list(_rows_of_lines(text, path))


def _rows_of_csv(text: str) -> list[dict[str, Any]]:
    rows = csv.DictReader(io.StringIO(text, newline=""))
    return [{**row, "title": row["title"] or None} if "title" in row else dict(row) for row in rows]


def _rows_of_json(text: str, path: Path) -> Iterable[Any]:
    rows = _parsed(text, str(path))
    if not isinstance(rows, list):
        raise OptionError(f"{path} must hold a list of chats or pairs.", name="cases", value=str(path))
    return rows


def _rows_of_lines(text: str, path: Path) -> Iterator[Any]:
    # not splitlines, which would also split at characters that JSON allows inside a string
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield _parsed(line, f"{path}, line {number},")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(
            f"{where} is not valid JSON: {error}",
            hint="Mend it, or leave it out.",
            name="cases",
            value=text[:200],
        ) from error
