import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from tinykit.backends import onnx_memory
from tinykit.backends.onnx_memory import give_back_part, lazy_zeros

ROW = 4 * mmap.PAGESIZE // 4  # float32 in four pages
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc and advice on memory")


def resident_pages():
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64])
def test_zeros_can_be_written_and_are_apart(dtype):
    one, other = (lazy_zeros((3, 5, 7), dtype) for _ in range(2))
    assert (one.shape, one.dtype) == ((3, 5, 7), np.dtype(dtype)) and not one.any()
    one[1] = 2
    assert not other.any() and one.sum() == 2 * 5 * 7


def test_nothing_has_no_memory():
    assert lazy_zeros((0, 3), np.float32).shape == (0, 3)
    give_back_part(lazy_zeros((0, 3), np.float32), 0, 0)


@on_linux
def test_only_what_is_written_takes_memory():
    before = resident_pages()
    zeros = lazy_zeros((4096, ROW), np.float32)  # 64 MB
    assert resident_pages() - before < 1000
    zeros[::64, :1] = 1  # 64 pages; by pages of 2 MB it would be 32 of them
    assert resident_pages() - before < 2000


@on_linux
def test_part_that_is_given_back_takes_no_memory_and_leaves_the_others():
    array = lazy_zeros((1024, ROW), np.float32)
    array[...] = 3
    full = resident_pages()
    give_back_part(array, 100, 900)
    assert full - resident_pages() > 2800  # of 3200
    assert (array[:100] == 3).all() and (array[900:] == 3).all() and not array[100:900].any()
    array[500] = 4
    assert array[500].all()


@on_linux
def test_pages_that_are_shared_with_other_rows_stay():
    array = lazy_zeros((100, 300), np.float32)  # rows begin and end within pages
    array[...] = np.arange(100)[:, None]
    give_back_part(array, 10, 90)
    kept = [*range(10), *range(90, 100)]
    assert (array[kept] == np.array(kept)[:, None]).all()


def test_other_arrays_are_left_alone():
    array = np.ones((4, ROW), np.float32)
    give_back_part(array, 0, 4)
    assert array.all()


def test_elsewhere_it_is_numpy_that_gives_them(monkeypatch):
    monkeypatch.setattr(onnx_memory, "_CAN_MAP", False)
    zeros = lazy_zeros((2, 3), np.float16)
    assert zeros.shape == (2, 3) and zeros.base is None and not zeros.any()
