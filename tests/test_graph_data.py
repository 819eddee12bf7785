"""Weights in files whose names only the graph tells: found, fetched, and never outside the folder."""

import shutil

import onnx
import pytest

from tests.hub_server import COMMIT, REPO, HubServer, Repo
from tests.test_families import FIXTURES, PAIRS, SYSTEM
from tinykit import TinySession, hub, hub_cache, loading
from tinykit.errors import ModelFileError
from tinykit.graph_data import data_names, is_inside, read_data_names, unexplained_names
from tinykit.model_spec import HubSource
from tinykit.progress import Progress

NAMES = {"model.onnx_data": "embed_tokens.weight", "model.onnx_data_1": "weights/part one.bin"}
CHAT = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PAIRS[0][0]}]
TITLE = f"<title>{PAIRS[0][1]}</title>"


def entries(model):
    for tensor in model.graph.initializer:
        yield from (entry for entry in tensor.external_data if entry.key == "location")


@pytest.fixture
def folder(tmp_path):
    """The float32 Llama with data files under other names, and files that are none of its own."""
    folder = shutil.copytree(
        FIXTURES / "hub" / "llama", tmp_path / "llama", ignore=shutil.ignore_patterns("*_*.onnx*")
    )
    graph = folder / "onnx" / "model.onnx"
    (folder / "onnx" / "weights").mkdir()
    for name in NAMES:
        shutil.copy(FIXTURES / "hub" / "llama" / "onnx" / name, folder / "onnx" / NAMES[name])
        (folder / "onnx" / name).unlink(missing_ok=True)
    model = onnx.load(graph, load_external_data=False)
    for entry in entries(model):
        entry.value = NAMES[entry.value]
    onnx.save(model, graph)
    (folder / "onnx" / "unused.bin").write_bytes(b"x" * 5000)
    return folder


def redirected(folder, name):
    graph = folder / "onnx" / "model.onnx"
    model = onnx.load(graph, load_external_data=False)
    next(entries(model)).value = name
    onnx.save(model, graph)


def test_local_folder(folder):
    assert read_data_names(folder / "onnx" / "model.onnx") == tuple(NAMES.values())
    with TinySession(str(folder), progress=False) as session:
        assert str(session.chat(CHAT)) == TITLE


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/../../b", "C:\\x", "..\\x", "\\\\host\\x", "..", ""]
)
def test_names_that_lead_out_are_refused(name, folder):
    assert not is_inside(name)
    if name:
        redirected(folder, name)
        with pytest.raises(ModelFileError, match="outside its folder"):
            loading.load(folder, progress=Progress(False))


@pytest.mark.parametrize("name", ["weights.bin", "a/b/c", "./x", "onnx__MatMul_3001", "x..y"])
def test_names_inside(name):
    assert is_inside(name)


def test_missing_file_is_named(folder):
    (folder / "onnx" / "embed_tokens.weight").unlink()
    with pytest.raises(ModelFileError, match=r"needs the file embed_tokens\.weight") as caught:
        loading.load(folder, progress=Progress(False))
    assert "another dtype" in caught.value.hint


def test_constants_inside_nodes_and_branches_count():
    tensor = onnx.TensorProto(name="w", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    places = iter("abc")

    def constant():
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.external_data.add(key="location", value=next(places))
        return copy

    branch = onnx.helper.make_graph([], "then", [], [], [constant()])
    nodes = [
        onnx.helper.make_node("Constant", [], ["c"], value=constant()),
        onnx.helper.make_node("If", ["x"], ["y"], then_branch=branch),
    ]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [], [], [constant()]))
    assert data_names(model) == ("c", "b", "a")


def test_names_that_explain_themselves_need_no_look_into_the_graph():
    names = ["README.md", ".gitattributes", "config.json", "onnx/model_q4.onnx", "onnx/model_q4.onnx_data"]
    names += ["onnx/model.onnx", "onnx/model.onnx_data", "onnx/quantize_config.json", "weights.bin"]
    assert unexplained_names(names, "onnx/model.onnx") == []
    assert unexplained_names([*names, "onnx/w.bin", "onnx/model.onnx.w"], "onnx/model.onnx") == [
        "onnx/w.bin",
        "onnx/model.onnx.w",
    ]
    assert unexplained_names(names, "") == []


@pytest.fixture
def server(monkeypatch, tmp_path, folder):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.repos[REPO] = Repo({COMMIT: files})
        yield server


def fetched(server):
    return {seen.path.partition(f"/resolve/{COMMIT}/")[2] for seen in server.file_requests}


def test_hub_repo(server):
    with TinySession(REPO, progress=False) as session:
        assert str(session.chat(CHAT)) == TITLE
    data = {f"onnx/{name}" for name in NAMES.values()}
    assert data <= fetched(server)
    assert "onnx/unused.bin" not in fetched(server)
    copy = hub.locate(HubSource(REPO))
    assert data <= set(copy.files)
    copy.verify()
    server.seen.clear()
    loading.load(REPO, progress=Progress(False)).engine.backend.close()
    assert server.seen == []


def test_interrupted_download_leaves_no_graph_without_its_weights(server):
    from tests.index_server import Fault

    server.faults["onnx/embed_tokens.weight"] = [Fault(status=404)]
    with pytest.raises(Exception, match="404"):
        hub.fetch(HubSource(REPO), "fp32", progress=Progress(False))
    assert hub.locate(HubSource(REPO), "fp32") is None
    assert hub_cache.names_in(hub_cache.snapshot_folder(REPO, COMMIT)) == []
    server.seen.clear()
    hub.fetch(HubSource(REPO), "fp32", progress=Progress(False))
    assert fetched(server) == {f"onnx/{name}" for name in NAMES.values()}


def test_what_another_program_fetched_is_used_offline(server):
    from huggingface_hub import hf_hub_download

    for name in server.repos[REPO].commits[COMMIT]:
        hf_hub_download(REPO, name, cache_dir=hub_cache.cache_folder(), endpoint=server.url)
    copy = hub.fetch(HubSource(REPO), "fp32", offline=True, progress=Progress(False))
    assert {f"onnx/{name}" for name in NAMES.values()} <= set(copy.files)
    assert "onnx/unused.bin" not in copy.files


def test_file_that_the_repo_lacks_is_named_after_the_download(server):
    del server.repos[REPO].commits[COMMIT]["onnx/embed_tokens.weight"]
    with pytest.raises(ModelFileError, match=r"needs the file embed_tokens\.weight"):
        loading.load(REPO, dtype="fp32", progress=Progress(False))
