import errno
import os
from pathlib import Path

import httpx2
import pytest

from tests.index_server import WHEEL_NAME, Fault, IndexServer, isolate_pip, make_wheel
from tinykit import download as download_module
from tinykit.download import Wanted, download
from tinykit.errors import ChecksumError, DownloadError, NotFoundError
from tinykit.progress import Progress

WHEEL = make_wheel()[1]
SIZE = len(WHEEL)
HALF = SIZE // 2


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    isolate_pip(monkeypatch)
    monkeypatch.setattr(download_module, "_RETRY_PAUSE_S", 0)


@pytest.fixture
def server():
    with IndexServer(WHEEL) as server:
        yield server


@pytest.fixture
def part(tmp_path):
    return tmp_path / "wheel.part"


@pytest.fixture
def events():
    return []


@pytest.fixture
def get(server, part, events):
    """Downloads the wheel; arguments change what is wanted."""

    def get(url=f"/files/{WHEEL_NAME}", **changes):
        base = f"http://127.0.0.1:{server.port}"
        wanted = Wanted(
            base + url, **({"size_bytes": SIZE, "sha256": server.sha256, "magic": b"PK"} | changes)
        )
        arrived = part.stat().st_size if part.exists() else 0
        progress = Progress(events.append)
        with (
            httpx2.Client(timeout=10) as client,
            progress.stage("w", total=SIZE, unit="B", initial=arrived) as stage,
        ):
            download(client, wanted, part, stage)
            assert stage.count == SIZE
        assert part.read_bytes() == WHEEL

    return get


def ranges(server):
    return [seen.range for seen in server.seen]


def test_whole_file(server, get):
    get()
    assert ranges(server) == [None]


@pytest.mark.parametrize("arrived", [1, HALF, SIZE - 1])
def test_part_is_resumed(server, get, part, arrived):
    part.write_bytes(WHEEL[:arrived])
    get()
    assert ranges(server) == [f"bytes={arrived}-"]


def test_complete_part_needs_no_request(server, part):
    part.write_bytes(WHEEL)
    with httpx2.Client() as client, Progress(False).stage("w", total=SIZE, unit="B") as stage:
        download(client, Wanted("http://127.0.0.1:9/", SIZE, server.sha256), part, stage)
    assert server.seen == []


def test_cut_body_is_resumed(server, get):
    server.faults = [Fault(send_bytes=1000), Fault(send_bytes=2000), Fault(send_bytes=0)]
    get()
    assert ranges(server) == [None, "bytes=1000-", "bytes=3000-", "bytes=3000-"]


def test_cut_for_ever_is_an_error_that_keeps_the_part(server, get, part, events):
    server.faults = [Fault(send_bytes=1000)] * 4
    with pytest.raises(DownloadError, match="broke off 4 times") as caught:
        get()
    assert "4,000 bytes are kept" in str(caught.value)
    assert caught.value.hint == "Try again: the download goes on where it stopped."
    assert part.read_bytes() == WHEEL[:4000]
    assert events[-1].status == "error"


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_server_in_trouble_is_asked_again(server, get, status):
    server.faults = [Fault(status=status)] * 3
    get()
    assert len(server.seen) == 4


@pytest.mark.parametrize(
    ("fault", "arrived"),
    [
        (Fault(), SIZE + 5),
        (Fault(status=416), HALF),
        (Fault(content_range=f"bytes 0-{SIZE - 1}/{SIZE}"), HALF),
        (Fault(ignore_range=True), HALF),
    ],
    ids=["part too long", "416", "wrong range", "range ignored"],
)
def test_useless_part_starts_over(server, get, part, fault, arrived):
    part.write_bytes((WHEEL + b"extra")[:arrived])
    server.faults = [fault]
    get()
    assert len(server.seen) <= 2


def test_416_for_ever_ends(server, get, part):
    part.write_bytes(WHEEL[:HALF])
    server.faults = [Fault(status=416)] * 9
    with pytest.raises(DownloadError, match="status 416"):
        get()
    assert len(server.seen) == 2


def test_rotten_part_starts_over(server, get, part):
    part.write_bytes(b"PK" + bytes(HALF))
    get()
    assert ranges(server) == [f"bytes={HALF + 2}-", None]


def flip(content):
    return content[:-1] + bytes([content[-1] ^ 1])


def test_flipped_byte_is_a_checksum_error_and_nothing_is_kept(server, get, part):
    server.faults = [Fault(body=flip(WHEEL))]
    with pytest.raises(ChecksumError, match="is not the expected file") as caught:
        get()
    assert caught.value.expected == server.sha256
    assert len(caught.value.actual) == 64 and caught.value.actual != server.sha256
    assert not part.exists()
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (Fault(status=404), NotFoundError, "There is no file at"),
        (Fault(status=401), DownloadError, "refused with status 401"),
        (Fault(status=403), DownloadError, "refused with status 403"),
        (Fault(body=b"<html>", content_type="text/html; charset=utf-8"), DownloadError, "is a web page"),
        (Fault(body=b"x" * SIZE), DownloadError, "something else than expected"),
        (Fault(body=WHEEL[:HALF]), DownloadError, f"has {HALF:,} bytes, expected {SIZE:,}"),
    ],
    ids=["404", "401", "403", "html", "no wheel", "shorter file"],
)
def test_wrong_answers_are_told_apart_and_not_repeated(server, get, part, fault, error, message):
    server.faults = [fault] * 9
    with pytest.raises(error, match=message):
        get()
    assert len(server.seen) == 1
    assert not part.exists()


def test_no_server_at_all(part):
    wanted = Wanted("http://127.0.0.1:9/file.whl", 10, "0" * 64)
    with (
        httpx2.Client() as client,
        Progress(False).stage("w", total=10, unit="B") as stage,
        pytest.raises(DownloadError, match="nothing has arrived"),
    ):
        download(client, wanted, part, stage)


def test_slow_server_is_a_timeout_that_keeps_the_part(server, part, monkeypatch):
    monkeypatch.setattr(download_module, "_TRIES", 1)
    server.faults = [Fault(stall_at=5000)]
    wanted = Wanted(f"http://127.0.0.1:{server.port}/files/x.whl", SIZE, server.sha256)
    with (
        httpx2.Client(timeout=0.3) as client,
        Progress(False).stage("w", total=SIZE, unit="B") as stage,
        pytest.raises(DownloadError, match="timed out"),
    ):
        download(client, wanted, part, stage)
    assert part.read_bytes() == WHEEL[:5000]


def test_password_is_not_shown(server, get):
    server.faults = [Fault(status=403)]
    with pytest.raises(DownloadError) as caught:
        get(url=f"/files/{WHEEL_NAME}#sha256=1")
    assert caught.value.url == f"http://127.0.0.1:{server.port}/files/{WHEEL_NAME}"
    assert Wanted("https://me:s3cret@a.example/f#x", 1, "").shown_url == "https://***@a.example/f"


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


def test_full_disk_is_passed_on(get, part, monkeypatch):
    real_open = Path.open

    def open_path(path, mode="r", **options):
        file = real_open(path, mode, **options)
        return FullDisk(file) if mode == "wb" else file

    monkeypatch.setattr(Path, "open", open_path)
    with pytest.raises(OSError, match="No space left") as caught:
        get()
    assert caught.value.errno == errno.ENOSPC
