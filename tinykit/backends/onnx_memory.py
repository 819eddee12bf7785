"""Zeros that take memory only where they are written, page by page, and can give it back."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from tinykit.backends.base import Array

_CAN_MAP = hasattr(mmap, "MADV_NOHUGEPAGE")  # Linux


def lazy_zeros(shape: Sequence[int], dtype: npt.DTypeLike) -> Array:
    """Zeros, whose unused parts cost nothing.

    NumPy asks for pages of 2 MB for large arrays, so that a few bytes here and there take all of it.
    """
    kind = np.dtype(dtype)
    size_bytes = math.prod(shape) * kind.itemsize
    if not _CAN_MAP or not size_bytes:
        return np.zeros(shape, kind)
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without large pages knows no such advice
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    zeros: Array = np.frombuffer(memory, kind).reshape(shape)
    return zeros


def give_back_part(array: Array, start: int, stop: int) -> None:
    """Give back the whole pages of `array[start:stop]`, whose values are lost, where that can be done."""
    view: Any = array.base
    while isinstance(view, np.ndarray):
        view = view.base
    memory = view.obj if isinstance(view, memoryview) else None
    if not isinstance(memory, mmap.mmap):
        return
    step = array.strides[0]
    first = -(-start * step // mmap.PAGESIZE) * mmap.PAGESIZE
    last = stop * step // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        memory.madvise(mmap.MADV_DONTNEED, first, last - first)
