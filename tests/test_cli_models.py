"""`tinykit models …` against a hub on this machine."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import tiny_models as tiny
from tests.hub_server import NEEDED, REPO, HubServer, make_files
from tests.index_server import Fault
from tinykit import cli, download, hub, hub_cache, hub_listing, registry, store
from tinykit.registry import HubSource, ModelSpec

ROOT = Path(cli.__file__).parent.parent.parent
GRAPH = "onnx/model_q4.onnx"
SIZE = sum(len(make_files()[name]) for name in NEEDED)


@pytest.fixture
def run(capsys):
    """Run the command; returns (exit code, standard output, standard error)."""

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            cli.main(["models", *map(str, arguments)])
        return caught.value.code, *capsys.readouterr()

    return run


@pytest.fixture(autouse=True)
def server(monkeypatch, tmp_path):
    monkeypatch.setattr(download, "_RETRY_PAUSE_S", 0)
    monkeypatch.setattr(hub_listing, "_RETRY_PAUSE_S", 0)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    models = {
        "tiny": ModelSpec("tiny", "Tiny", "llama", (HubSource(REPO),), dtype="q4", good_for="tests"),
        "no": ModelSpec(
            "no", "No", "llama", (HubSource("tiny-org/odd"),), refusals=(("onnx", "it is too odd"),)
        ),
    }
    monkeypatch.setattr(registry, "MODELS", models)
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def gguf(tmp_path):
    return tiny.write_gguf(tmp_path / "mine.gguf", "llama", tiny.random_weights("llama"), "Q8_0")


def rows(run):
    return {row["key"]: row for row in json.loads(run("--json")[1])}


def test_table_and_rows(run):
    code, out, _ = run()
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["model", "here", "on", "disk", "download", "family", "dtype", "good", "for"],
        ["tiny", "no", "-", "?", "llama", "q4", "tests"],
        ["no", "no", "-", "?", "llama", "auto"],
    ]
    assert rows(run)["no"]["refusals"] == {"onnx": "it is too odd"}
    run("download", "tiny")
    row = rows(run)["tiny"]
    assert (row["here"], row["disk_bytes"], row["from"]) == ("fetched", SIZE, [f"onnx {REPO}"])


def test_list_and_path_make_no_request(run, server):
    run("download", "tiny")
    server.seen.clear()
    assert run()[0] == run("info", "tiny")[0] == run("verify", "tiny")[0] == run("download", "tiny")[0] == 0
    code, out, _ = run("path", "tiny")
    assert (code, out.strip()) == (0, str(hub.locate(HubSource(REPO), "q4").folder))
    assert server.seen == []


@pytest.mark.parametrize("name", ["tiny", REPO, f"{REPO}@main"])
def test_download_by_key_or_hub_id(run, name):
    code, out, err = run("download", name)
    assert code == 0, err
    assert out.startswith(f"{name} is ready in ")


def test_download_of_all_leaves_out_what_is_refused(run):
    code, out, _ = run("download", "--all", "--json")
    assert code == 0
    (result,) = json.loads(out)["results"]
    assert (result["model"], result["ok"]) == ("tiny", True)
    assert Path(result["path"]).is_dir()


def test_refused_backend_is_said_before_any_request(run, server):
    code, out, err = run("download", "no")
    assert (code, out) == (5, "")
    assert "no does not run on the onnx backend: it is too odd" in err
    assert server.seen == []


def test_failure_names_status_repo_and_file_in_both_forms(run, server):
    server.faults[GRAPH] = [Fault(status=403)] * 2
    code, out, err = run("download", "tiny")
    assert (code, out) == (4, "")
    assert "403" in err and REPO in err
    code, out, _ = run("download", "tiny", "--json")
    (result,) = json.loads(out)["results"]
    assert code == 4 and result["ok"] is False
    assert "403" in result["error"] and "access" in result["hint"]


def test_one_failure_does_not_stop_the_others(run, server):
    code, out, err = run("download", "nobody/nothing", "tiny")
    assert code == 4
    assert "tiny is ready" in out and "There is no repo nobody/nothing" in err


def test_download_waits_until_all_is_there(server):
    server.faults[GRAPH] = [Fault(stall_at=1000)]
    child = subprocess.Popen(
        [sys.executable, "-m", "tinykit", "models", "download", REPO],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert server.stalled.wait(60)
    time.sleep(0.1)
    assert child.poll() is None
    server.go_on.set()
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert out.startswith(f"{REPO} is ready in ")


def test_offline(run, server):
    code, _, err = run("download", "tiny", "--offline")
    assert code == 4 and "network is switched off" in err
    assert server.seen == []


def test_download_again_with_force_mends(run, server):
    run("download", "tiny")
    path = hub.locate(HubSource(REPO), "q4").folder / GRAPH
    path.resolve().write_bytes(bytes(path.stat().st_size))
    code, _, err = run("verify", "tiny")
    assert code == 4 and "has changed" in err
    assert run("download", "tiny", "--force")[0] == 0
    assert run("verify", "tiny")[:2] == (0, "tiny is intact\n")


def test_verify_all_and_what_is_not_here(run):
    assert run("verify", "--all") == (0, "", "No models are here.\n")
    code, _, err = run("verify", "tiny")
    assert code == 4 and "tinykit models download tiny" in err
    run("download", "tiny")
    assert run("verify", "--all")[:2] == (0, "tiny is intact\n")


def test_remove_keeps_the_hubs_files(run):
    run("download", "tiny")
    copy = hub.locate(HubSource(REPO), "q4")
    code, out, _ = run("remove", "--all", "--json")
    (result,) = json.loads(out)["results"]
    assert code == 0 and result["kept"] == [str(copy.folder)]
    assert copy.is_complete()
    assert rows(run)["tiny"]["here"] == "no"
    assert list(hub_cache.cache_folder().rglob("*.onnx"))


def test_remove_of_a_users_file_removes_only_its_import(run, gguf):
    assert run("download", gguf)[0] == 0
    before = gguf.read_bytes()
    code, out, _ = run("remove", gguf)
    assert code == 0 and "freed" in out and str(gguf) in out
    assert gguf.read_bytes() == before
    assert store.entries() == []


def test_info(run, server):
    code, out, _ = run("info", "tiny", "--remote")
    assert code == 0
    facts = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()}
    assert facts["family"] == "llama" and facts["from"] == f"onnx {REPO}"
    assert GRAPH in facts["files"]
    row = json.loads(run("info", "tiny", "--remote", "--json")[1])
    assert (row["fetch_bytes"], row["missing_bytes"], row["commit"]) == (SIZE, SIZE, "c" * 40)
    assert server.file_requests == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("path", "tiny"), 4, "is not on this machine"),
        (("path", "tinny"), 3, "Did you mean tiny"),
        (("download", "tinny"), 3, "Did you mean tiny"),
        (("download", "tiny", "--dtype", "q8"), 2, "there are q4, fp16"),
        (("download", "tiny", "--dtype", "q3"), 2, "Unknown dtype"),
        (("download", "tiny", "--all"), 2, "either keys of models or --all"),
        (("verify",), 2, "either keys of models or --all"),
        (("download", "tiny", "--backend", "mlx"), 4, "no source for mlx"),
    ],
    ids=[
        "not here",
        "unknown",
        "unknown download",
        "no such dtype",
        "no dtype",
        "both",
        "neither",
        "no source",
    ],
)
def test_errors(run, arguments, code, message):
    actual, out, err = run(*arguments)
    assert (actual, out) == (code, "")
    assert message in err
