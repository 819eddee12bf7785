"""Models of the hub from their id to an answer."""

from pathlib import Path

import pytest

from tests.hub_server import COMMIT, REPO, HubServer, Repo
from tinykit import hub, loading
from tinykit.errors import ModelFileError, OfflineError
from tinykit.model_spec import HubSource
from tinykit.progress import Progress

FIXTURES = Path(__file__).parent / "fixtures"
HUB = sorted((FIXTURES / "hub").iterdir()) if (FIXTURES / "hub").is_dir() else []


@pytest.fixture(autouse=True)
def server(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def serve(server, folder):
    files = {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
    server.repos[REPO] = Repo({COMMIT: files})


@pytest.mark.parametrize("folder", HUB, ids=lambda folder: folder.name)
def test_hub_id_loads_and_a_warm_load_makes_no_request(server, folder):
    serve(server, folder)
    loaded = loading.load(REPO, progress=Progress(False))
    copy = hub.locate(HubSource(REPO))
    assert loaded.folder == copy.folder
    loaded.engine.backend.close()
    server.seen.clear()
    events = []
    loading.load(REPO, progress=Progress(events.append)).engine.backend.close()
    assert server.seen == []
    assert [event.status for event in events][-1:] == ["ready"]


def served_llama(server, *damaged):
    """The repo of tiny Llamas, with graphs that do not load."""
    serve(server, FIXTURES / "hub" / "llama")
    files = server.repos[REPO].commits[COMMIT]
    files |= dict.fromkeys(damaged, b"damaged")
    return sorted(name for name in files if name.endswith(".onnx"))


def test_auto_fetches_the_next_precision_if_one_does_not_run(server):
    served_llama(server, "onnx/model_q4.onnx")
    loaded = loading.load(REPO, progress=Progress(False))
    assert loaded.engine.backend.info.dtype == "q8"
    assert [skipped.dtype for skipped in loaded.skipped] == ["q4"]
    assert "model_q4.onnx is not a readable ONNX graph" in loaded.skipped[0].reason
    loaded.engine.backend.close()
    server.seen.clear()
    again = loading.load(REPO, progress=Progress(False))
    assert (again.engine.backend.info.dtype, server.seen) == ("q8", [])


def test_precision_that_was_asked_for_is_not_replaced(server):
    served_llama(server, "onnx/model_q4.onnx")
    with pytest.raises(ModelFileError, match=r"model_q4\.onnx is not a readable"):
        loading.load(REPO, dtype="q4", progress=Progress(False))


def test_repo_of_which_nothing_runs_is_one_error(server):
    served_llama(server, *served_llama(server))
    with pytest.raises(ModelFileError, match=r"No precision of .* runs here\. q4: .*; q8: ") as caught:
        loading.load(REPO, progress=Progress(False))
    dtypes = [skipped.dtype for skipped in caught.value.skipped]
    assert dtypes == list(hub.locate(HubSource(REPO)).offered)


def test_next_precision_that_cannot_be_had_tells_why_it_was_wanted(server):
    served_llama(server, "onnx/model_q4.onnx")
    hub.fetch(HubSource(REPO), progress=Progress(False))
    with pytest.raises(OfflineError) as caught:
        loading.load(REPO, progress=Progress(False), offline=True)
    assert "others do not run here. q4: " in caught.value.__notes__[-1]
