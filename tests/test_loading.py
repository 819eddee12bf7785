import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny_models as tiny
from tests.convert.test_adapter import random_pairs, write_adapter
from tests.convert.test_huggingface import write_folder
from tests.hub_server import COMMIT, REPO, HubServer, make_files
from tinykit import TinySession, loading, store
from tinykit.errors import (
    ChecksumError,
    DiskSpaceError,
    ModelFileError,
    OptionError,
    UnknownModelError,
    UnsupportedModelError,
)
from tinykit.progress import Progress
from tinykit.registry import MODELS, ModelSpec, WheelSource, get_model

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def gguf(tmp_path):
    return tiny.write_gguf(tmp_path / "tiny.gguf", "llama", tiny.random_weights("llama"), "Q8_0")


def test_gguf_path_loads_and_generates(gguf):
    loaded = loading.load(gguf, progress=Progress(False))
    assert loaded.spec.key == "tiny"
    assert loaded.engine.backend.info.dtype == "q8"
    assert loaded.load_s > 0


def test_import_is_done_once(gguf, monkeypatch):
    first = loading.load(gguf, progress=Progress(False)).folder
    monkeypatch.setattr(loading, "import_into", lambda *a: pytest.fail("imported again"))
    assert loading.load(gguf, progress=Progress(False)).folder == first


def test_changed_file_is_imported_again(gguf):
    first = loading.load(gguf, progress=Progress(False)).folder
    tiny.write_gguf(gguf, "llama", tiny.random_weights("llama", seed=1), "Q8_0")
    assert loading.load(gguf, progress=Progress(False)).folder != first


def test_each_dtype_has_its_own_build(gguf):
    folders = {loading.load(gguf, dtype=dtype, progress=Progress(False)).folder for dtype in ("q8", "fp32")}
    assert len(folders) == 2


def test_failed_import_leaves_nothing(gguf, monkeypatch):
    import tinykit.convert.decoder as decoder

    def fail(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(decoder.DecoderGraph, "_feed_forward", fail)
    with pytest.raises(KeyboardInterrupt):
        loading.load(gguf, progress=Progress(False))
    assert store.entries() == []
    assert [path.name for path in store.home().rglob("*") if path.is_file() and path.suffix != ".lock"] == []


def test_killed_import_is_made_again(gguf):
    code = (
        "import sys, tinykit.convert.decoder as d, tinykit.loading as l, time\n"
        "d.DecoderGraph._feed_forward = lambda *a: (print('importing', flush=True), time.sleep(60))\n"
        f"l.load({str(gguf)!r})"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=dict(os.environ))
    assert child.stdout.readline() == b"importing\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert store.entries() == []
    folder = loading.load(gguf, progress=Progress(False)).folder
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]


def test_two_processes_at_once_make_one_build(gguf):
    code = f"from tinykit import loading; print(loading.load({str(gguf)!r}).folder)"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, env=dict(os.environ), text=True
        )
        for _ in range(2)
    ]
    folders = [child.communicate(timeout=120)[0].strip() for child in children]
    assert folders[0] == folders[1]
    assert len(store.entries()) == 1


def test_damaged_weights_are_found_before_they_are_kept(tmp_path):
    weights = tiny.random_weights("llama")
    weights["model.norm.weight"][3] = float("inf")
    path = tiny.write_gguf(tmp_path / "bad.gguf", "llama", weights)
    with pytest.raises(ModelFileError, match="finite"):
        loading.load(path, progress=Progress(False))
    assert store.entries() == []


@pytest.mark.parametrize("content", [b"\xff\xfe", b"[]", b"{}", b'{"max_position_embeddings": null}'])
def test_damaged_configuration_of_an_import_is_told_with_what_to_do(gguf, content):
    folder = loading.load(gguf, progress=Progress(False)).folder
    config = folder / "config.json"
    config.write_bytes(content.ljust(config.stat().st_size))  # of the same size, so that it seems whole
    with pytest.raises(ModelFileError, match=r"config\.json cannot be used") as caught:
        loading.load(gguf, progress=Progress(False))
    assert str(folder) in caught.value.hint


def test_foreign_error_during_the_import_is_ours(gguf, monkeypatch):
    import tinykit.convert.decoder as decoder

    monkeypatch.setattr(decoder.DecoderGraph, "_head", lambda *a: [][0])
    with pytest.raises(ModelFileError, match=r"tiny\.gguf is not a readable model file: IndexError"):
        loading.load(gguf, progress=Progress(False))
    assert store.entries() == []


def test_full_disk_is_said_before_the_work(gguf, monkeypatch):
    import shutil
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(DiskSpaceError) as caught:
        loading.load(gguf, progress=Progress(False))
    assert caught.value.free_bytes == 1000
    assert caught.value.needed_bytes > 1000


def test_registered_model_with_other_weights_is_refused(gguf, monkeypatch):
    source = WheelSource("some-package", "1", "0" * 64, 1, "some/tiny.gguf", "0" * 64, gguf.stat().st_size)
    spec = ModelSpec(key="registered", label="x", family="llama", sources=(source,))
    monkeypatch.setattr(loading.sources, "fetch", lambda *a, **o: gguf)
    with pytest.raises(ChecksumError, match=r"registered.*000000"):
        loading.load(spec, progress=Progress(False))
    assert store.entries() == []


def test_config_written_by_the_import_is_a_hub_config(gguf):
    folder = loading.load(gguf, progress=Progress(False)).folder
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == "llama"
    assert config["num_hidden_layers"] == tiny.LAYERS
    assert config["eos_token_id"] == [2, 0]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"dtype": "q5"}, "Unknown dtype 'q5'; known are auto, fp32"),
        ({"dtype": "fp16"}, "Unknown dtype 'fp16'; known are auto, fp32, q8, w8a8, q4"),
        ({"dtype": "q4"}, "tiny.gguf can be imported as q8, w8a8, fp32, not as 'q4'"),
        ({"device": "gpus"}, "Unknown device 'gpus'; known are auto, gpu, cpu"),
        ({"threads": 0}, "threads"),
    ],
    ids=["dtype", "dtype_of_other_tools", "dtype_of_other_weights", "device", "threads"],
)
def test_options_that_do_not_exist_are_named(gguf, options, match):
    with pytest.raises(OptionError, match=match):
        loading.load(gguf, progress=Progress(False), **options)


@pytest.mark.parametrize(
    ("dtype", "hint"),
    [
        ("float32", "Did you mean 'fp32'?"),
        ("int4", "Did you mean 'q4'?"),
        ("fp23", "Did you mean 'fp32'?"),
        ("float16", "Leave it out for the model's own."),
    ],
)
def test_hint_names_a_precision_that_may_have_been_meant(gguf, dtype, hint):
    with pytest.raises(OptionError) as caught:
        loading.load(gguf, progress=Progress(False), dtype=dtype)
    assert caught.value.hint == hint


def registered(member, dtype=None):
    source = WheelSource("some-package", "1", "0" * 64, 1, member, "0" * 64, 1)
    return ModelSpec(key="registered", label="x", family="llama", dtype=dtype, sources=(source,))


@pytest.mark.parametrize(
    ("asked", "own", "expected"),
    [
        (None, "q8", "q8"),
        ("auto", "q8", "q8"),
        ("AUTO ", "fp32", "fp32"),
        ("auto", None, "auto"),
        (None, None, "auto"),
        ("int8", None, "q8"),
        ("fp32", "q8", "fp32"),
    ],
)
def test_auto_is_the_models_own_dtype(asked, own, expected):
    spec = registered("some/m.gguf", own)
    assert loading.checked_dtype(asked, spec) == expected


HUB_DTYPES = "fp32 fp16 q8 int8 uint8 q4 bnb4 q4f16 q2 q2f16 q1 q1f16".split()


@pytest.mark.parametrize("name", HUB_DTYPES)
def test_every_dtype_of_the_hub_is_known_however_it_is_written(name, monkeypatch):
    spec = MODELS["lfm2.5-230m"]
    assert loading.checked_dtype(f" {name.upper()} ", spec) == name
    monkeypatch.setenv("TINYKIT_DTYPE", name)
    assert loading.checked_dtype(None, spec) == name  # it wins over what the entry recommends
    assert loading.checked_dtype("q4f16", spec) == "q4f16"


def test_unknown_dtype_of_a_hub_model_lists_those_that_exist():
    with pytest.raises(
        OptionError, match=f"Unknown dtype 'q9'; known are auto, .*{HUB_DTYPES[-1]}"
    ) as caught:
        loading.checked_dtype("q9", MODELS["lfm2.5-230m"])
    assert all(name in str(caught.value) for name in HUB_DTYPES)


def test_what_was_loaded_where_is_logged_for_debugging(gguf, caplog):
    caplog.set_level("DEBUG", logger="tinykit")
    loading.load(gguf, device="auto", progress=Progress(False))
    said = [record.getMessage() for record in caplog.records if record.levelname == "DEBUG"]
    assert any(re.fullmatch(r"tiny q8 on cpu \(onnx\), asked for auto, in \d+ ms", one) for one in said)


@pytest.mark.parametrize("dtype", ["q1", "fp16"])
def test_hub_repo_of_another_backend_offers_no_precision_here(dtype):
    with pytest.raises(OptionError, match=f"Unknown dtype '{dtype}'; known are auto, fp32, q8, w8a8, q4"):
        loading.checked_dtype(dtype, MODELS["smollm2-135m"])


def test_auto_by_setting_is_the_models_own_dtype_too(monkeypatch):
    monkeypatch.setenv("TINYKIT_DTYPE", "auto")
    assert loading.checked_dtype(None, registered("some/m.gguf", "q8")) == "q8"


def test_auto_makes_no_second_build(gguf):
    spec = dataclasses.replace(get_model(gguf), dtype="q8")
    folders = {
        loading.load(spec, dtype=d, progress=Progress(False)).folder for d in (None, "auto", "q8", "int8")
    }
    assert len(folders) == 1


def test_auto_is_resolved_before_the_build_is_named(gguf, monkeypatch):
    """A file that no entry describes: `auto` and what it stands for are one build, whichever comes first."""
    folders = {loading.load(gguf, dtype=d, progress=Progress(False)).folder for d in (None, "q8", "auto")}
    assert len(folders) == 1
    assert len(store.entries()) == 1
    import tinykit.convert.importer as importer

    monkeypatch.setattr(
        importer, "open_source", lambda path: pytest.fail("parsed again to learn what auto is")
    )
    assert loading.load(gguf, progress=Progress(False)).folder in folders


def test_auto_of_four_bit_weights_is_known_after_an_import_to_eight(tmp_path):
    path = tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.random_weights("llama"), "Q4_0")
    dtypes = [
        loading.load(path, dtype=d, progress=Progress(False)).engine.backend.info.dtype
        for d in ("q8", "auto", "q4", None)
    ]
    assert dtypes == ["q8", "q4", "q4", "q4"]
    assert len(store.entries()) == 2


@pytest.mark.parametrize("member", ["some/M.Q4_1.gguf", "m-q8_0.gguf", "m.Q4_K_M.gguf", "m-bf16.gguf"])
def test_impossible_dtype_is_refused_before_anything_is_fetched(member, monkeypatch):
    monkeypatch.setattr(loading.sources, "fetch", lambda *a, **o: pytest.fail("fetched"))
    with pytest.raises(OptionError, match="registered can be imported as q8, w8a8, fp32, not as 'q4'"):
        loading.load(registered(member), dtype="q4", progress=Progress(False))


@pytest.mark.parametrize("member", ["some/M.Q4_0.gguf", "m-q4_0.gguf", "model_Q4_0.gguf", "llama2.gguf"])
def test_q4_is_left_to_the_import_unless_the_name_rules_it_out(member):
    assert loading.checked_dtype("q4", registered(member)) == "q4"


def test_settings_count_when_no_argument_is_given(gguf, monkeypatch):
    monkeypatch.setenv("TINYKIT_DTYPE", "fp32")
    monkeypatch.setenv("TINYKIT_THREADS", "1")
    info = loading.load(gguf, progress=Progress(False)).engine.backend.info
    assert (info.dtype, info.threads) == ("fp32", 1)
    assert loading.load(gguf, dtype="q8", progress=Progress(False)).engine.backend.info.dtype == "q8"


def test_unknown_model_names_its_neighbors():
    with pytest.raises(UnknownModelError) as caught:
        loading.load("smolm2-135m")
    assert caught.value.nearest[0] == "smollm2-135m"


def test_default_model_is_registered():
    assert get_model(loading.DEFAULT_MODEL) in MODELS.values()


def test_ready_is_told(gguf):
    events = []
    loading.load(gguf, progress=Progress(events.append))
    assert [event.status for event in events][-1] == "ready"
    assert {"initiate", "done"} <= {event.status for event in events}


class TestAdapters:
    """Adapters need float weights; what has graphs only is refused before anything is fetched."""

    @pytest.fixture
    def adapter(self, tmp_path):
        weights = tiny.random_weights("llama")
        return write_adapter(tmp_path / "adapter", random_pairs(weights))

    @pytest.fixture
    def server(self, monkeypatch, tmp_path):
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        with HubServer() as server:
            monkeypatch.setenv("HF_ENDPOINT", server.url)
            yield server

    def test_repo_of_graphs_is_refused_before_a_file_is_fetched(self, server, adapter):
        with pytest.raises(UnsupportedModelError, match=f"{REPO} holds ONNX graphs only") as caught:
            TinySession(REPO, adapter=adapter, progress=False)
        assert "safetensors" in caught.value.hint
        assert server.file_requests == []

    def test_repo_with_both_gives_its_safetensors(self, server, adapter, tmp_path):
        folder = write_folder(tmp_path / "m", "llama", tiny.random_weights("llama"))
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        server.repos[REPO].commits[COMMIT] = make_files() | files
        with TinySession(REPO, adapter=adapter, progress=False) as session:
            assert session.load().engine.backend.info.dtype == "q8"
        asked = {seen.path.rpartition("/")[2] for seen in server.file_requests}
        assert "model.safetensors" in asked and not any(name.endswith(".onnx") for name in asked)
        spec = get_model(REPO)
        assert loading.float_weights(spec, progress=Progress(False), offline=True).name == COMMIT

    def test_dtype_that_is_recommended_for_graphs_is_not_asked_of_weights(self, adapter):
        spec = dataclasses.replace(MODELS["lfm2.5-230m"], adapter=adapter)
        assert loading.checked_dtype(None, spec) == "auto"
        assert loading.checked_dtype(None, MODELS["lfm2.5-230m"]) == "q4"
        assert loading.checked_dtype(None, MODELS["smollm2-135m-titles"]) == "w8a8"

    def test_folder_of_graphs_is_refused(self, adapter):
        with pytest.raises(UnsupportedModelError, match="holds ONNX graphs only"):
            TinySession(FIXTURES / "hub" / "llama", adapter=adapter, progress=False)

    @pytest.mark.parametrize(
        ("name", "said"), [("absent", "is not there"), (".", "has no adapter_config.json")]
    )
    def test_adapter_that_is_none_is_said_first(self, server, tmp_path, name, said):
        with pytest.raises(ModelFileError, match=said):
            TinySession(REPO, adapter=tmp_path / name, progress=False)
        assert server.seen == []
