"""Runs on a Dask cluster of real processes: the same rows, whatever happens to the workers."""

import os
import signal
import sys
import threading
from collections import Counter
from dataclasses import replace

import pytest

from tests import tiny_models as tiny
from tests.lab.conftest import MESSAGES, short
from tests.worker.conftest import PATIENCE_S, Control, in_thread, wait_until  # noqa: F401  # a fixture
from tinykit import lab
from tinykit.convert.export import export_model
from tinykit.convert.importer import open_source
from tinykit.devices import default_threads
from tinykit.errors import MissingPackageError, OptionError, WorkerError
from tinykit.lab import dask_runner, dask_tasks
from tinykit.lab.dask_runner import DaskRunner
from tinykit.lab.plan import Target, new_plan

distributed = pytest.importorskip("distributed")

CASES = [f"{message} number {number}" for number in range(3) for message in MESSAGES]
MANY = [short(), short("long", max_tokens=5)]
ENTRY_POINT = "[tinykit.backends]\nscripted = tests.worker.scripted:make\n"


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    """The backend of tests as an installed package, here and in the cluster, and the files that control it."""
    folder = tmp_path_factory.mktemp("dask")
    info = folder / "site" / "scripted-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(ENTRY_POINT, encoding="utf-8")
    (folder / "control").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder / "site"))
        patch.setenv("WORKER_TEST_DIR", str(folder / "control"))
        yield Control(folder / "control")


@pytest.fixture(scope="module")
def cluster(control, tmp_path_factory):
    """Two processes, with a home of their own."""
    env = {
        "TINYKIT_HOME": str(tmp_path_factory.mktemp("home")),
        "WORKER_TEST_DIR": str(control.folder),
        "PYTHONPATH": os.pathsep.join([str(control.folder.parent / "site"), *filter(None, sys.path)]),
    }
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0", "env": env}
    with distributed.LocalCluster(**options, local_directory=str(control.folder.parent)) as cluster:
        yield cluster


@pytest.fixture
def client(cluster, control):
    with distributed.Client(cluster, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=PATIENCE_S)
        yield client
        for path in control.folder.iterdir():
            path.unlink()


@pytest.fixture
def scripted(tmp_path):
    """A model that does what files tell it to."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    weights = tiny.write_gguf(tmp_path / "tiny.gguf", "llama", tiny.random_weights("llama"))
    export_model(open_source(weights), folder)
    return Target(str(folder), backend="scripted")


def run(models, out, recipes=None, *, cases=CASES, **options):
    options = {"progress": False, "cache": False, "batch_size": 2, **options}
    return lab.run(cases, recipes or short(), models, out=out, **options)


def executing(dask_worker):
    """The process of a worker, and how many tasks it is at."""
    return os.getpid(), len(dask_worker.state.executing)


def titles(found):
    """All of the rows that does not tell where and when."""
    own = {
        "elapsed_s": 0,
        "ttft_s": 0,
        "prefill_s": 0,
        "decode_s": 0,
        "at": "",
        "contended": False,
        "threads": 0,
    }
    return [replace(row, **own, kv_reused_tokens=0) for row in found.rows]


def test_rows_are_those_of_this_process(gguf, tmp_path, client):
    events = []
    ours = run(gguf, tmp_path / "ours", MANY)
    theirs = run(gguf, tmp_path / "theirs", MANY, runner=client, progress=events.append)
    assert theirs.is_complete and not theirs.failures()
    assert titles(theirs) == titles(ours)
    assert {row.threads for row in theirs.of("short")} == {max(1, default_threads() // 2)}
    assert all(row.contended for row in theirs.rows if row.prompt_tokens)
    lines = (tmp_path / "theirs" / "rows.jsonl").read_bytes().count(b"\n")
    assert lines == len(theirs.rows) == 3 * len(CASES)
    assert "100 % of 54 titles" in events[-1].message or events[-1].status == "done"

    def held():
        return [id(session) for session in dask_tasks._held.values()]

    before = client.run(held)
    assert Counter(map(len, before.values())) == {1: 2}  # each has loaded it
    run(gguf, tmp_path / "more", short("third", max_tokens=4), runner=client)
    assert client.run(held) == before  # and keeps it
    assert run(gguf, tmp_path / "theirs", MANY, runner=client).rows == theirs.rows


def test_a_killed_worker_costs_no_row(scripted, tmp_path, client, control, in_thread):  # noqa: F811
    ours = run(scripted, tmp_path / "ours")
    control.on("hold")
    call = in_thread(lambda: run(scripted, tmp_path / "theirs", runner=client))
    control.wait_for("held")

    def busy():
        return [pid for pid, tasks in client.run(executing).values() if tasks]

    wait_until(busy)
    os.kill(busy()[0], signal.SIGKILL)
    control.off("hold")
    theirs = call.get()
    assert theirs.is_complete and not theirs.failures()
    assert titles(theirs) == titles(ours)
    assert (tmp_path / "theirs" / "rows.jsonl").read_bytes().count(b"\n") == len(theirs.rows)


def test_a_model_that_kills_its_workers_fails_its_own_rows(scripted, tmp_path, client, cluster, control):
    runner = DaskRunner(client)
    facts = runner.facts(scripted)
    allowed, cluster.scheduler.allowed_failures = cluster.scheduler.allowed_failures, 0
    control.on("die")
    try:
        found = run(scripted, tmp_path / "run", cases=CASES[:8], runner=runner)
    finally:
        control.off("die")
        cluster.scheduler.allowed_failures = allowed
    assert facts["identity"]["model"] == "tiny"
    assert len(found.failures()) >= 7 and "workers lost in the same task: 1" in found.failures()[0].error
    assert len(found.titles("first-words")) == 8
    client.wait_for_workers(2, timeout=PATIENCE_S)
    whole = found.resume(runner=client, progress=False, cache=False)
    assert whole.is_complete and not whole.failures()


def test_ctrl_c_cancels_what_is_under_way_and_the_run_can_go_on(scripted, tmp_path, client, control):
    control.on("hold")

    def interrupt():
        control.wait_for("held")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    partial = run(scripted, tmp_path / "run", runner=client)
    thread.join(PATIENCE_S)
    assert partial.was_interrupted and partial.missing == len(CASES)
    assert len(partial.titles("first-words")) == len(CASES)  # these were made before

    def tasks(dask_worker):
        return len(dask_worker.state.tasks)

    control.off("hold")
    wait_until(lambda: not any(client.run(tasks).values()))  # nobody computes on
    whole = partial.resume(runner=client, progress=False, cache=False)
    assert whole.is_complete and not whole.was_interrupted
    assert titles(whole) == titles(run(scripted, tmp_path / "ours"))


def test_other_weights_under_the_same_name_are_an_error(gguf, client):
    runner = DaskRunner(client)
    plan = new_plan(lab.read_cases(CASES), short(), gguf, batch_size=2)
    facts = runner.facts(plan.targets[0])
    other = {**facts, "identity": {**facts["identity"], "build": "another", "dtype": "q2"}}
    cells = list(plan.cells(plan.variant("short")))
    jobs = list(plan.jobs(plan.targets[0], cells, other))
    with pytest.raises(WorkerError, match=r"another tiny\.gguf: .*dtype: q2 in the run") as caught:
        list(runner.rows(jobs))
    assert "same files" in caught.value.hint and caught.value.worker.startswith("tcp://127.0.0.1")
    assert len(list(runner.rows(plan.jobs(plan.targets[0], cells, facts)))) == len(CASES)


def test_model_that_no_worker_can_load_fails_its_rows(tmp_path, client):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\0" * 100)
    found = run(tmp_path / "bad.gguf", tmp_path / "run", runner=client)
    assert len(found.failures()) == len(CASES) and "bad.gguf" in found.failures()[0].error


def test_cluster_that_is_gone_is_an_error_and_the_run_is_kept(scripted, tmp_path, client, control, in_thread):  # noqa: F811
    control.on("hold")
    call = in_thread(lambda: run(scripted, tmp_path / "run", runner=client))
    control.wait_for("held")
    client.close()
    with pytest.raises(WorkerError, match="does not answer any more"):
        call.get()
    control.off("hold")
    assert len(lab.load(tmp_path / "run").titles("first-words")) == len(CASES)


def test_cluster_without_workers_is_an_error(gguf, tmp_path, monkeypatch):
    monkeypatch.setattr(dask_runner, "START_S", 0.1)
    options = {"n_workers": 0, "dashboard_address": ":0", "processes": False}
    with (
        distributed.LocalCluster(**options) as empty,
        distributed.Client(empty, set_as_default=False) as client,
    ):
        found = run(gguf, tmp_path / "run", runner=client)
    assert "has no worker" in found.failures()[0].error
    assert len(found.titles("first-words")) == len(CASES)


def test_dask_is_the_client_of_the_program_or_a_cluster_of_ones_own(gguf, tmp_path, cluster, monkeypatch):
    with distributed.Client(cluster) as client:
        runner = DaskRunner()
        assert runner._client is client
        runner.close()
        assert client.status == "running"
    monkeypatch.setattr(dask_runner, "default_threads", lambda: 1)
    runner = DaskRunner()
    own = runner._client
    (handler,) = own.run(lambda: signal.getsignal(signal.SIGINT)).values()
    assert handler == signal.SIG_IGN
    assert titles(run(gguf, tmp_path / "one", runner=runner)) == titles(run(gguf, tmp_path / "two"))
    runner.close()
    runner.close()
    assert own.status == "closed"


def test_what_is_no_runner_is_refused(gguf, tmp_path):
    with pytest.raises(OptionError, match="runner must be"):
        run(gguf, tmp_path / "run", runner="ray")


def test_missing_package_is_named(gguf, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingPackageError, match="runs on a Dask cluster") as caught:
        run(gguf, tmp_path / "run", runner="dask")
    assert "tinykit[dask]" in caught.value.hint


def test_address_of_a_scheduler_stands_for_its_cluster(gguf, tmp_path, cluster):
    runner = DaskRunner(cluster.scheduler_address)
    try:
        found = run(gguf, tmp_path / "run", runner=runner)
    finally:
        runner.close()
    assert found.is_complete and not found.failures()
    assert runner._client.status == "closed" and cluster.status.name == "running"


def test_address_without_a_scheduler_is_an_error(monkeypatch):
    monkeypatch.setattr(dask_runner, "CONNECT_S", 0.1)
    with pytest.raises(WorkerError, match="no Dask scheduler at 'tcp://127.0.0.1:1'") as caught:
        DaskRunner("tcp://127.0.0.1:1")
    assert "dask scheduler" in caught.value.hint


def test_number_of_workers_starts_a_cluster_of_ones_own(cluster):
    with distributed.Client(cluster) as client:
        runner = DaskRunner(workers=1)
        try:
            assert runner._client is not client
            assert len(runner._client.scheduler_info(n_workers=-1)["workers"]) == 1
        finally:
            runner.close()
