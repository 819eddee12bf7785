"""Weights that lie elsewhere than beside the graph: mapped by ONNX Runtime where it can find them."""

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.test_families import FIXTURES
from tinykit.backends import onnx_files, onnx_session
from tinykit.backends.onnx import OnnxBackend
from tinykit.backends.onnx_files import LocatedGraph, locate, renamed
from tinykit.devices import DEVICES
from tinykit.errors import ModelFileError
from tinykit.graph_data import data_names

SOURCE = FIXTURES / "hub/llama/onnx/model.onnx"
FILES = ("model.onnx_data", "model.onnx_data_1")
IDS = [1, 40, 41, 42, 200, 258, 259, 260]


def open_backend(path, data=None):
    return OnnxBackend(path, dtype="fp32", context_length=512, threads=1, data=data)


def logits_of(path, data=None):
    backend = open_backend(path, data)
    try:
        return backend.forward(IDS, backend.new_state()).copy()
    finally:
        backend.close()


@pytest.fixture(scope="module")
def expected():
    return logits_of(SOURCE)


@pytest.fixture
def alone(tmp_path):
    """The graph without its weights."""
    folder = tmp_path / "store"
    folder.mkdir()
    return Path(shutil.copy(SOURCE, folder / "graph.onnx"))


@pytest.fixture
def copies(monkeypatch):
    """The files that ONNX Runtime was handed in memory, which it copies."""
    seen, mapped = [], onnx_session.mapped
    monkeypatch.setattr(onnx_session, "mapped", lambda file: seen.append(file) or mapped(file))
    return seen


def in_one_folder(tmp_path):
    return {name: Path(shutil.copy(SOURCE.with_name(name), tmp_path / name)) for name in FILES}


def in_the_hubs_cache(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "c0ffee" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    data = {}
    for at, name in enumerate(FILES):
        digest = f"{at}" * 64
        shutil.copy(SOURCE.with_name(name), blobs / digest)
        data[name] = snapshot / name
        data[name].symlink_to(Path("../../../blobs") / digest)
    return data


def in_two_folders_with_odd_names(tmp_path):
    data = {}
    for at, name in enumerate(FILES):
        folder = tmp_path / f"a folder's [näme] {at}"
        folder.mkdir()
        data[name] = Path(shutil.copy(SOURCE.with_name(name), folder / "模型 *"))
    return data


def in_a_folder_below(tmp_path):
    (tmp_path / "store" / "weights").mkdir(exist_ok=True)
    return in_one_folder(tmp_path / "store" / "weights")


PLACES = [in_one_folder, in_the_hubs_cache, in_two_folders_with_odd_names, in_a_folder_below]
if sys.platform == "win32":  # needs rights for links, and has no such names
    PLACES = [in_one_folder, in_a_folder_below]


@pytest.mark.parametrize("place", PLACES)
def test_weights_are_mapped_where_they_lie_and_give_the_same_bits(
    place, tmp_path, alone, expected, copies, monkeypatch
):
    data = place(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    np.testing.assert_array_equal(logits_of(alone, data), expected)
    assert copies == []
    monkeypatch.setattr(onnx_session, "locate", lambda path, data: None)
    np.testing.assert_array_equal(logits_of(alone, data), expected)
    assert copies == list(data.values())
    assert sorted(tmp_path.rglob("*")) == before


def test_names_with_folders_in_the_graph_are_found(tmp_path, alone, expected, copies):
    model = onnx.load(alone, load_external_data=False)
    for tensor in model.graph.initializer:
        for item in tensor.external_data:
            if item.key == "location":
                item.value = f"deep/weights/{item.value}"
    onnx.save(model, alone)
    data = {f"deep/weights/{name}": file for name, file in in_one_folder(tmp_path).items()}
    np.testing.assert_array_equal(logits_of(alone, data), expected)
    assert copies == []


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc")
def test_closing_lets_go_of_the_files(tmp_path, alone):
    def mapped_files():
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
        return [name for name in FILES if str(tmp_path / name) in maps]

    backend = open_backend(alone, in_one_folder(tmp_path))
    assert mapped_files() == list(FILES)
    backend.close()
    assert mapped_files() == []


def test_files_on_several_drives_are_handed_over_in_memory(tmp_path, alone, expected, copies, monkeypatch):
    def refuse(paths):
        raise ValueError("Paths don't have the same drive")

    monkeypatch.setattr(os.path, "commonpath", refuse)
    data = in_one_folder(tmp_path)
    np.testing.assert_array_equal(logits_of(alone, data), expected)
    assert copies == list(data.values())


def test_what_the_library_refuses_is_handed_over_in_memory(tmp_path, alone, expected, copies, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setattr(onnx_session, "locate", lambda path, data: LocatedGraph(path.read_bytes(), empty))
    data = in_one_folder(tmp_path)
    np.testing.assert_array_equal(logits_of(alone, data), expected)
    assert copies == list(data.values())


def test_other_devices_get_the_files_in_memory(tmp_path, alone, copies, monkeypatch):
    opened, seen = onnx_session.open_on, []

    def on_the_cpu(device, model, options, *, disabled):
        seen.append((device.name, model))
        return opened(onnx_session.CPU, model, options, disabled=disabled)

    monkeypatch.setattr(onnx_session, "open_on", on_the_cpu)
    data = in_one_folder(tmp_path)
    onnx_session.Graph(alone, 1, data, DEVICES["webgpu"]).close()
    assert (seen, copies) == ([("webgpu", alone)], list(data.values()))


def test_file_that_is_not_there_or_empty_is_named(tmp_path, alone):
    data = in_one_folder(tmp_path)
    data[FILES[1]].write_bytes(b"")
    with pytest.raises(ModelFileError, match=f"{FILES[1]} cannot be read"):
        open_backend(alone, data)
    data[FILES[1]].unlink()
    with pytest.raises(ModelFileError, match=f"{FILES[1]} cannot be read"):
        open_backend(alone, data)


def test_graph_that_refers_to_another_file_is_not_located(tmp_path, alone):
    """It might be any below the folder that the known ones share."""
    data = in_one_folder(tmp_path)
    assert locate(alone, data) is not None
    del data[FILES[1]]
    assert locate(alone, data) is None


def test_graph_that_is_large_itself_is_not_copied(tmp_path, alone, monkeypatch):
    data, size_bytes = in_one_folder(tmp_path), alone.stat().st_size
    monkeypatch.setattr(onnx_files, "_MOST_BYTES", size_bytes)
    assert locate(alone, data) is not None
    monkeypatch.setattr(onnx_files, "_MOST_BYTES", size_bytes - 1)
    assert locate(alone, data) is None


def test_name_that_is_no_text_is_not_located(tmp_path, alone):
    folder = tmp_path / os.fsdecode(b"\xff")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system has only names that are text")
    assert locate(alone, in_one_folder(folder)) is None


def elsewhere(name, location="old"):
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": "4"}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def model_with_weights_everywhere():
    """External data in each place in which the format allows a tensor."""
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=elsewhere("c"))], "location", [], [], [elsewhere("i")]
    )
    node = helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)
    lists = helper.make_attribute("lists", [elsewhere("a"), elsewhere("b")])
    graphs = helper.make_attribute("graphs", [inner])
    sparse = onnx.SparseTensorProto(values=elsewhere("v"), indices=elsewhere("w"), dims=[300])
    one, more = helper.make_attribute("one", sparse), helper.make_attribute("more", [sparse])
    node.attribute.extend([lists, graphs, one, more])
    graph = helper.make_graph([node], "g" * 200, [], [], [elsewhere("t"), elsewhere("location", "b" * 200)])
    graph.sparse_initializer.append(sparse)
    graph.initializer.append(helper.make_tensor("plain", TensorProto.FLOAT, [2], [0.5, 1.5]))
    opsets = [helper.make_opsetid("", 20)]
    function = helper.make_function("d", "f", ["x"], ["y"], [node], opsets)
    return helper.make_model(graph, functions=[function], producer_name="location old")


def set_locations(message, names):
    """The same change by walking all of a message."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for item in [value] if hasattr(value, "ListFields") else value:
            if field.name == "external_data" and item.key == "location":
                item.value = names[item.value]
            set_locations(item, names)


NAMES = {"old": "new/name", "b" * 200: "é"}


def encoded(names):
    return {old.encode(): new.encode() for old, new in names.items()}


def test_names_are_replaced_wherever_a_model_can_have_them():
    model = model_with_weights_everywhere()
    changed = onnx.load_from_string(renamed(model.SerializeToString(), encoded(NAMES)))
    set_locations(model, NAMES)
    assert changed == model
    assert changed.SerializeToString().count(b"old") == 1  # the producer's, which is no name of a file


GRAPHS = sorted(path for path in FIXTURES.rglob("*.onnx") if path.with_name(f"{path.name}_data").exists())


@pytest.mark.parametrize("path", GRAPHS, ids=lambda path: path.relative_to(FIXTURES).as_posix())
def test_real_graphs_are_changed_as_onnx_would(path):
    model = onnx.load(path, load_external_data=False)
    names = {name: "n" * 200 + name for name in data_names(model)}
    changed = onnx.load_from_string(renamed(path.read_bytes(), encoded(names)))
    set_locations(model, names)
    assert names and changed == model


def test_model_that_is_cut_anywhere_is_an_error_that_is_known():
    model = model_with_weights_everywhere().SerializeToString()
    failed = 0
    for end in range(len(model)):
        try:
            renamed(model[:end], encoded(NAMES))
        except (LookupError, ValueError):
            failed += 1
    assert failed > len(model) * 0.9


@pytest.mark.parametrize("junk", [b"\xff" * 1000, b"\x3b", b"not a model", bytes(100)])
def test_what_is_no_model_is_an_error_or_as_it_was(junk):
    with suppress(LookupError, ValueError):
        assert renamed(junk, {}) == junk
