from dataclasses import replace

import pytest

from tests.hub_server import REPO
from tests.index_server import make_spec, make_wheel
from tinykit import inventory, registry, sources, store
from tinykit.builds import build_entries
from tinykit.errors import ChecksumError
from tinykit.loading import build_entry
from tinykit.registry import FileSource, HubSource, ModelSpec

WEIGHTS, WHEEL = make_wheel()
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


def test_builds_of_earlier_weights_are_shown_and_can_be_removed_alone():
    spec = registry.get_model(KEY)
    current = [
        build(entry)
        for entry in build_entries(spec)
        if "-q8-" in entry.path.name or "-float-" in entry.path.name
    ]
    old = build(store.entry("models", KEY, "0123456789ab-q8-v1"))
    assert list(row(KEY)["builds"]) == sorted(entry.path.name for entry in current)
    assert row(KEY)["old_builds"] == {old.path.name: old.size_bytes}
    table = inventory.model_table()
    assert f"of no use any more:\n1.2 kB of {KEY}\nRemove it with: tinykit models remove --old" in table
    removal = inventory.remove_old_builds(spec)
    assert removal.freed_bytes > 0 and not old.path.exists()
    assert list(row(KEY)["builds"]) == sorted(entry.path.name for entry in current)
    assert "of no use" not in inventory.model_table()
    assert inventory.remove_old_builds(spec).freed_bytes == 0


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


def entry_of(spec):
    return build_entry(spec, "q8")


@pytest.fixture
def models(monkeypatch):
    """Two models out of one wheel, which is here."""
    spec = make_spec(WEIGHTS, WHEEL)
    specs = {key: replace(spec, key=key) for key in ("first", "second")}
    monkeypatch.setattr(registry, "MODELS", specs)
    with store.building(sources.stored_entry(spec.sources[0])) as folder:
        (folder / "tiny.gguf").write_bytes(WEIGHTS)
    return specs


def test_rows(models):
    entry = build(entry_of(models["first"]))
    assert entry.size_bytes > 1000
    first, second = inventory.model_rows()
    assert (first["here"], first["disk_bytes"], first["builds"]) == (
        "ready",
        entry.size_bytes,
        {entry.path.name: entry.size_bytes},
    )
    assert (second["here"], second["disk_bytes"]) == ("fetched", 0)
    assert first["download_bytes"] == len(WHEEL)
    assert first["from"] == ["package fake-weights==1.0"]


def test_verify_reads_imports_and_downloads(models):
    build(entry_of(models["first"]))
    assert inventory.verify_model(models["first"]) == 2
    assert inventory.verify_model(models["second"]) == 1
    path = entry_of(models["first"]).path / "model.onnx"
    path.write_bytes(b"y" * 1000)
    with pytest.raises(ChecksumError, match="has changed"):
        inventory.verify_model(models["first"])


def test_remove_keeps_a_download_that_another_model_needs(models):
    build(entry_of(models["first"]))
    build(entry_of(models["second"]))
    entry = sources.stored_entry(models["first"].sources[0])
    assert inventory.remove_model(models["first"]).kept == (entry.path,)
    assert entry.is_complete()
    removal = inventory.remove_model(models["second"])
    assert removal.kept == () and removal.freed_bytes > len(WEIGHTS)
    assert store.entries() == []


def test_sizes_that_nobody_noted_and_models_that_one_backend_refuses(monkeypatch):
    mlx = HubSource("a/mlx", backend="mlx", size_bytes=984_000_000)
    specs = {
        "odd": ModelSpec(
            "odd", "Odd", "qwen3", (HubSource(REPO, size_bytes=1), mlx), refusals=(("onnx", "no"),)
        ),
        "new": ModelSpec("new", "New", "", (HubSource(REPO),)),
    }
    monkeypatch.setattr(registry, "MODELS", specs)
    odd, new = inventory.model_table().splitlines()[1:3]
    assert odd.split()[:5] == ["odd", "no", "-", "984.0", "MB"]
    assert new.split() == ["new", "no", "-", "?", "?", "auto"]
    assert (
        inventory.model_table()
        .splitlines()[-1]
        .startswith("?  not noted; 'tinykit models info MODEL --remote'")
    )
    del specs["new"]
    assert "not noted" not in inventory.model_table()


def test_info_shows_facts_one_a_line(models):
    lines = inventory.info_table(inventory.model_row(models["first"])).splitlines()
    facts = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in lines}
    assert facts["key"] == "first" and facts["here"] == "fetched" and facts["thinking"] == "no"
    assert "refusals" not in facts
