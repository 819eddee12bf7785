"""The state of a recipe's prefix, kept on disk: a shortcut that changes nothing and harms nothing."""

import errno
import logging
from dataclasses import replace

import numpy as np
import pytest

from tests.generation.test_engine import tiny_engine
from tinykit.generation import prefix_files, state_file
from tinykit.generation.engine import Engine
from tinykit.generation.prefix_files import FEWEST_TOKENS, MOST_FILES, PrefixFiles
from tinykit.generation.request import GenerationOptions, Request

PREFIX = tuple(range(3, 23))
MADE_BY = {"build": "one"}


@pytest.fixture
def plain(tmp_path):
    return tiny_engine(tmp_path)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "prefixes"


def files(engine, folder, identity=None):
    return PrefixFiles(folder, engine.backend, lambda: identity or MADE_BY)


def fresh(engine, folder, identity=None):
    """An engine of a new process: nothing is kept in memory."""
    kept = files(engine, folder, identity)
    return Engine(engine.backend, engine.tokenizer, sorted(engine.eos_ids), cache_bytes=1 << 20, files=kept)


def title(*message, prefix=PREFIX, **options):
    return Request((*prefix, *message), GenerationOptions(8), len(prefix), **options)


def reused(engine, request):
    return engine.generate(request).usage.kv_reused_tokens


def test_next_process_reads_what_the_first_has_written_and_says_the_same(plain, folder):
    first = fresh(plain, folder)
    assert reused(first, title(30, 31, 32)) == 0
    assert len(list(folder.iterdir())) == 1
    for message in ([30, 31, 32], [50, 51], [7, 8, 9] * 9):
        second = fresh(plain, folder).generate(title(*message))
        assert second.usage.kv_reused_tokens == len(PREFIX)
        assert second == plain.generate(title(*message, reuse=False))


@pytest.mark.parametrize("slot", [None, "s"])
def test_read_state_serves_further_prompts_from_memory(plain, folder, slot):
    fresh(plain, folder).generate(title(30, 31, 32))
    engine = fresh(plain, folder)
    assert reused(engine, title(40, 41, slot=slot)) == len(PREFIX)
    for file in folder.iterdir():
        file.unlink()
    assert reused(engine, title(60, 61, slot=slot)) == len(PREFIX)


def test_state_is_that_of_the_prefix_computed_alone(plain, folder):
    fresh(plain, folder).generate(title(30, 31, 32))
    state = plain.backend.new_state()
    plain.backend.forward(PREFIX, state)
    found = files(plain, folder).read(PREFIX)
    assert found.length == len(PREFIX)
    for name, array in state.dump().items():
        np.testing.assert_array_equal(found.dump()[name], array)


def cut_short(file):
    file.write_bytes(file.read_bytes()[:-100])


def flip_a_bit(file):
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("harm", [cut_short, flip_a_bit, lambda file: file.write_bytes(b"")])
def test_broken_file_is_told_ignored_and_made_anew(plain, folder, harm, caplog):
    fresh(plain, folder).generate(title(30, 31, 32))
    (file,) = folder.iterdir()
    harm(file)
    with caplog.at_level(logging.INFO, "tinykit"):
        engine = fresh(plain, folder)
        assert engine.generate(title(40, 41)) == plain.generate(title(40, 41, reuse=False))
    assert "made anew" in caplog.text
    assert reused(fresh(plain, folder), title(40, 41)) == len(PREFIX)


def test_file_of_other_tokens_under_this_name_is_ignored(plain, folder):
    other = tuple(reversed(PREFIX))
    fresh(plain, folder).generate(title(30, 31, 32))
    (file,) = folder.iterdir()
    fresh(plain, folder).generate(title(30, 31, 32, prefix=other))
    (second,) = set(folder.iterdir()) - {file}
    second.write_bytes(file.read_bytes())
    engine = fresh(plain, folder)
    assert reused(engine, title(30, 31, 32, prefix=other)) == 0


@pytest.mark.parametrize("name", ["build", "processor", "library"])
def test_state_of_anything_else_is_not_used(plain, folder, name):
    fresh(plain, folder).generate(title(30, 31, 32))
    assert reused(fresh(plain, folder, {**MADE_BY, name: "two"}), title(30, 31, 32)) == 0


@pytest.mark.parametrize("change", [{"dtype": "q8"}, {"device": "cuda"}, {"threads": 77}, {"backend": "mlx"}])
def test_other_precision_device_and_threads_have_files_of_their_own(plain, folder, change):
    fresh(plain, folder).generate(title(30, 31, 32))
    assert not files(plain, folder).lacks(PREFIX)
    plain.backend.info = replace(plain.backend.info, **change)
    assert files(plain, folder).lacks(PREFIX)


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_is_told_once_and_harms_nothing(plain, folder, monkeypatch, caplog):
    monkeypatch.setattr("safetensors.numpy.save_file", no_room)
    engine = fresh(plain, folder)
    with caplog.at_level(logging.INFO, "tinykit"):
        assert engine.generate(title(30, 31)) == plain.generate(title(30, 31, reuse=False))
        engine.cache.clear()
        engine.generate(title(30, 31))
    assert caplog.text.count("not kept on disk") == 1
    assert list(folder.iterdir()) == []


def test_folder_that_cannot_be_made_harms_nothing(plain, tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "prefixes", tmp_path / "gone" / "prefixes"):
        engine = fresh(plain, folder)
        assert engine.generate(title(30, 31)) == plain.generate(title(30, 31, reuse=False))
    assert not (tmp_path / "gone").exists()


def test_oldest_files_go_when_there_are_many(plain, folder):
    kept = files(plain, folder)
    state = plain.backend.new_state()
    plain.backend.forward(PREFIX, state)
    for first in range(MOST_FILES + 3):
        kept.write((first, *PREFIX[1:]), state)
    assert len(list(folder.iterdir())) == MOST_FILES
    assert kept.lacks((0, *PREFIX[1:]))
    assert not kept.lacks((MOST_FILES + 2, *PREFIX[1:]))


def test_short_large_and_unshared_beginnings_are_not_written(plain, folder, monkeypatch):
    few = PREFIX[: FEWEST_TOKENS - 1]
    fresh(plain, folder).generate(title(30, 31, prefix=few))
    fresh(plain, folder).generate(Request((*PREFIX, 30), GenerationOptions(4)))
    fresh(plain, folder).generate(title(30))  # one token more would be computed by other kernels
    fresh(plain, folder).generate(title(30, 31, reuse=False))
    monkeypatch.setattr(prefix_files, "MOST_BYTES", 1)
    fresh(plain, folder).generate(title(30, 31))
    assert not folder.exists()


def test_state_that_began_with_another_prompts_is_not_written(plain, folder):
    engine = fresh(plain, folder)
    engine.generate(Request((*PREFIX[:15], 9, 9, 9), GenerationOptions(4)))
    assert reused(engine, title(30, 31)) > 0
    assert not folder.exists()


def test_damaged_state_names_are_found_by_the_checksum(plain, folder):
    fresh(plain, folder).generate(title(30, 31))
    (file,) = folder.iterdir()
    ids, arrays = state_file.read_state(file, MADE_BY, plain.backend.info.vocab_size)
    assert ids == PREFIX
    assert {array.shape[2] for array in arrays.values()} == {len(PREFIX)}
