"""Fields of a model's configuration, checked one by one, and what damaged files make libraries raise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinykit.errors import ModelFileError, TinykitError, UnsupportedModelError


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what a damaged file makes Python and libraries raise into a ModelFileError that names `path`."""
    try:
        yield
    except TinykitError:
        raise
    except (
        ArithmeticError,
        AssertionError,
        AttributeError,
        LookupError,
        MemoryError,
        NotImplementedError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise ModelFileError(
            f"{path} is not a readable model file: {type(error).__name__}: {error}",
            hint="The file may be truncated or corrupt; delete it and fetch it again.",
            path=path,
        ) from error


class Fields:
    """The fields of one configuration; each reader raises a ModelFileError that names file and field.

    Args:
        values: The fields as they were read.
        path: The file to name in errors.
        prefix: What precedes each name in the file, such as ``llama.``.
    """

    def __init__(self, values: Mapping[str, Any], path: Path, prefix: str = "") -> None:
        self.path = path
        self._values = values
        self._prefix = prefix

    def get(self, name: str) -> Any:
        """The value as it is, None if it is absent."""
        return self._values.get(self._prefix + name)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number above 0."""
        value = self._present(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.damaged(name, "a whole number above 0")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self._present(name, default)
        if not _is_number(value) or not 0 < value < math.inf:
            raise self.damaged(name, "a number above 0")
        return float(value)

    def mapping(self, name: str) -> dict[str, Any]:
        """A JSON object; an empty one if the field is absent or null."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise self.damaged(name, "an object")
        return dict(value or {})

    def token_ids(self, name: str, vocab_size: int) -> tuple[int, ...]:
        """One token id or a list of them, none if the field is absent."""
        value = self.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for index in ids:
            if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < vocab_size:
                raise self.damaged(name, f"a token id below {vocab_size}")
        return tuple(ids)

    def token_id(self, name: str, vocab_size: int) -> int | None:
        """One token id, None if the field is absent."""
        if isinstance(self.get(name), list):
            raise self.damaged(name, "one token id")
        return next(iter(self.token_ids(name, vocab_size)), None)

    def allow_only(self, name: str, *allowed: object) -> None:
        """Raise UnsupportedModelError where the field is present with another value than those `allowed`."""
        value = self.get(name)
        if value is not None and not any(_is_same(value, one) for one in allowed):
            raise self.unsupported(name)

    def unsupported(self, name: str) -> UnsupportedModelError:
        """The error for a field with which other arithmetic is asked for than the importer knows."""
        field = self._prefix + name
        return UnsupportedModelError(
            f"{self.path} has {field} = {_shortened(self.get(name))}, which the importer cannot compute.",
            path=self.path,
            field=field,
        )

    def damaged(self, name: str, expected: str) -> ModelFileError:
        """The error for a field that is not what it must be."""
        value, field = self.get(name), self._prefix + name
        found = "is missing" if value is None else f"is {_shortened(value)}"
        return ModelFileError(
            f"{self.path}: the field {field} {found}; it must be {expected}.", path=self.path, field=field
        )

    def _present(self, name: str, default: float | None) -> Any:
        value = self.get(name)
        return default if value is None else value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_same(value: object, allowed: object) -> bool:
    """Equal, and not merely as True equals 1; numbers are stored as float32 in places."""
    if isinstance(value, (int, float)) and isinstance(allowed, float) and _is_number(value):
        return math.isclose(value, allowed, rel_tol=1e-6)
    return type(value) is type(allowed) and value == allowed


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
