"""Models of the hub from their id to an answer."""

from pathlib import Path

import pytest

from tests.hub_server import COMMIT, REPO, HubServer, Repo
from tinykit import hub, loading
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
