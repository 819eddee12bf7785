"""``tinykit worker``: list, status, start, stop, logs."""

import json

import pytest

from tests.worker.conftest import is_alive, wait_until
from tinykit import cli
from tinykit.worker.admin import duration_text
from tinykit.worker.spawning import is_free


@pytest.fixture
def tinykit(capsys):
    """Runs a command; what it printed, and the exit code if it is not 0."""

    def run(*words):
        with pytest.raises(SystemExit) as caught:
            cli.main(["worker", *map(str, words)])
        out, err = capsys.readouterr()
        return (out, err, caught.value.code) if caught.value.code else out

    return run


def test_worker_is_started_shown_and_stopped(tinykit, shared, backend, model_path, monkeypatch):
    monkeypatch.setenv("TINYKIT_BACKEND", "scripted")
    assert tinykit("list") == tinykit() == "No worker runs.\n"
    assert json.loads(tinykit("list", "--json")) == []
    assert tinykit("status") == tinykit("stop") == "No worker runs.\n"
    assert json.loads(tinykit("status", "--json")) == []

    assert "runs, pid" in tinykit("start", "--model", model_path, "--no-load")
    assert backend.lines("loads") == 0
    started = tinykit("start", "--model", model_path)
    assert backend.lines("loads") == 1
    name, pid = started.split()[0], int(started.split()[-1].rstrip("."))
    assert shared.complete("a", max_tokens=2).text and shared.worker.pid == pid

    (row,) = json.loads(tinykit("list", "--json"))
    assert row["name"] == name and row["pid"] == pid and row["state"] == "ready" and row["memory_bytes"] > 0
    table = tinykit("list").splitlines()
    assert table[0].split()[:5] == ["name", "pid", "state", "memory", "uptime"] and table[1].startswith(name)
    assert f"pid: {pid}\n" in tinykit("status", name[:4])
    assert f"pid: {pid}\n" in tinykit("status")
    assert json.loads(tinykit("status", name, "--json"))["idle_limit_s"] == 900
    assert [one["pid"] for one in json.loads(tinykit("status", "--json"))] == [pid]
    assert "loaded tiny" in tinykit("logs", name)
    assert tinykit("logs", "-n", 1).count("\n") == 1
    assert row["clients"] == 1 == shared.worker.clients  # who looks is none
    wrong = f"{name[:-1]}x"
    for command in ("stop", "status", "logs"):
        _, err, code = tinykit(command, wrong)
        assert code == 3 and wrong in err
        assert f"Did you mean {name}? There are: {name}" in err
        assert "Did you mean" not in tinykit(command, "nobody")[1]

    _, err, code = tinykit("stop", "")  # as of a variable that is not set
    assert code == 3 and "No worker '' runs" in err
    assert tinykit("stop", name) == f"{name} was stopped.\n"
    wait_until(lambda: not is_alive(pid))
    assert tinykit("list") == "No worker runs.\n"
    assert "ended: a client asked for it" in tinykit("logs", name)
    assert tinykit("stop", "--all") == "No worker runs.\n"
    for command in ("stop", "status"):
        _, err, code = tinykit(command, "nobody")
        assert code == 3 and "No worker 'nobody' runs." in err and "tinykit worker list" in err


def test_several_workers_are_all_shown_and_none_is_stopped_unnamed(
    tinykit, worker_dir, backend, model_path, monkeypatch
):
    monkeypatch.setenv("TINYKIT_BACKEND", "scripted")
    names = sorted(
        tinykit("start", "--model", model_path, "--no-load", *more).split()[0]
        for more in ((), ("--dtype", "fp32"))
    )
    assert [one["name"] for one in json.loads(tinykit("status", "--json"))] == names
    assert [line for line in tinykit("status").splitlines() if line.startswith("name: ")] == [
        f"name: {name}" for name in names
    ]
    _, err, code = tinykit("stop")
    assert code == 2 and f"There are 2 workers: {', '.join(names)}." in err and "stop --all" in err
    for command in ("stop", "status"):
        _, err, code = tinykit(command, "t")
        assert code == 2 and f"Name one of: {', '.join(names)}" in err
    _, err, code = tinykit("stop", names[0], "--all")
    assert code == 2 and "either the name of a worker or --all" in err
    assert tinykit("stop", "--all") == "".join(f"{name} was stopped.\n" for name in names)
    assert tinykit("stop") == "No worker runs.\n"


def test_status_of_a_worker_that_does_not_answer(tinykit, shared, monkeypatch):
    shared.load()
    name = shared.worker_name
    monkeypatch.setattr("tinykit.worker.admin.status_at", lambda launch: None)
    out, err, code = tinykit("status")
    assert (err, code) == ("", 6)
    assert f"name: {name}\nstate: no answer\nhint: End it: tinykit worker stop {name}\n" == out


@pytest.mark.parametrize("command", [("complete", "--max-tokens", 5), ("title", "-r", "plain", "--json")])
def test_commands_can_use_the_worker(capsys, shared, backend, model_path, monkeypatch, command):
    monkeypatch.setenv("TINYKIT_BACKEND", "scripted")

    def run(*words):
        with pytest.raises(SystemExit):
            cli.main([*map(str, command), "-m", str(model_path), *words, "fix the login test"])
        out, err = capsys.readouterr()
        assert "Error" not in err
        return json.loads(out)["raw"] if "--json" in command else out

    said = run("--shared")
    assert said.strip() and run("--shared") == said
    assert backend.lines("loads") == 1  # by the worker, which has outlived the first command
    assert shared.worker.served >= 2
    assert run() == said
    assert backend.lines("loads") == 2


def test_dead_worker_is_not_listed_and_what_it_left_is_swept(tinykit, shared):
    import os
    import signal

    shared.load()
    launch, pid = shared._remote(shared.spec).launch, shared.worker.pid
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_free(launch))
    assert launch.transport.path.exists()
    assert tinykit("list") == "No worker runs.\n"
    assert not launch.transport.path.exists() and not launch.path("json").exists()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (61, "1 min"), (3600, "1 h 0 min"), (7505, "2 h 5 min")],
)
def test_durations_for_people(seconds, text):
    assert duration_text(seconds) == text
