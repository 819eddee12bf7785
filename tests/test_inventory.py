from dataclasses import replace

import pytest

from tests.hub_server import REPO
from tests.index_server import make_spec, make_wheel
from tinykit import inventory, registry, sources, store
from tinykit.errors import ChecksumError
from tinykit.registry import HubSource, ModelSpec

WEIGHTS, WHEEL = make_wheel()


def build(name, content=b"x" * 100):
    with store.building(store.entry("models", name, "0-q8-v1")) as folder:
        (folder / "model.onnx").write_bytes(content)


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
    build("first")
    first, second = inventory.model_rows()
    assert (first["here"], first["disk_bytes"], first["builds"]) == (
        "ready",
        100 + marker_bytes(),
        {"0-q8-v1": 100 + marker_bytes()},
    )
    assert (second["here"], second["disk_bytes"]) == ("fetched", 0)
    assert first["download_bytes"] == len(WHEEL)
    assert first["from"] == ["package fake-weights==1.0"]


def marker_bytes():
    return (store.entry("models", "first", "0-q8-v1").path / store.MARKER).stat().st_size


def test_verify_reads_imports_and_downloads(models):
    build("first")
    assert inventory.verify_model(models["first"]) == 2
    assert inventory.verify_model(models["second"]) == 1
    path = store.entry("models", "first", "0-q8-v1").path / "model.onnx"
    path.write_bytes(b"y" * 100)
    with pytest.raises(ChecksumError, match="has changed"):
        inventory.verify_model(models["first"])


def test_remove_keeps_a_download_that_another_model_needs(models):
    build("first")
    build("second")
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
    odd, new = inventory.model_table().splitlines()[1:]
    assert odd.split()[:5] == ["odd", "no", "-", "984.0", "MB"]
    assert new.split() == ["new", "no", "-", "?", "?", "auto"]


def test_info_shows_facts_one_a_line(models):
    lines = inventory.info_table(inventory.model_row(models["first"])).splitlines()
    facts = {line.split("  ")[0]: line.split("  ", 1)[1].strip() for line in lines}
    assert facts["key"] == "first" and facts["here"] == "fetched" and facts["thinking"] == "no"
    assert "refusals" not in facts
