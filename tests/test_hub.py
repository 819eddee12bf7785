import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.hub_server import COMMIT, NEEDED, NEWER, PAGE, POINTER, REPO, HubServer, make_files
from tests.index_server import Fault, IndexServer, make_certificate
from tinykit import displays, download, hub, hub_cache, hub_listing, store
from tinykit.errors import (
    AccessError,
    CacheError,
    CertificateError,
    ChecksumError,
    DiskSpaceError,
    DownloadError,
    NotFoundError,
    OfflineError,
    OptionError,
    ProxyError,
    TruncatedError,
    UnsupportedModelError,
    WrongContentError,
)
from tinykit.model_spec import WEIGHTS, HubSource
from tinykit.progress import Progress, subscribe

ROOT = Path(hub.__file__).parent.parent
FILES = make_files()
GRAPH, DATA = "onnx/model_q4.onnx", "onnx/model_q4.onnx_data"
SOURCE = HubSource(REPO)
SIZE = sum(len(FILES[name]) for name in NEEDED)

# fetches in another process and prints what happens
FETCHER = f"""
from tinykit import hub
from tinykit.model_spec import HubSource
from tinykit.progress import Progress
progress = Progress(lambda event: print(event.status, event.file, event.message, flush=True))
print(hub.fetch(HubSource({REPO!r}), "q4", progress=progress).folder)
"""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(download, "_RETRY_PAUSE_S", 0)
    monkeypatch.setattr(hub_listing, "_RETRY_PAUSE_S", 0)


@pytest.fixture(autouse=True)
def server(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.fixture
def events():
    return []


def fetch(dtype="q4", *, source=SOURCE, progress=False, **options):
    return hub.fetch(source, dtype, progress=Progress(progress), **options)


def requested(server):
    return [seen.path.partition("/resolve/")[2].partition("/")[2] for seen in server.file_requests]


def parts():
    return list(hub_cache.cache_folder().rglob("*.incomplete"))


def start_fetcher():
    return subprocess.Popen(
        [sys.executable, "-c", FETCHER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_exactly_the_files_of_the_dtype_are_downloaded(server):
    assert hub.locate(SOURCE, "q4") is None
    copy = fetch()
    assert requested(server) == list(NEEDED)
    assert len(server.seen) == 1 + len(NEEDED)
    assert hub_cache.names_in(copy.folder) == sorted(NEEDED)
    assert {name: (copy.folder / name).read_bytes() for name in NEEDED} == {
        name: FILES[name] for name in NEEDED
    }
    assert (copy.commit, copy.dtype, copy.size_bytes) == (COMMIT, "q4", SIZE)
    assert copy.folder == hub_cache.cache_folder() / "models--tiny-org--tiny-ONNX" / "snapshots" / COMMIT
    assert parts() == []
    copy.verify()


def test_warm_cache_makes_no_request_and_shows_nothing(server, events, capsys):
    folder = fetch().folder
    server.seen.clear()
    assert fetch(progress=events.append).folder == folder
    assert fetch(offline=True).folder == folder
    assert hub.locate(SOURCE, "q4").folder == folder
    assert server.seen == [] and events == []
    assert capsys.readouterr() == ("", "")


def test_auto_serves_the_dtype_it_chose_as_well(server):
    assert fetch("auto").dtype == "q4"
    assert fetch("auto").offered == hub.locate(SOURCE, "auto").offered == ("q4", "fp16")
    server.seen.clear()
    assert fetch("q4").dtype == fetch("auto").dtype == "q4"
    assert server.seen == []


def test_another_dtype_downloads_only_what_is_new(server):
    fetch()
    server.seen.clear()
    assert fetch("fp16").dtype == "fp16"
    assert requested(server) == ["onnx/model_fp16.onnx"]
    assert {copy.dtype for copy in hub.copies(SOURCE)} == {"q4", "fp16"}


def test_copy_made_by_the_hub_library_is_used(server):
    from huggingface_hub import hf_hub_download

    for name in NEEDED:
        hf_hub_download(REPO, name, cache_dir=hub_cache.cache_folder(), endpoint=server.url)
    server.seen.clear()
    copy = fetch()
    assert [seen.path for seen in server.seen] == [f"/api/models/{REPO}/revision/main"]
    assert copy.is_complete()


def test_hub_library_uses_our_copy(server):
    from huggingface_hub import hf_hub_download

    fetch()
    path = hf_hub_download(REPO, GRAPH, cache_dir=hub_cache.cache_folder(), local_files_only=True)
    assert Path(path).read_bytes() == FILES[GRAPH]


def test_hub_librarys_own_look_at_the_cache_finds_nothing_odd(server):
    from huggingface_hub import scan_cache_dir

    fetch()
    server.faults["onnx/model_fp16.onnx"] = [Fault(send_bytes=1000)] * 4
    with pytest.raises(TruncatedError):
        fetch("fp16")
    found = scan_cache_dir(hub_cache.cache_folder())
    (repo,) = found.repos
    (revision,) = repo.revisions
    assert found.warnings == []
    assert (repo.repo_id, repo.size_on_disk, revision.commit_hash, set(revision.refs)) == (
        REPO,
        SIZE,
        COMMIT,
        {"main"},
    )
    assert [file.size_on_disk for file in found.incomplete_files] == [4000]


def test_copy_of_another_program_serves_offline_without_our_note(server):
    fetch()
    hub.forget(SOURCE)
    server.seen.clear()
    assert fetch(offline=True).dtype == "q4"
    assert server.seen == []
    with pytest.raises(OfflineError):
        fetch("fp16", offline=True)


def test_moved_cache_is_fetched_again(server, monkeypatch, tmp_path):
    fetch()
    monkeypatch.setenv("HF_HOME", str(tmp_path / "other"))
    assert hub.locate(SOURCE, "q4") is None
    assert fetch().folder.is_relative_to(tmp_path / "other")


def test_later_commit_is_only_followed_when_forced(server):
    fetch()
    server.repos[REPO].commits[NEWER] = FILES | {GRAPH: FILES[GRAPH][::-1]}
    server.repos[REPO].main = NEWER
    server.seen.clear()
    assert fetch().commit == COMMIT and server.seen == []
    copy = fetch(force=True)
    assert copy.commit == NEWER
    assert (copy.folder / GRAPH).read_bytes() == FILES[GRAPH][::-1]
    assert requested(server) == [GRAPH]
    assert fetch().commit == NEWER


@pytest.mark.parametrize("revision", [COMMIT, "v1"])
def test_revision(server, revision):
    server.repos[REPO].tags = {"v1": COMMIT}
    server.repos[REPO].commits[NEWER] = make_files(seed=2)
    server.repos[REPO].main = NEWER
    assert fetch(source=HubSource(REPO, revision)).commit == COMMIT
    assert fetch().commit == NEWER


def test_safetensors_are_taken_where_there_is_no_graph(server):
    server.repos[REPO].commits[COMMIT] = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model.safetensors": b"w" * 99,
    }
    copy = fetch("auto")
    assert sorted(copy.files) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_plan_downloads_nothing(server):
    planned = hub.plan(SOURCE, "q4")
    assert (planned.size_bytes, planned.download_bytes) == (SIZE, SIZE)
    assert len(server.seen) == 1 and not hub_cache.cache_folder().exists()
    fetch()
    assert hub.plan(SOURCE, "q4").download_bytes == 0


def test_files_named_by_the_source(server):
    source = HubSource(REPO, files=("config.json", "README.md"))
    assert sorted(fetch("fp32", source=source).files) == ["README.md", "config.json"]
    with pytest.raises(OptionError, match=r"has no gone\.onnx"):
        fetch(source=HubSource(REPO, files=("gone.onnx",)), force=True)


def test_nothing_to_run_is_said_before_any_download(server):
    server.repos[REPO].commits[COMMIT] = {"pytorch_model.bin": b"x"}
    with pytest.raises(UnsupportedModelError):
        fetch("auto")
    server.repos[REPO].commits[COMMIT] = FILES
    with pytest.raises(OptionError, match="there are q4, fp16"):
        fetch("q8")
    assert server.file_requests == []


# progress


def test_events(server, events, monkeypatch):
    monkeypatch.setattr(displays, "_EVENT_INTERVAL_S", 0)
    hub.fetch(SOURCE, "q4", model="tiny", progress=Progress(events.append))
    assert {(event.model, event.name) for event in events} == {("tiny", REPO)}
    whole = [event for event in events if event.file is None]
    assert [event.status for event in whole][:2] == ["initiate", "download"]
    assert whole[-1].status == "done"
    assert (whole[-1].loaded_bytes, whole[-1].total_bytes, whole[-1].percent) == (SIZE, SIZE, 100)
    totals = [event for event in events if event.status == "progress_total"]
    assert totals[-1].files == {name: (len(FILES[name]), len(FILES[name])) for name in NEEDED}
    assert sorted(t.loaded_bytes for t in totals) == [t.loaded_bytes for t in totals]
    for name in NEEDED:
        of_file = [event for event in events if event.file == name]
        assert [event.status for event in of_file][:2] == ["initiate", "download"]
        assert of_file[-1].status == "done"
        assert of_file[-2].status == "progress" and of_file[-2].percent == 100


def test_failed_download_is_one_error_event_for_the_whole(server, events):
    server.faults[DATA] = [Fault(status=403)]
    with pytest.raises(AccessError):
        fetch(progress=events.append)
    assert [event.status for event in events].count("error") == 1
    assert events[-1].status == "error" and "not allowed" in events[-1].message


def test_listeners_hear_all_and_can_leave(server, events):
    unsubscribe = subscribe(events.append)
    fetch()
    heard = len(events)
    assert heard and events[-1].status == "done"
    unsubscribe()
    unsubscribe()
    fetch("fp16")
    assert len(events) == heard


# interrupted and resumed


def test_cut_body_is_resumed(server):
    server.faults[DATA] = [Fault(send_bytes=1000), Fault(send_bytes=2000)]
    fetch().verify()
    assert [seen.range for seen in server.file_requests if seen.path.endswith(DATA)] == [
        None, "bytes=1000-", "bytes=3000-",
    ]  # fmt: skip


def test_body_that_is_always_cut_is_an_error_that_keeps_the_part(server):
    server.faults[DATA] = [Fault(send_bytes=1000)] * 4
    with pytest.raises(TruncatedError, match="4,000 bytes are kept"):
        fetch()
    assert [part.read_bytes() for part in parts()] == [FILES[DATA][:4000]]
    server.seen.clear()
    fetch().verify()
    assert server.file_requests[0].range == "bytes=4000-"
    assert GRAPH in requested(server) and "config.json" not in requested(server)


def test_resumed_bytes_count_as_loaded(server, events):
    server.faults[DATA] = [Fault(send_bytes=30_000)] + [Fault(send_bytes=0)] * 3
    with pytest.raises(TruncatedError):
        fetch()
    assert hub.plan(SOURCE, "q4").download_bytes == len(FILES[DATA]) + len(FILES[GRAPH]) - 30_000
    fetch(progress=events.append)
    assert (events[0].loaded_bytes, events[0].total_bytes) == (30_000, len(FILES[DATA]) + len(FILES[GRAPH]))
    assert "30.0 kB of them from before" in events[-1].message


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "ctrl-c"])
def test_killed_download_goes_on_where_it_stopped(server, signal_number):
    server.faults[DATA] = [Fault(stall_at=50_000)]
    child = start_fetcher()
    assert server.stalled.wait(60)
    while not (parts() and parts()[0].stat().st_size == 50_000):
        assert child.poll() is None
    child.send_signal(signal_number)
    child.communicate(timeout=60)
    server.go_on.set()
    assert child.returncode
    assert hub.locate(SOURCE, "q4") is None
    server.seen.clear()
    fetch().verify()
    assert [(seen.path.rpartition("/")[2], seen.range) for seen in server.file_requests] == [
        ("model_q4.onnx_data", "bytes=50000-"), ("model_q4.onnx", None),
    ]  # fmt: skip


def test_two_processes_share_one_download(server):
    server.faults[DATA] = [Fault(stall_at=10_000)]
    first = start_fetcher()
    assert server.stalled.wait(60)
    second = start_fetcher()
    line = second.stdout.readline()
    assert line == f"progress None waiting for process {first.pid} to finish {REPO}\n"
    server.go_on.set()
    outs = [child.communicate(timeout=60) for child in (first, second)]
    assert [child.returncode for child in (first, second)] == [0, 0], outs
    assert outs[0][0].splitlines()[-1] == outs[1][0].splitlines()[-1] == str(hub.locate(SOURCE, "q4").folder)
    assert requested(server) == list(NEEDED)


def test_lock_of_a_dead_process_is_taken_over(server):
    server.faults[DATA] = [Fault(stall_at=10)]
    child = start_fetcher()
    assert server.stalled.wait(60)
    child.kill()
    child.communicate(timeout=60)
    server.go_on.set()
    waits = []
    with hub_cache.repo_lock(REPO, waits.append):
        assert waits == []


def test_useless_parts_start_over(server):
    for name, content in ((DATA, FILES[DATA] + b"more"), (GRAPH, bytes(100))):
        file = hub.plan(SOURCE, "q4").listing.files[name]
        part = hub_cache.part_path(REPO, file.checksum)
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
    fetch().verify()


def test_redirect_to_another_address_resumes_and_keeps_names(server):
    server.redirect = True
    server.faults[DATA] = [Fault(send_bytes=1000)]
    fetch().verify()
    assert "bytes=1000-" in [seen.range for seen in server.seen if seen.path.startswith("/cdn/")]


# wrong files


def flip(content):
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize("name", [DATA, "config.json"], ids=["sha256", "git"])
def test_flipped_byte_is_a_checksum_error_and_nothing_is_kept(server, name):
    server.faults[name] = [Fault(body=flip(FILES[name]))]
    with pytest.raises(ChecksumError, match="is not the expected file") as caught:
        fetch()
    assert caught.value.expected != caught.value.actual
    assert parts() == []
    assert hub.locate(SOURCE, "q4") is None


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(body=PAGE, content_type="text/html"), "is a web page"),
        (Fault(body=PAGE), "is a web page"),
        (Fault(body=PAGE + bytes(len(FILES[GRAPH]) - len(PAGE))), "is a web page"),
        (Fault(body=POINTER), "pointer of Git LFS"),
    ],
    ids=["html", "html as bytes", "html of the right length", "pointer"],
)
def test_something_else_is_refused(server, fault, message):
    server.faults[GRAPH] = [fault] * 9
    with pytest.raises(WrongContentError, match=message):
        fetch()
    assert requested(server).count(GRAPH) == 1
    assert parts() == []


def test_zeros_of_the_right_length_are_found_by_verify_and_mended_by_force(server):
    copy = fetch()
    path = (copy.folder / GRAPH).resolve()
    path.write_bytes(FILES[GRAPH][:20_000] + bytes(20_000))
    with pytest.raises(ChecksumError, match="has changed") as caught:
        hub.locate(SOURCE, "q4").verify()
    assert caught.value.hint.endswith(
        f"download {REPO} --dtype q4"
    )  # the damaged precision, not the default one
    server.seen.clear()
    fetch(force=True).verify()
    assert requested(server) == [GRAPH]


def test_missing_file_makes_the_copy_incomplete(server):
    copy = fetch()
    (copy.folder / DATA).unlink()
    assert hub.locate(SOURCE, "q4") is None
    server.seen.clear()
    fetch().verify()
    assert server.file_requests == []  # the blob was still there
    (copy.folder / GRAPH).resolve().write_bytes(b"cut short")
    fetch().verify()
    assert requested(server) == [GRAPH]


def test_name_that_leads_out_of_the_cache_is_refused(server):
    evil = DATA + "/../../../../../../evil"
    server.repos[REPO].commits[COMMIT] = FILES | {evil: b"x"}
    assert evil not in fetch().files
    with pytest.raises(CacheError, match="leads out of the repo"):
        hub_cache.add_to_snapshot(REPO, COMMIT, evil, "0" * 40)
    assert not list(hub_cache.cache_folder().parent.parent.rglob("evil"))


# refusals


def test_offline(server, monkeypatch):
    with pytest.raises(OfflineError, match="the network is switched off") as caught:
        fetch(offline=True)
    assert "HF_HUB_OFFLINE" in caught.value.hint
    assert server.seen == []
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OfflineError, match="http://127.0.0.1:9 cannot be reached"):
        fetch()


@pytest.mark.parametrize("is_private", [False, True])
def test_login_and_permission_are_told_apart_and_not_repeated(server, monkeypatch, is_private):
    server.token, server.is_private = "hf_right", is_private
    with pytest.raises(AccessError, match="logged in .status 401") as caught:
        fetch()
    assert f"{server.url}/{REPO}" in caught.value.hint and "HF_TOKEN" in caught.value.hint
    assert caught.value.status == 401
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_s3cret")
    with pytest.raises(AccessError, match="does not accept the token"):
        fetch()
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    server.allowed = False
    with pytest.raises(AccessError, match="not allowed to read .*status 403") as caught:
        fetch()
    searches = int(is_private)  # what else the repo could be called
    assert len(server.seen) == (3 if is_private else 6) + searches
    server.allowed = True
    fetch()


def test_token_is_sent_and_never_shown(server, monkeypatch, caplog, capsys):
    caplog.set_level("DEBUG")
    monkeypatch.setenv("HF_TOKEN", "hf_s3cret")
    server.token, server.allowed = "hf_s3cret", False
    with pytest.raises(AccessError) as caught:
        fetch()
    assert {seen.authorization for seen in server.seen} == {"Bearer hf_s3cret"}
    shown = "".join(
        (str(caught.value), caught.value.hint, str(caught.value.__cause__), caplog.text, *capsys.readouterr())
    )
    assert "s3cret" not in shown


def test_token_does_not_go_to_another_host(server, monkeypatch):
    with HubServer() as other:
        monkeypatch.setenv("HF_TOKEN", "hf_s3cret")
        server.redirect, server.cdn = True, other.url
        fetch()
        assert {seen.authorization for seen in server.seen} == {"Bearer hf_s3cret"}
        assert [seen.authorization for seen in other.seen] == [None, None]


def test_password_of_the_endpoint_is_not_shown(server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://me:s3cret@127.0.0.1:9")
    with pytest.raises(OfflineError) as caught:
        fetch()
    assert "s3cret" not in str(caught.value) + caught.value.hint
    assert "***@127.0.0.1:9" in str(caught.value)


@pytest.mark.parametrize(
    ("repo", "nearest"),
    [("tiny-org/tiny-ONX", [REPO]), ("LiquidAI/LFM2.5-23M-ONNX", ["LiquidAI/LFM2.5-230M-ONNX"]), ("a/b", [])],
)
def test_unknown_repo_names_the_nearest(server, repo, nearest):
    with pytest.raises(NotFoundError, match=f"There is no repo {repo} on http://127.0.0.1") as caught:
        fetch(source=HubSource(repo))
    assert caught.value.nearest[: len(nearest)] == nearest
    assert caught.value.repo == repo


@pytest.mark.parametrize("status", [404, 401])
def test_repo_that_is_gone_is_not_suggested_again(server, status):
    server.listing_faults = [Fault(status=status)]
    with pytest.raises(AccessError if status == 401 else NotFoundError) as caught:
        fetch(source=HubSource("LiquidAI/LFM2.5-230M-ONNX"))
    assert "Did you mean LiquidAI/LFM2.5-230M-MLX-4bit or " in caught.value.hint
    assert "230M-ONNX or" not in caught.value.hint and "230M-ONNX?" not in caught.value.hint


def test_repo_in_another_spelling_is_suggested(server):
    with pytest.raises(NotFoundError) as caught:
        fetch(source=HubSource("liquidai/lfm2.5-230m-onnx"))
    assert caught.value.nearest[0] == "LiquidAI/LFM2.5-230M-ONNX"


def test_unknown_revision_names_those_that_there_are(server):
    server.repos[REPO].tags = {"v1.0": COMMIT, "beta": COMMIT}
    with pytest.raises(NotFoundError, match="has no revision 'v1.1'") as caught:
        fetch(source=HubSource(REPO, "v1.1"))
    assert caught.value.nearest == ["v1.0"]
    assert caught.value.hint == "It has: v1.0, main, beta. Or leave it out for the newest."
    with pytest.raises(NotFoundError) as caught:
        fetch(source=HubSource(REPO, "nothing-alike"))
    assert caught.value.hint.startswith("It has: main, v1.0, beta.")


def test_many_revisions_are_counted(server):
    server.repos[REPO].tags = {f"v{n}": COMMIT for n in range(30)}
    with pytest.raises(NotFoundError, match="has no revision") as caught:
        fetch(source=HubSource(REPO, "nothing-alike"))
    assert "main, v0, v1, v2, v3, v4, v5, v6, v7, v8 and 21 more" in caught.value.hint


def damage(name=GRAPH):
    path = hub.locate(SOURCE, "q4").folder / name
    path.resolve().write_bytes(bytes(path.stat().st_size))
    return path


def test_copy_that_is_marked_as_damaged_is_fetched_again(server):
    fetch("auto")
    path = damage()
    (copy,) = hub.copies(SOURCE)
    hub.mark(copy, damaged=True)
    assert hub.locate(SOURCE, "q4") is hub.locate(SOURCE, "auto") is None
    (copy,) = hub.copies(SOURCE)
    assert copy.is_damaged
    with pytest.raises(OfflineError) as caught:
        fetch(offline=True)
    assert "damaged" in caught.value.__notes__[-1]
    server.repos[REPO].commits[NEWER] = make_files(seed=2)
    server.repos[REPO].main = NEWER
    server.seen.clear()
    assert fetch("q4").commit == COMMIT  # not the newer one
    assert path.read_bytes() == FILES[GRAPH]
    assert requested(server) == [GRAPH]
    server.seen.clear()
    assert fetch("auto").commit == COMMIT
    assert server.seen == []
    assert not hub.copies(SOURCE)[0].is_damaged


def test_damaged_copy_of_a_commit_that_the_hub_dropped_follows_the_hub(server):
    fetch()
    damage()
    hub.mark(hub.copies(SOURCE)[0], damaged=True)
    server.repos[REPO].commits = {NEWER: make_files(seed=2)}
    server.repos[REPO].main = NEWER
    assert fetch().commit == NEWER


def test_copy_of_which_a_file_was_cut_is_listed_as_damaged(server):
    fetch()
    path = damage()
    path.resolve().write_bytes(b"")
    assert [copy.is_damaged for copy in hub.copies(SOURCE)] == [True]
    fetch()
    assert path.read_bytes() == FILES[GRAPH]


def test_repos_that_are_here(server):
    assert hub.sources_here() == []
    fetch()
    fetch(source=HubSource(REPO, "main"))
    server.repos[REPO].commits[COMMIT] |= {"model.safetensors": b"x" * 100}
    mlx = HubSource(REPO, backend="mlx")
    fetch("auto", source=mlx)
    assert hub.sources_here() == [mlx, SOURCE, HubSource(REPO, "main")]
    assert hub.forget(mlx)
    assert hub.sources_here() == [SOURCE, HubSource(REPO, "main")]


def test_repo_without_a_tokenizer_is_refused_before_its_weights_are_fetched(server):
    del server.repos[REPO].commits[COMMIT]["tokenizer.json"]
    with pytest.raises(UnsupportedModelError, match=r"has no tokenizer\.json"):
        fetch()
    assert server.file_requests == []


def test_float_weights_instead_of_graphs(server):
    with pytest.raises(UnsupportedModelError, match="holds ONNX graphs only") as caught:
        fetch(WEIGHTS)
    assert "safetensors" in caught.value.hint
    assert server.file_requests == []
    server.repos[REPO].commits[COMMIT] |= {"model.safetensors": b"x" * 100}
    copy = fetch(WEIGHTS)
    assert (copy.dtype, set(copy.files) & {"model.safetensors", GRAPH}) == ("weights", {"model.safetensors"})
    assert fetch("auto").dtype == "q4"
    assert hub.locate(SOURCE, WEIGHTS) == copy


def test_file_that_vanished_between_list_and_download(server):
    server.faults[GRAPH] = [Fault(status=404)]
    with pytest.raises(NotFoundError, match="There is no file at"):
        fetch()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_hub_in_trouble_is_asked_again(server, status):
    server.listing_faults = [Fault(status=status)] * 2
    fetch()
    server.listing_faults = [Fault(status=status)] * 3
    with pytest.raises(DownloadError, match=f"did not list {REPO}: status {status}"):
        fetch("fp16")


@pytest.mark.parametrize("body", [PAGE, b"[]", b"{}"], ids=["html", "list", "object"])
def test_something_that_is_no_hub(server, body):
    server.listing_faults = [Fault(body=body, content_type="text/html")]
    with pytest.raises(WrongContentError, match="does not answer as a hub does"):
        fetch()


def test_proxy_that_refuses(server, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    monkeypatch.setenv("HTTPS_PROXY", server.url.replace("http://", "http://me:s3cret@"))
    with fresh_client(), pytest.raises(ProxyError, match="proxy does not let us through") as caught:
        fetch()
    assert "s3cret" not in str(caught.value)


def test_certificate_that_is_not_trusted(server, monkeypatch, tmp_path):
    with IndexServer(b"", certificate=make_certificate(tmp_path / "both.pem")) as other:
        monkeypatch.setenv("HF_ENDPOINT", f"https://127.0.0.1:{other.port}")
        with fresh_client(), pytest.raises(CertificateError, match="is not trusted") as caught:
            fetch()
    assert "SSL_CERT_FILE" in caught.value.hint


class fresh_client:
    """The hub library reads proxies when it makes its client, so let it make one for this test only."""

    def __enter__(self):
        from huggingface_hub import close_session

        close_session()

    def __exit__(self, *_):
        from huggingface_hub import close_session

        close_session()


@pytest.mark.parametrize("repo", ["a", "a/b/c", "../x", "-a/b"])
def test_no_name_of_a_repo(server, repo):
    with pytest.raises((OptionError, NotFoundError)):
        fetch(source=HubSource(repo))


# the disk


def test_room_is_checked_before_any_file_is_asked_for(server, monkeypatch):
    monkeypatch.setattr(store.shutil, "disk_usage", lambda path: type("Usage", (), {"free": SIZE - 1})())
    with pytest.raises(DiskSpaceError, match="No room on the disk") as caught:
        fetch()
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (SIZE, SIZE - 1)
    assert "HF_HOME" in caught.value.hint
    assert server.file_requests == []


def test_full_disk_in_the_middle_leaves_no_part(server, monkeypatch):
    real_open = Path.open

    def open_path(path, mode="r", *arguments, **options):
        with real_open(path, mode, *arguments, **options) as file:
            if mode == "wb" and path.suffix == ".incomplete":
                file.write(b"some")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_open(path, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_path)
    with pytest.raises(DiskSpaceError, match=r"needed, .* free"):
        fetch()
    assert parts() == []


def test_cache_that_cannot_be_written(server, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="cannot be used") as caught:
        fetch()
    assert "HF_HOME" in caught.value.hint


def test_without_links_files_are_copied(server, monkeypatch):
    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    copy = fetch()
    assert not (copy.folder / GRAPH).is_symlink()
    copy.verify()


def test_nothing_of_the_hubs_cache_is_removed(server):
    copy = fetch()
    assert hub.forget(SOURCE)
    assert not hub.forget(SOURCE)
    assert copy.is_complete()
    assert hub.locate(SOURCE, "q4") is None and hub.copies(SOURCE) == []


def test_threads_share_one_download(server):
    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(requested(server)) == sorted(NEEDED)
