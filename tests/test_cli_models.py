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
    monkeypatch.setenv("TINYKIT_PROGRESS", "off")  # on a slow machine there would be lines of it
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
        [],
        "?  not noted; 'tinykit models info MODEL --remote' asks the hub".split(),
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
    assert result["error"]["type"] == "AccessError"
    assert "403" in result["error"]["message"] and "access" in result["error"]["hint"]


def test_one_failure_does_not_stop_the_others(run, server):
    code, out, err = run("download", "nobody/nothing", "tiny")
    assert code == 4
    assert "tiny is ready" in out and "There is no repo nobody/nothing" in err


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_unknown_key_does_not_stop_the_others(run, server, as_json):
    server.repos["tiny-org/other"] = server.repos[REPO]
    code, out, err = run("download", "tiny", "tinny", "tiny-org/other", "tiny", *["--json"] * as_json)
    assert code == 3
    if as_json:
        results = json.loads(out)["results"]
        assert [(row["model"], row["ok"]) for row in results] == [
            ("tiny", True), ("tinny", False), ("tiny-org/other", True),
        ]  # fmt: skip
        assert results[1]["error"] == {
            "type": "UnknownModelError", "message": "There is no model 'tinny'",
            "hint": "Did you mean tiny? List all with: tinykit models", "nearest": ["tiny"],
        }  # fmt: skip
        assert err == ""
    else:
        assert [line.split()[0] for line in out.splitlines()] == ["tiny", "tiny-org/other"]
        assert err.startswith("Error: tinny: There is no model 'tinny'\nDid you mean tiny?")


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (("info", "tinny"), 3, "UnknownModelError"),
        (("path", "tinny"), 3, "UnknownModelError"),
        (("path", "tiny"), 4, "NotFoundError"),
        (("info", "tiny", "--remote", "--backend", "mlx"), 2, "OptionError"),
        (("verify",), 2, "UsageError"),
        (("download", "--nope"), 2, "NoSuchOption"),
        (("download", "--backend", "torch"), 2, "BadParameter"),
    ],
)
def test_errors_as_json(run, arguments, code, kind):
    actual, out, err = run(*arguments, "--json")
    error = json.loads(out)["error"]
    assert (actual, err, error["type"]) == (code, "", kind)
    assert error["message"] and "hint" in error


def test_wrong_config_file_as_json(run, tmp_path, monkeypatch):
    path = tmp_path / "config.toml"
    path.write_text('[models.mine]\nrepo = "a/b"\ndtype = "q3"\n')
    monkeypatch.setenv("TINYKIT_CONFIG", str(path))
    code, out, _ = run("--json")
    error = json.loads(out)["error"]
    assert code == 2 and f"[models.mine] in {path} has dtype = 'q3'" in error["message"]


def test_path_as_json(run):
    run("download", "tiny")
    code, out, _ = run("path", "tiny", "--json")
    folder = hub.locate(HubSource(REPO), "q4").folder
    assert (code, json.loads(out)) == (0, {"model": "tiny", "path": str(folder)})


@pytest.fixture
def other(server):
    """A repo that no key stands for."""
    server.repos["tiny-org/other"] = server.repos[REPO]
    return "tiny-org/other"


def test_model_fetched_by_hub_id_is_listed_verified_and_forgotten(run, server, other):
    run("download", other)
    server.seen.clear()
    row = rows(run)[other]
    assert (row["here"], row["disk_bytes"], row["is_known"], row["family"]) == (
        "fetched",
        SIZE,
        False,
        "llama",
    )
    line = next(line for line in run()[1].splitlines() if line.startswith(other))
    assert line.split()[:6] == [other, "fetched", "160.0", "kB", "160.0", "kB"]
    assert run("verify", "--all")[:2] == (0, f"{other} is intact\n")
    copy = hub.locate(HubSource(other))
    code, out, _ = run("remove", other)
    assert code == 0
    assert out == (
        f"{other}: 0 B freed; left where they are: {copy.folder}\n"
        "The hub's cache belongs to other programs too, so 160.0 kB stay there. "
        f"Remove them with: hf cache rm model/{other}\n"
    )
    assert copy.is_complete()
    assert list(rows(run)) == ["tiny", "no"]
    assert server.seen == []


def test_repo_of_a_known_model_is_listed_once(run):
    run("download", REPO)
    assert list(rows(run)) == ["tiny", "no"]
    run("download", f"{REPO}@main")
    assert list(rows(run)) == ["tiny", "no", f"{REPO}@main"]


def test_folder_is_kept_once_whatever_its_precisions(run):
    run("download", "tiny")
    run("download", "tiny", "--dtype", "fp16")
    copy = hub.locate(HubSource(REPO), "q4")
    assert rows(run)["tiny"]["disk_bytes"] == SIZE + 40_000  # configuration and tokenizer count once
    (result,) = json.loads(run("remove", "tiny", "--json")[1])["results"]
    assert result["kept"] == [str(copy.folder)]
    assert result["hint"].endswith(f"hf cache rm model/{REPO}")


def test_import_of_a_file_is_listed_until_it_is_removed(run, gguf):
    run("download", gguf)
    row = rows(run)["mine"]
    assert (row["here"], row["is_known"], row["good_for"]) == ("ready", False, f"(made from {gguf})")
    assert row["disk_bytes"] > 0
    assert run("verify", "--all")[:2] == (0, "mine is intact\n")
    gguf.unlink()
    assert run("info", "mine")[0] == 0
    code, out, _ = run("remove", "mine")
    assert (code, out.startswith("mine: "), "freed" in out) == (0, True, True)
    assert store.entries() == [] and "mine" not in rows(run)


def test_old_imports_are_removed_alone(run):
    entry = store.entry("models", "tiny", "0123456789ab-q8-v1")
    with store.building(entry) as folder:
        (folder / "model.onnx").write_bytes(b"x" * 1000)
    run("download", "tiny")
    assert json.loads(run("info", "tiny", "--json")[1])["old_builds"] == {entry.path.name: entry.size_bytes}
    assert run("remove", "--old", "--all")[1].startswith("tiny: 1.")
    assert not entry.path.exists()
    assert rows(run)["tiny"]["here"] == "fetched"
    code, out, err = run("remove", "--old", "--all")
    assert (code, out) == (0, "") and err.startswith("Nothing old is here")
    assert rows(run)["tiny"]["here"] == "fetched"


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


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["plain", "force"])
def test_download_mends_what_verify_found(run, server, force):
    run("download", "tiny")
    path = hub.locate(HubSource(REPO), "q4").folder / GRAPH
    path.resolve().write_bytes(bytes(path.stat().st_size))
    code, _, err = run("verify", "tiny")
    assert code == 4 and "has changed" in err
    assert rows(run)["tiny"]["here"] == "damaged"
    code, _, err = run("download", "tiny", "--offline")
    assert code == 4
    assert run("download", "tiny", *force)[0] == 0
    assert rows(run)["tiny"]["here"] == "fetched"
    assert run("verify", "tiny")[:2] == (0, "tiny is intact\n")


def test_other_precision_that_is_damaged_is_said(run):
    run("download", "tiny")
    run("download", "tiny", "--dtype", "fp16")
    path = hub.locate(HubSource(REPO), "fp16").folder / "onnx" / "model_fp16.onnx"
    path.resolve().write_bytes(bytes(path.stat().st_size))
    assert run("verify", "tiny")[0] == 4
    code, out, _ = run("download", "tiny")
    assert code == 0 and "Its fp16 is damaged; mend it with: --dtype fp16" in out
    assert json.loads(run("download", "tiny", "--json")[1])["results"][0]["damaged_dtypes"] == ["fp16"]
    assert run("download", "tiny", "--dtype", "fp16")[0] == 0
    assert run("verify", "tiny")[:2] == (0, "tiny is intact\n")


def test_import_that_is_damaged_is_made_again(run, gguf):
    run("download", gguf)
    (entry,) = store.entries()
    graph = next(entry.path.rglob("*.onnx"))
    graph.write_bytes(bytes(graph.stat().st_size))
    assert run("verify", gguf)[0] == 4
    assert rows(run)["mine"]["here"] == "damaged"
    assert run("download", gguf)[0] == 0
    assert run("verify", gguf)[0] == 0


def test_file_that_was_mended_by_others_counts_as_intact(run):
    run("download", "tiny")
    path = hub.locate(HubSource(REPO), "q4").folder / GRAPH
    content = path.read_bytes()
    path.resolve().write_bytes(bytes(len(content)))
    assert run("verify", "tiny")[0] == 4
    path.resolve().write_bytes(content)
    assert run("verify", "tiny")[0] == 0
    assert rows(run)["tiny"]["here"] == "fetched"


def test_home_below_a_file_is_said(run, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TINYKIT_HOME", str(tmp_path / "file" / "home"))
    code, out, err = run()
    assert code == 0 and out.startswith("model")
    assert err == (
        f"The cache folder {tmp_path / 'file' / 'home'} cannot be used: {tmp_path / 'file'} is not a folder.\n"
        "Set TINYKIT_HOME to a folder that you can write to.\n"
    )
    json.loads(run("--json")[1])


def test_verify_of_a_folder_that_nothing_was_made_of_names_it(run):
    folder = Path(__file__).parent / "fixtures" / "hub" / "lfm2"
    code, out, err = run("verify", folder)
    assert (code, out) == (4, "")
    assert f"Nothing was made of {folder} yet" in err
    assert f"tinykit models download {folder}" in err


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
    assert row["dtypes"] == {"q4": SIZE, "fp16": 40_000 + SIZE - 160_000}
    assert (row["layout"], row["tokenizer"]) == ("transformers.js", "tokenizer.json")
    assert {seen.path.rpartition("/")[2] for seen in server.file_requests} == {"config.json"}
    assert not hub_cache.cache_folder().exists()


def test_info_on_a_hub_id_asks_for_the_remote(run, server, other):
    server.repos[other].commits["c" * 40] |= {
        "config.json": b'{"model_type": "qwen3", "max_position_embeddings": 40960}'
    }
    code, out, _ = run("info", other)
    assert code == 0 and f"tinykit models info {other} --remote" in out
    assert server.seen == []
    row = json.loads(run("info", other, "--remote", "--json")[1])
    assert (row["family"], row["context_length"], "hint" in row) == ("qwen3", 40960, False)


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
