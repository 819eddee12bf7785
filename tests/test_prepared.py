"""Graphs from elsewhere, prepared once: what is tried, what is kept, what is refused."""

import json
import shutil

import numpy as np
import pytest

from tests.test_families import FIXTURES
from tinykit import TinySession, displays, loading, prepared, progress, store
from tinykit.backends import onnx_batch, onnx_session
from tinykit.convert import optimize
from tinykit.errors import BackendError, ModelFileError, PromptTooLongError
from tinykit.folders import open_folder
from tinykit.progress import Progress

HUB = FIXTURES / "hub"


@pytest.fixture
def llama(tmp_path):
    """A copy to damage."""
    return shutil.copytree(HUB / "llama", tmp_path / "llama")


def load(folder, dtype=None, **options):
    return loading.load(folder, dtype=dtype, progress=Progress(False), **options)


def patch_batches(monkeypatch, change):
    """Change what batches compute."""
    for kind in (onnx_batch.SharedBatch, onnx_batch.PlainBatch):
        forward = kind.forward
        monkeypatch.setattr(kind, "forward", lambda batch, ids, forward=forward: change(forward(batch, ids)))


def facts():
    (entry,) = store.entries()
    return json.loads((entry.path / "prepared.json").read_text(encoding="utf-8"))


def test_missing_weights_are_named(llama):
    (llama / "onnx" / "model.onnx_data_1").unlink()
    with pytest.raises(ModelFileError, match="needs the file model.onnx_data_1"):
        load(llama, "fp32")
    assert store.entries() == []


def test_graph_in_which_nothing_is_to_be_changed_makes_no_line(llama, monkeypatch, capsys):
    from tinykit.convert import optimize

    monkeypatch.setattr(displays, "QUIET_S", 0)
    monkeypatch.setattr(progress, "QUIET_S", 0)
    monkeypatch.setattr(optimize, "apply_passes", lambda model: ())
    loading.load(llama, progress=Progress(True))
    assert capsys.readouterr().err == ""


def test_graph_that_was_changed_is_one_line(llama, monkeypatch, capsys):
    monkeypatch.setattr(displays, "QUIET_S", 0)
    monkeypatch.setattr(progress, "QUIET_S", 0)
    loading.load(llama, progress=Progress(True))
    (line,) = capsys.readouterr().err.splitlines()
    assert ": prepare q4: 1 graph in " in line


def test_graph_is_prepared_once(monkeypatch):
    first = load(HUB / "llama", "q4")
    (entry,) = store.entries()
    assert (entry.path / "graph.onnx").is_file()
    monkeypatch.setattr(optimize, "read_graph", lambda path: pytest.fail("prepared again"))
    second = load(HUB / "llama", "q4")
    assert first.engine.backend.info == second.engine.backend.info


def test_graph_without_a_use_for_passes_is_not_copied():
    load(HUB / "llama", "fp32")
    (entry,) = store.entries()
    assert sorted(path.name for path in entry.path.iterdir()) == ["complete.json", "prepared.json"]


def test_changed_graph_is_prepared_again(llama):
    load(llama, "q4")
    shutil.copy(HUB / "qwen3" / "onnx" / "model_q4.onnx", llama / "onnx")
    load(llama, "q4")
    assert len(store.entries()) == 2


def test_pass_that_changes_the_answers_is_not_used(monkeypatch):
    def broken(model):
        for tensor in model.graph.initializer:
            if tensor.name.endswith("norm.weight"):
                tensor.raw_data = bytes(len(tensor.raw_data))
        return 1

    monkeypatch.setitem(optimize.PASSES, "broken", broken)
    opened = open_folder(HUB / "llama", "q4", key="llama", threads=1)
    assert opened.passes == ()
    (entry,) = store.entries()
    assert not (entry.path / "graph.onnx").exists()


@pytest.mark.parametrize(("config", "context"), [(100, 100), (40960, 512), (None, 512)])
def test_context_is_what_the_model_can_really_read(llama, config, context):
    path = llama / "config.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    fields["max_position_embeddings"] = config
    path.write_text(json.dumps(fields), encoding="utf-8")
    engine = load(llama, "q4").engine
    assert engine.backend.info.context_length == context
    with TinySession(str(llama), dtype="q4", progress=False) as session, pytest.raises(PromptTooLongError):
        session.chat([{"role": "user", "content": "x" * 4000}])


def test_what_the_graph_can_do_is_written_down(llama):
    loaded = load(llama, "q4")
    found = facts()
    assert (found["dtype"], found["passes"]) == ("q4", list(optimize.PASSES)[: len(found["passes"])])
    assert found["can_batch"] is loaded.engine.backend.info.can_batch is True


def test_graph_whose_rows_look_at_each_other_does_not_batch(llama, monkeypatch):
    """It runs with several rows, and gives one of them something else than it gets alone."""
    patch_batches(monkeypatch, lambda logits: np.roll(logits, 1, axis=0))
    assert load(llama, "q4").engine.backend.info.can_batch is False
    assert facts()["can_batch"] is False


def test_graph_that_fails_with_several_rows_does_not_batch(llama, monkeypatch):
    def fail(logits):
        raise BackendError("shapes")

    patch_batches(monkeypatch, fail)
    assert load(llama, "q4").engine.backend.info.can_batch is False


def test_graph_that_points_outside_its_folder_is_refused(llama, monkeypatch):
    import onnx

    path = llama / "onnx" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for item in tensor.external_data:
            if item.key == "location" and item.value == "model.onnx_data":
                item.value = "../secret"
    onnx.save(model, path)
    (llama / "secret").write_bytes((llama / "onnx" / "model.onnx_data").read_bytes())
    with pytest.raises(ModelFileError, match=r"outside its folder: \.\./secret"):
        load(llama, "fp32")
    assert store.entries() == []


def test_preparing_that_was_interrupted_leaves_nothing(llama, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(prepared, "_can_batch", interrupted)
        with pytest.raises(KeyboardInterrupt):
            load(llama, "q4")
    assert store.entries() == []
    assert load(llama, "q4").engine.backend.info.dtype == "q4"


def test_weights_in_the_hubs_cache_are_not_copied_into_memory(tmp_path, monkeypatch):
    """The hub keeps files under their hashes; what has their names are links."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "c0ffee"
    blobs.mkdir()
    for at, path in enumerate(sorted(path for path in (HUB / "gemma3").rglob("*") if path.is_file())):
        shutil.copy(path, blobs / f"{at:064}")
        link = snapshot / path.relative_to(HUB / "gemma3")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blobs / f"{at:064}")
    logits = []
    for way in (None, lambda path, data: None):  # the second copies
        with monkeypatch.context() as patch:
            if way is None:
                patch.setattr(onnx_session, "mapped", lambda file: pytest.fail(f"{file} was copied"))
            else:
                patch.setattr(onnx_session, "locate", way)
            backend = open_folder(snapshot, "q4f16", key="gemma3", threads=1).backend
            logits.append(backend.forward([1, 40, 41, 42], backend.new_state()).copy())
            backend.close()
    np.testing.assert_array_equal(*logits)
    (entry,) = store.entries()
    entry.verify()
    names = sorted(path.name for path in entry.path.iterdir())
    assert names == ["complete.json", "graph.onnx", "prepared.json"]
    assert facts()["passes"] == ["accuracy_level"]
