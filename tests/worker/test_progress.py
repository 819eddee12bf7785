"""Downloads, imports and loads happen in the worker, and are told to all who wait for them."""

from pathlib import Path

import pytest

from tests import tiny_models as tiny
from tests.hub_server import REPO, HubServer
from tests.index_server import Fault
from tests.worker.conftest import wait_until
from tinykit import TinySession, cli, displays, progress

FIXTURE = Path(__file__).parents[1] / "fixtures" / "hub" / "qwen3"
GRAPH = "onnx/model_q4.onnx"


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub on this machine with one small model."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    files = {
        path.relative_to(FIXTURE).as_posix(): path.read_bytes()
        for path in FIXTURE.rglob("*")
        if path.is_file()
    }
    with HubServer(files) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def of_bytes(events):
    """The statuses of the whole download."""
    return [event.status for event in events if event.name == REPO and event.file is None]


def messages(events):
    return [event.message for event in events if event.message]


def test_all_who_wait_see_the_download_that_a_worker_makes_once(worker_dir, hub, in_thread):
    hub.faults[GRAPH] = [Fault(stall_at=50_000)]
    first_events, late_events = [], []
    with (
        TinySession(REPO, shared=True, lazy=True, progress=first_events.append) as first,
        TinySession(REPO, shared=True, lazy=True, progress=late_events.append) as late,
    ):
        first.prewarm()
        wait_until(lambda: first.worker is not None)
        assert f"{REPO}: starting the shared worker" in messages(first_events)
        assert first.worker.state == "not loaded" and hub.seen == []  # prewarming fetches nothing

        one = in_thread(lambda: first.complete("a", max_tokens=3))
        assert hub.stalled.wait(120)
        wait_until(lambda: "progress_total" in of_bytes(first_events))
        assert first.worker.state == "loading"
        two = in_thread(lambda: late.complete("a", max_tokens=3))
        wait_until(lambda: first.worker.waiting == 1)
        assert "ready" not in [event.status for event in first_events]
        hub.go_on.set()
        assert one.get() == two.get()
    assert of_bytes(first_events)[:2] == ["initiate", "download"]
    for events in (first_events, late_events):
        assert of_bytes(events)[-2:] == ["done", "ready"]
        (sums,) = {event.total_bytes for event in events if event.status == "progress_total"}
        assert sums == sum(len(content) for content in hub.repos[REPO].commits["c" * 40].values())
        assert f"{REPO}: prepare q4: 100 % of 1 graph" in messages(events)
    assert "starting the shared worker" not in " ".join(messages(late_events))
    assert [seen.path.endswith(GRAPH) for seen in hub.file_requests].count(True) == 1


def test_import_is_told_layer_by_layer(worker_dir, tmp_path):
    weights = tiny.write_gguf(tmp_path / "tiny.gguf", "llama", tiny.random_weights("llama"))
    events = []
    with TinySession(weights, shared=True, lazy=True, progress=events.append) as session:
        session.load()
    told = [(event.status, event.name) for event in events]
    for step in (("initiate", "tiny: import"), ("progress", "tiny: import"), ("done", "tiny: import")):
        assert step in told
    assert "tiny: import: 100 % of 2 layers" in messages(events)
    assert events[-1].status == "ready"


def test_start_shows_the_download(worker_dir, hub, monkeypatch, capsys):
    for module in (displays, progress):
        monkeypatch.setattr(module, "QUIET_S", 0)
    with pytest.raises(SystemExit) as caught:
        cli.main(["worker", "start", "--model", REPO])
    out, err = capsys.readouterr()
    assert not caught.value.code and "runs, pid" in out
    assert f"{REPO}: 195.4 kB in " in err
