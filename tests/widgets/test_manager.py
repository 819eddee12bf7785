import pytest

from tests.hub_server import COMMIT, REPO, HubServer, Repo
from tests.index_server import Fault
from tests.test_hub_models import HUB, serve
from tests.widgets.conftest import click_in_front_end, from_front_end, plain
from tests.widgets.typist import WAIT_S
from tinykit import inventory, residents, store
from tinykit.builds import build_entry
from tinykit.registry import get_model
from tinykit.widgets import ModelManager, manager

KEY = "smollm2-135m"
GRAPH = "onnx/model_q4.onnx"
SIZE = "1.2 kB"  # of the build below, with its marker


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def managed(monkeypatch):
    monkeypatch.setattr(residents, "loaded", list)  # other tests may hold models of the same name
    found = ModelManager()
    found.box
    yield found
    found.close()


def build(dtype="q8"):
    entry = build_entry(get_model(KEY), dtype)
    with store.building(entry) as folder:
        (folder / "model.onnx").write_bytes(b"x" * 1000)
    return entry


def row_of(managed, key):
    return next(line for line in managed.text().splitlines() if line.startswith(f"{key} "))


def test_table_says_what_is_here(managed):
    build()
    managed.refresh()
    table = plain(managed.table.value)
    assert table.startswith("Models that tinykit knows or has here model here on disk")
    assert f"{KEY} ready {SIZE}" in table
    assert row_of(managed, KEY).split()[:4] == [KEY, "ready", *SIZE.split()]
    assert ("lfm2.5-230m (not here)", "lfm2.5-230m") in managed.picker.options


def test_download_by_hub_id_moves_the_bar_and_ends_with_the_place(managed, server):
    seen = []
    managed.progress.bar.observe(lambda change: seen.append(change["new"]), names="value")
    from_front_end(managed.other, value=REPO)
    click_in_front_end(managed.download_button)
    assert managed.wait(WAIT_S)
    assert managed.status.startswith(f"{REPO} is ready in ")
    assert 100.0 in seen
    assert REPO in plain(managed.table.value) and REPO in [key for _, key in managed.picker.options]


def test_stop_ends_a_download_and_the_next_one_goes_on(managed, server):
    files = server.repos[REPO].commits[COMMIT]
    size = len(files[GRAPH])
    server.faults[GRAPH] = [Fault(stall_at=size // 2)]
    managed.other.value = REPO
    managed.download_button.click()
    assert server.stalled.wait(WAIT_S)
    managed.download_button.click()
    assert managed.status.startswith("Something is running already.")
    managed.stop_button.click()
    server.go_on.set()
    assert managed.wait(WAIT_S)
    assert managed.status == "Stopped. What has arrived is kept: the next download goes on from there."
    server.seen.clear()
    managed.download_button.click()
    assert managed.wait(WAIT_S)
    assert "is ready in" in managed.status
    again = [seen for seen in server.file_requests if seen.path.endswith(GRAPH)]
    assert all(seen.range for seen in again)  # none begins anew


def test_error_is_said_in_the_status_line(managed, server):
    managed.other.value = "tiny-org/nothing-here"
    managed.download_button.click()
    assert managed.wait(WAIT_S)
    assert "tiny-org/nothing-here" in managed.status
    assert managed.status in plain(managed._status_line.value)
    managed.other.value = "no such model"
    managed.remove_button.click()
    assert "no such model" in managed.status
    assert managed.confirmation.layout.display == "none"


def test_remove_asks_first(managed):
    entry = build()
    managed.refresh()
    managed.picker.value = KEY
    managed.remove_button.click()
    assert managed.confirmation.layout.display == ""
    assert plain(managed.question.value) == f"Remove {KEY}, {SIZE} on disk?"
    assert entry.is_complete()
    managed.no_button.click()
    assert (managed.confirmation.layout.display, managed.status) == ("none", f"{KEY} stays.")
    assert entry.is_complete()
    managed.remove_button.click()
    managed.yes_button.click()
    assert managed.wait(WAIT_S)
    assert managed.status == f"{KEY}: {SIZE} freed."
    assert not entry.path.exists()
    assert row_of(managed, KEY).split()[:3] == [KEY, "no", "-"]


def test_what_is_asked_about_is_what_is_removed(managed):
    """Picking another model while the question stands changes nothing about it."""
    entry = build()
    managed.picker.value = KEY
    managed.remove_button.click()
    managed.picker.value = "lfm2.5-230m"
    managed.yes_button.click()
    assert managed.wait(WAIT_S)
    assert not entry.path.exists()


def test_keyboard_keeps_its_place_around_the_question(managed, traffic, monkeypatch):
    focused = []
    for name in ("no_button", "remove_button"):
        monkeypatch.setattr(getattr(managed, name), "focus", lambda name=name: focused.append(name))
    managed.remove_button.click()
    managed.no_button.click()
    assert focused == ["no_button", "remove_button"]


def test_question_says_that_a_model_is_in_use(managed, monkeypatch):
    build()
    monkeypatch.setattr(
        manager.residents, "loaded", lambda: (residents.Resident(KEY, "onnx", "cpu", "q8", 1),)
    )
    managed.picker.value = KEY
    managed.remove_button.click()
    assert "It is loaded in this kernel" in plain(managed.question.value)


def test_verify_finds_what_has_changed(managed):
    entry = build()
    managed.picker.value = KEY
    managed.verify_button.click()
    assert managed.wait(WAIT_S)
    assert managed.status == f"{KEY} is intact"
    (entry.path / "model.onnx").write_bytes(b"y" * 1000)
    managed.verify_button.click()
    assert managed.wait(WAIT_S)
    assert "model.onnx" in managed.status
    assert row_of(managed, KEY).split()[:2] == [KEY, "damaged"]
    managed.picker.value = "lfm2.5-230m"
    managed.verify_button.click()
    assert managed.wait(WAIT_S)
    assert managed.status == "lfm2.5-230m is not on this machine"


@pytest.mark.skipif(not HUB, reason="there are no fixtures of hub repos")
def test_downloaded_model_can_be_picked_and_used(managed, server):
    serve(server, HUB[0])
    managed.other.value = REPO
    managed.download_button.click()
    assert managed.wait(WAIT_S)
    managed.other.value = ""
    managed.picker.value = REPO
    assert inventory.model_row(get_model(REPO))["here"] == "fetched"
    assert isinstance(server.repos[REPO], Repo)
