import pytest

from tinykit import inventory, registry, store
from tinykit.loading import build_entry
from tinykit.registry import FileSource, ModelSpec

KEY = "smollm2-135m"


def build(entry):
    with store.building(entry) as folder:
        (folder / "model.onnx").write_bytes(b"x" * 1000)
    return entry


def row(key):
    return next(row for row in inventory.model_rows() if row["key"] == key)


def test_builds_are_the_imports_of_the_model():
    entries = [build(build_entry(registry.get_model(KEY), dtype)) for dtype in ("auto", "q8")]
    assert row(KEY)["builds"] == {entry.path.name: entry.size_bytes for entry in entries}
    assert row("smollm2-135m-titles")["builds"] == {}


def test_import_of_other_files_is_not_the_model(tmp_path):
    build(store.entry("models", KEY, "0123456789ab-q8-v1"))
    path = tmp_path / f"{KEY}.gguf"
    path.write_bytes(b"GGUF")
    build(build_entry(registry.get_model(path), "q8"))
    build(build_entry(ModelSpec(KEY, "Mine", "", sources=(FileSource(path),)), "q8"))
    assert row(KEY)["builds"] == {}
    assert {
        line.split()[1] for line in inventory.model_table().splitlines() if line.startswith(f"{KEY} ")
    } <= {
        "no",
        "fetched",
    }


def test_file_named_like_a_model_has_its_own_folder(tmp_path):
    path = tmp_path / f"{KEY}.gguf"
    path.write_bytes(b"GGUF")
    known, own = (build_entry(registry.get_model(name), "q8").path.parent for name in (KEY, path))
    assert known != own


def test_registered_file_that_is_gone_has_no_builds(tmp_path, monkeypatch):
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"GGUF")
    spec = ModelSpec("mine", "Mine", "llama", sources=(FileSource(path),))
    monkeypatch.setitem(registry.MODELS, "mine", spec)
    entry = build(build_entry(spec, "q8"))
    assert list(row("mine")["builds"]) == [entry.path.name]
    path.unlink()
    assert row("mine")["builds"] == {}


@pytest.mark.parametrize("key", list(registry.MODELS))
def test_every_model_has_a_line(key):
    header, *lines = inventory.model_table().splitlines()
    assert header.split()[:4] == ["model", "here", "on", "disk"]
    assert sum(line.startswith(f"{key} ") for line in lines) == 1


def test_columns_are_as_wide_as_their_widest_cell():
    assert inventory.text_table(("a", "long"), [("wide", "b"), ("c", "")]) == "a     long\nwide  b\nc"
