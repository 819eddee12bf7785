"""Tensors of safetensors files as float32, bfloat16 included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from tinykit.convert.checkpoint import Floats
from tinykit.errors import ModelFileError


class TensorFile:
    """A safetensors file, opened for reading one tensor at a time.

    Raises:
        ModelFileError: the file is missing, truncated or corrupt.
    """

    def __init__(self, path: Path) -> None:
        import ml_dtypes  # noqa: F401  # makes numpy know bfloat16
        from safetensors import safe_open

        if not path.is_file():
            raise ModelFileError(f"There is no file {path}.", path=path)
        self.path = path
        with _readable(path):
            self._file = cast(Any, safe_open)(str(path), framework="numpy")
            self.names: frozenset[str] = frozenset(self._file.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, without reading it."""
        return tuple(self._file.get_slice(name).get_shape())

    def floats(self, name: str) -> Floats:
        """The tensor as float32.

        Raises:
            ModelFileError: it holds values that are not finite.
        """
        with _readable(self.path):
            values = np.asarray(self._file.get_tensor(name), np.float32)
        if not np.isfinite(values).all():
            raise ModelFileError(f"{self.path}: the tensor {name} holds values that are not finite.")
        return values


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, ValueError, TypeError, OSError) as error:
        raise ModelFileError(
            f"{path} is not a readable safetensors file: {error}",
            hint="The file may be truncated or corrupt; make or fetch it again.",
            path=path,
        ) from error
