"""A saved state goes on as if nothing had happened, and nowhere else."""

import pickle

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tests.generation.test_engine import tiny_engine
from tests.generation.test_streaming import saying
from tinykit.errors import BackendError, CacheError, ModelFileError, OptionError
from tinykit.generation import state_file
from tinykit.generation.choice import score_continuations
from tinykit.generation.request import GenerationOptions, Request
from tinykit.generation.saving import restore_state, save_state

FIRST = tuple(range(3, 30))


@pytest.fixture
def engine(tmp_path):
    return tiny_engine(tmp_path)


def second_turn(completion):
    return Request((*FIRST, *completion.token_ids, 9, 8, 7), GenerationOptions(9), slot="chat")


def test_restored_slot_goes_on_like_the_saved_one(engine, tmp_path):
    first = engine.generate(Request(FIRST, GenerationOptions(9), slot="chat"))
    size_bytes = save_state(engine, tmp_path / "chat.state", slot="chat")
    assert size_bytes == (tmp_path / "chat.state").stat().st_size
    again = tiny_engine(tmp_path)
    seen = restore_state(again, tmp_path / "chat.state", slot="chat")
    assert seen == len(FIRST)  # what decode steps add is computed anew
    expected = engine.generate(second_turn(first))
    found = again.generate(second_turn(first))
    assert found == expected
    assert found.usage.kv_reused_tokens == expected.usage.kv_reused_tokens == seen


def test_last_exchange_is_saved_without_a_slot(engine, tmp_path):
    first = engine.generate(Request(FIRST, GenerationOptions(9)))
    save_state(engine, tmp_path / "s")
    again = tiny_engine(tmp_path)
    assert restore_state(again, tmp_path / "s") == len(FIRST)  # what decode steps add is computed anew
    request = Request((*FIRST, *first.token_ids, 9, 8), GenerationOptions(5))
    assert again.generate(request).usage.kv_reused_tokens == len(FIRST)


def test_titles_and_choices_are_not_the_last_chat(engine, tmp_path):
    title = Request(FIRST, GenerationOptions(2), prefix_tokens=3)
    engine.generate(title)
    score_continuations(engine, FIRST, [(9, 8)])
    with pytest.raises(OptionError, match="no chat was answered yet.*\nName a slot"):
        save_state(engine, tmp_path / "s")
    engine.generate(Request((7, *FIRST), GenerationOptions(2)))
    engine.generate(title)
    score_continuations(engine, FIRST, [(9, 8)])
    save_state(engine, tmp_path / "s")
    assert restore_state(tiny_engine(tmp_path), tmp_path / "s") == 1 + len(FIRST)


def test_what_was_restored_can_be_saved_again(engine, tmp_path):
    engine.generate(Request(FIRST, GenerationOptions(2)))
    save_state(engine, tmp_path / "s")
    again = tiny_engine(tmp_path)
    restore_state(again, tmp_path / "s")
    save_state(again, tmp_path / "t")
    saved, again = load_file(tmp_path / "s"), load_file(tmp_path / "t")
    assert saved.keys() == again.keys()
    assert all(np.array_equal(saved[name], again[name]) for name in saved)


def test_missing_folder_is_said_and_not_made(engine, tmp_path):
    engine.generate(Request(FIRST, GenerationOptions(2)))
    with pytest.raises(CacheError, match="there is no folder .*missing.\nMake the folder first"):
        save_state(engine, tmp_path / "missing" / "s")
    assert not (tmp_path / "missing").exists()


def test_nothing_to_save_is_said(engine, tmp_path):
    with pytest.raises(OptionError, match="no state to save"):
        save_state(engine, tmp_path / "s")
    engine.generate(Request(FIRST, GenerationOptions(2), slot=3))
    with pytest.raises(OptionError, match=r"Slot 'other' holds no state\.\nThose that do: 3\."):
        save_state(engine, tmp_path / "s", slot="other")
    assert not (tmp_path / "s").exists()
    assert [name for name, _ in engine.slots.items()] == [3]


def test_slot_in_use_is_neither_saved_nor_overwritten(engine, tmp_path):
    engine.generate(Request(FIRST, GenerationOptions(2)))
    save_state(engine, tmp_path / "s")
    stream = engine.stream(Request(FIRST, GenerationOptions(9), slot=0))
    next(stream)
    for call in (save_state, restore_state):
        with pytest.raises(BackendError, match="Slot 0 is in use"):
            call(engine, tmp_path / "s", slot=0)
    stream.close()


def test_failed_save_leaves_the_old_file(engine, tmp_path, monkeypatch):
    engine.generate(Request(FIRST, GenerationOptions(2)))
    path = tmp_path / "s"
    save_state(engine, path)
    before = path.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(CacheError, match="No space left"):
        save_state(engine, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir() if file.name.endswith(".part")] == []


@pytest.mark.parametrize("field", ["format", "dtype", "backend"])
def test_state_of_another_model_is_refused(engine, tmp_path, field):
    engine.generate(Request(FIRST, GenerationOptions(2)))
    path = tmp_path / "s"
    save_state(engine, path)
    metadata = {"format": "tinykit-state-1", **engine.identity} | {field: "other"}
    save_file(load_file(path), path, metadata)
    with pytest.raises(ModelFileError, match="other"):
        restore_state(engine, path)


def test_state_of_other_shapes_is_refused(engine, tmp_path):
    engine.generate(Request(FIRST, GenerationOptions(2)))
    path = tmp_path / "s"
    save_state(engine, path)
    tensors = load_file(path)
    name = next(name for name in tensors if name.startswith("state."))
    metadata = {"format": "tinykit-state-1", **engine.identity}
    for broken in (
        {**tensors, name: tensors[name][..., :-1]},
        {n: t for n, t in tensors.items() if n != name},
    ):
        save_file({n: np.ascontiguousarray(t) for n, t in broken.items()}, path, metadata)
        with pytest.raises(ModelFileError):
            restore_state(engine, path)


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", pickle.dumps({"a": 1}), b"\xff" * 100],
    ids=["empty", "text", "pickle", "bytes"],
)
def test_other_files_are_refused(engine, tmp_path, content):
    path = tmp_path / "s"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="cannot be read as a saved state"):
        restore_state(engine, path)


def test_flipped_bit_is_found(engine, tmp_path):
    engine.generate(Request(FIRST, GenerationOptions(2)))
    path = tmp_path / "s"
    save_state(engine, path)
    content = bytearray(path.read_bytes())
    content[-50] ^= 1
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="checksum does not fit"):
        restore_state(engine, path)


@pytest.mark.parametrize("cut", [10, 100, -1])
def test_truncated_file_is_refused(engine, tmp_path, cut):
    engine.generate(Request(FIRST, GenerationOptions(2)))
    path = tmp_path / "s"
    save_state(engine, path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelFileError):
        restore_state(engine, path)


def test_missing_file_is_said(engine, tmp_path):
    with pytest.raises(ModelFileError, match="nowhere"):
        restore_state(engine, tmp_path / "nowhere")


def test_scripted_states_can_be_saved_too(tmp_path):
    engine = saying("hello", 2)
    engine.generate(Request((5, 6)))
    save_state(engine, tmp_path / "s")
    assert restore_state(saying("hello", 2), tmp_path / "s") == 7


@pytest.mark.parametrize("path", [None, 3, b"bytes", "~no-such-user-here/state", "", ".", "/"], ids=repr)
def test_what_is_no_path_is_said(engine, path):
    engine.generate(Request(FIRST, GenerationOptions(2)))
    for call in (save_state, restore_state):
        with pytest.raises(OptionError, match="path must name a file"):
            call(engine, path)


def test_name_that_no_file_can_have_is_said(engine, tmp_path):
    engine.generate(Request(FIRST, GenerationOptions(2)))
    with pytest.raises(CacheError, match="cannot be written"):
        save_state(engine, tmp_path / "a\0b")


@pytest.mark.parametrize(
    "change",
    [
        lambda ids: None,
        lambda ids: ids.reshape(-1, 1),
        lambda ids: ids.reshape(-1)[0],
        lambda ids: ids.astype(np.float32),
        lambda ids: -ids,
        lambda ids: ids + 10**6,
    ],
    ids=["none", "table", "one", "floats", "below", "above"],
)
def test_damaged_token_ids_are_refused(engine, tmp_path, change):
    engine.generate(Request(FIRST, GenerationOptions(2)))
    file = tmp_path / "chat.state"
    save_state(engine, file)
    with safe_open(file, framework="numpy") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    changed = change(tensors.pop("token_ids"))
    if changed is not None:
        tensors["token_ids"] = np.array(changed, order="C")
    save_file(tensors, file, metadata)
    with pytest.raises(ModelFileError, match=r"damaged|cannot be read"):
        restore_state(engine, file)


def test_generation_during_the_write_does_not_change_what_is_written(engine, tmp_path, monkeypatch):
    engine.generate(Request(FIRST, GenerationOptions(4), slot="chat"))
    kept = {name: array.copy() for name, array in engine.slots["chat"].state.dump().items()}
    write = state_file._write

    def late(*arguments):
        engine.generate(Request((*FIRST[:5], *reversed(FIRST)), GenerationOptions(4), slot="chat"))
        return write(*arguments)

    monkeypatch.setattr(state_file, "_write", late)
    save_state(engine, tmp_path / "chat.state", slot="chat")
    written = load_file(tmp_path / "chat.state")
    for name, array in kept.items():
        np.testing.assert_array_equal(written["state." + name], array)
