import types
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from tinykit import registry, settings
from tinykit.errors import OptionError, UnknownModelError
from tinykit.registry import FileSource, HubSource, ModelSpec

SPEC = ModelSpec("packed", "Packed", "llama", sources=(HubSource("a/packed"),))


@pytest.fixture
def config(tmp_path, monkeypatch):
    path = tmp_path / "config.toml"
    monkeypatch.setenv("TINYKIT_CONFIG", str(path))
    return path


@pytest.fixture
def entry_points(monkeypatch):
    """Entry points of packages, as a list to fill."""
    points = []
    monkeypatch.setattr(metadata, "entry_points", lambda group: points if group == "tinykit.models" else [])
    return points


def point(value):
    def load():
        if isinstance(value, Exception):
            raise value
        return value

    return types.SimpleNamespace(load=load, value="package.module:MODELS")


def test_models_of_the_config_file(config):
    config.write_text("""
        offline = true

        [models.support-titles]
        repo = "my-company/support-titles-ONNX"
        mlx_repo = "my-company/support-titles-MLX"
        revision = "v2"
        dtype = "q8"
        group = "title"
        thinking = true
        context_length = 2048
        recipe = "titles"

        [models.local]
        path = "models/mine"
        label = "Mine"
    """)
    spec = registry.get_model("support-titles")
    assert spec.sources == (
        HubSource("my-company/support-titles-ONNX", "v2"),
        HubSource("my-company/support-titles-MLX", backend="mlx"),
    )
    assert (spec.label, spec.dtype, spec.group, spec.thinking, spec.context_length, spec.recipe) == (
        "support-titles", "q8", "title", True, 2048, "titles",
    )  # fmt: skip
    spec = registry.get_model("local")
    assert spec.sources == (FileSource(config.parent / "models" / "mine"),)
    assert spec.label == "Mine"
    assert {"support-titles", "local", "smollm2-135m"} <= set(registry.known_models())
    assert settings.get("offline") is True


def test_config_file_is_read_at_each_use(config):
    with pytest.raises(UnknownModelError):
        registry.get_model("mine")
    config.write_text('[models.mine]\nrepo = "a/b"\n')
    assert registry.get_model("mine").sources == (HubSource("a/b"),)
    with pytest.raises(UnknownModelError) as caught:
        registry.get_model("mime")
    assert "mine" in caught.value.nearest


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ('models = "x"', "models in .* is 'x', but must be tables", ""),
        ("[models]\nmine = 3", r"\[models.mine\] in .* is 3, but must be a table", ""),
        ("[models.mine]\n", "names no source", "repo = 'owner/name'"),
        ('[models.mine]\nrepo = "a/b"\nrevison = "x"', "unknown entry 'revison'", "'revision'"),
        ('[models.mine]\nrepo = "a/b"\ndtype = "q3"', "dtype = 'q3'; known are auto, fp32", ""),
        ('[models.mine]\nrepo = "a b/c"', "repo = 'a b/c', which is no repo", "owner/name"),
        ('[models.mine]\nmlx_repo = "a"', "mlx_repo = 'a', which is no repo", "owner/name"),
        ('[models.mine]\nrepo = ""', "has an empty repo", ""),
        ('[models.mine]\nrepo = "a/b@v1"\nrevision = "v2"', "names two revisions", ""),
        ('[models.mine]\npath = "a"\nrevision = "v2"', "has a revision, but no repo", ""),
        ('[models.mine]\nrepo = "a/b"\nrecipe = "titels"', "recipe = 'titels'; known are plain, titles", ""),
        ('[models.mine]\nrepo = "a/b"\ncontext_length = 0', "context_length = 0, but it must be 1 or more", ""),
        ('[models."a/b"]\nrepo = "a/b"', "has a key that cannot be used", "short name"),
        ('[models.mine-1.5]\nrepo = "a/b"', r"\[models.mine-1\] .* unknown entry '5'", '[models."mine-1.5"]'),
        ('[models.mine]\nrepo = 3', "repo = 3, but it must be a str", ""),
        ('[models.mine]\nrepo = "a/b"\ncontext_length = true', "context_length = True, but it must be a int", ""),
        ('[models.mine]\nrepo = "a/b"\ntask = "sing"', "task = 'sing'; known are chat, judge", ""),
    ],
)  # fmt: skip
def test_mistakes_in_the_config_file_are_named(config, text, message, hint):
    config.write_text(text)
    with pytest.raises(OptionError, match=message) as caught:
        registry.get_model("mine")
    assert str(config) in str(caught.value)
    assert hint in (caught.value.hint or "")


def test_home_is_expanded(config):
    config.write_text('[models.mine]\npath = "~/m.gguf"\nadapter = "a"')
    spec = registry.get_model("mine")
    assert spec.sources == (FileSource(Path("~/m.gguf").expanduser()),)
    assert spec.adapter == config.parent / "a"


@pytest.mark.parametrize(
    "value", [SPEC, [SPEC], lambda: SPEC, lambda: (SPEC,)], ids=["one", "list", "function", "both"]
)
def test_models_of_packages(entry_points, value):
    entry_points.append(point(value))
    assert registry.get_model("packed") is SPEC
    assert registry.known_models()["packed"] is SPEC


@pytest.mark.parametrize(
    "value", [ImportError("no such module"), 3, ["text"]], ids=["import", "number", "text"]
)
def test_package_that_fails_is_left_out_with_a_warning(entry_points, value):
    entry_points += [point(value), point(SPEC)]
    with pytest.warns(UserWarning, match="The models of package.module:MODELS cannot be used"):
        assert registry.get_model("packed") is SPEC


def test_model_of_a_package_does_not_replace_a_known_one(entry_points):
    entry_points.append(point([ModelSpec("smollm2-135m", "Theirs", "", sources=()), SPEC]))
    with pytest.warns(UserWarning, match="'smollm2-135m' of package.module:MODELS is left out"):
        known = registry.known_models()
    assert known["smollm2-135m"] is registry.MODELS["smollm2-135m"]
    assert known["packed"] is SPEC


def test_nothing_but_its_own_table_is_looked_at_for_a_known_key(entry_points, config):
    config.write_text("[models.mine]\n")  # wrong
    entry_points.append(point(ImportError()))
    assert registry.get_model("smollm2-135m").key == "smollm2-135m"


def test_table_for_a_known_key_changes_that_model(config):
    known = registry.MODELS["lfm2.5-230m"]
    config.write_text('[models."lfm2.5-230m"]\ndtype = "q8"\ngood_for = "us"\n')
    spec = registry.get_model("lfm2.5-230m")
    assert spec == replace(known, dtype="q8", good_for="us")
    assert registry.known_models()["lfm2.5-230m"] == spec
    assert registry.MODELS["lfm2.5-230m"] is known


def test_source_in_such_a_table_takes_the_place_of_all_sources(config):
    config.write_text('[models."qwen3-1.7b"]\npath = "q"\n')
    spec = registry.get_model("qwen3-1.7b")
    assert spec.sources == (FileSource(config.parent / "q"),)
    assert (spec.dtype, spec.refusals, spec.thinking) == (None, (), True)


def test_revision_in_such_a_table_is_that_of_the_known_repo(config):
    config.write_text('[models."lfm2.5-230m"]\nrevision = "main"\n')
    repos = [(s.repo, s.revision) for s in registry.get_model("lfm2.5-230m").sources]
    assert repos == [("LiquidAI/LFM2.5-230M-ONNX", "main"), ("LiquidAI/LFM2.5-230M-MLX-4bit", None)]


def test_mistake_in_such_a_table_names_file_and_key(config):
    config.write_text('[models."lfm2.5-230m"]\ndtype = "q5"\n')
    with pytest.raises(OptionError, match=r'\[models."lfm2.5-230m"\] in .*config.toml has dtype = .q5'):
        registry.get_model("lfm2.5-230m")


def test_repo_with_its_revision_and_a_package_model_that_is_changed(config, entry_points):
    entry_points.append(point(SPEC))
    config.write_text('[models.mine]\nrepo = "a/b@v1"\n[models.packed]\nlabel = "Ours"\n')
    assert registry.get_model("mine").sources == (HubSource("a/b", "v1"),)
    assert registry.get_model("packed") == replace(SPEC, label="Ours")
