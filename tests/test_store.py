import contextlib
import errno
import json
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.interrupting import interrupted
from tinykit import disk, store
from tinykit.errors import CacheError, ChecksumError, DiskSpaceError, OptionError

ROOT = Path(store.__file__).parent.parent

# builds one entry: says "ready", waits for a line, then finishes
BUILDER = """
import sys
from tinykit import disk, store
with store.building(store.entry("thing")) as folder:
    (folder / "a.bin").write_bytes(b"from the other process")
    print("ready", flush=True)
    sys.stdin.readline()
"""


def build(*parts, content=b"hello", **options):
    entry = store.entry(*parts)
    with store.building(entry, **options) as folder:
        assert folder is not None
        (folder / "a.bin").write_bytes(content)
    return entry


@pytest.fixture
def other_process():
    """Another process that is in the middle of building `thing`."""
    with subprocess.Popen(
        [sys.executable, "-c", BUILDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_built_entry_is_complete_and_knows_its_files():
    entry = store.entry("models", "m")
    assert not entry.is_complete() and entry.info() == {}
    with store.building(entry, info={"model": "m"}) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "b.bin").write_bytes(b"12345")
        assert not entry.path.exists()
    assert entry.is_complete()
    assert entry.info() == {"model": "m"}
    marker = json.loads((entry.path / "complete.json").read_text())
    assert marker["files"]["sub/b.bin"]["size_bytes"] == 5
    assert entry.size_bytes == 5 + (entry.path / "complete.json").stat().st_size
    entry.verify()


def test_complete_entry_is_not_built_again():
    entry = build("thing")
    with store.building(entry) as folder:
        assert folder is None
    assert (entry.path / "a.bin").read_bytes() == b"hello"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_failed_build_leaves_nothing(error):
    entry = store.entry("thing")
    with pytest.raises(error), store.building(entry) as folder:
        (folder / "a.bin").write_bytes(b"half")
        raise error
    assert not entry.path.exists()
    assert [path.name for path in store.home().iterdir() if path.is_dir()] == []
    build("thing")


def cut(path):
    path.write_bytes(b"hel")


def break_marker(path):
    (path.parent / "complete.json").write_text("{")


def replace_marker(path):
    (path.parent / "complete.json").write_text("[]")


@pytest.mark.parametrize("damage", [cut, Path.unlink, break_marker, replace_marker], ids=lambda f: f.__name__)
def test_damaged_entry_is_not_complete_and_is_built_anew(damage):
    entry = build("thing")
    damage(entry.path / "a.bin")
    assert not entry.is_complete()
    build("thing", content=b"again")
    assert (entry.path / "a.bin").read_bytes() == b"again"


def test_verify_finds_a_changed_byte():
    entry = build("thing")
    (entry.path / "a.bin").write_bytes(b"hellO")
    assert entry.is_complete()
    with pytest.raises(ChecksumError, match="has changed") as caught:
        entry.verify()
    assert caught.value.expected == store.sha256(build("other").path / "a.bin")
    assert caught.value.path == entry.path / "a.bin"


def test_verify_of_an_incomplete_entry():
    with pytest.raises(CacheError, match="not complete"):
        store.entry("thing").verify()


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "..",
        "/etc/passwd",
        "a/b",
        "llama3.2:3b",
        "модель",
        "",
        ".hidden",
        "x" * 300,
        "a\0b",
        "\ud800",
    ],
)
def test_names_stay_in_the_store(name):
    path = store.entry("models", name).path
    assert path.parent == store.home() / "models"
    assert path.name.isascii() and not path.name.startswith(".") and len(path.name) <= 120
    build("models", name)


def test_good_names_stay_and_others_stay_apart():
    assert store.safe_name("smollm2-135m_v1.2") == "smollm2-135m_v1.2"
    names = ["модель", "малыши", "llama:3", "llama/3", "a.tmp-1-x"]
    assert len({store.safe_name(name) for name in names}) == len(names)
    assert store.safe_name("llama:3").startswith("llama_3-")


def test_entry_needs_a_name():
    with pytest.raises(OptionError):
        store.entry()


def test_entries_lists_complete_ones_only():
    assert store.entries() == []
    first, second = build("b"), build("a", "c")
    (store.home() / "d").mkdir()
    with store.building(store.entry("e")) as folder:
        (folder / "complete.json").write_text('{"files": {}}')
        assert store.entries() == [second, first]
    assert store.entry("e").is_complete()


def test_remove():
    entry = build("thing")
    entry.remove()
    assert not entry.path.exists()
    entry.remove()


@pytest.mark.parametrize("where", ["..", "../outside", "."])
def test_remove_is_refused_outside_the_store(tmp_path, where):
    (tmp_path / "outside").mkdir()
    with pytest.raises(CacheError, match="is not in the store"):
        store.Entry(store.home() / where).remove()
    assert (tmp_path / "outside").exists()


def test_too_little_space_is_found_before_the_work():
    with pytest.raises(DiskSpaceError, match=r"1000000\.0 GB needed") as caught:
        build("thing", needed_bytes=10**15)
    assert caught.value.needed_bytes == 10**15
    assert 0 < caught.value.free_bytes < 10**15
    assert "TINYKIT_HOME" in caught.value.hint


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_during_the_work(code):
    with pytest.raises(DiskSpaceError) as caught, store.building(store.entry("thing"), needed_bytes=7):
        raise OSError(code, os.strerror(code))
    assert caught.value.needed_bytes == 7
    assert caught.value.free_bytes > 0
    assert not store.entry("thing").path.exists()


def test_full_disk_while_sealing(monkeypatch):
    def fsync(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(DiskSpaceError):
        build("thing")
    assert not store.entry("thing").path.exists()


def test_other_errors_of_the_work_pass_untouched():
    with pytest.raises(FileNotFoundError) as caught, store.building(store.entry("thing")):
        Path("/no/such/file").read_bytes()
    assert not isinstance(caught.value, CacheError)


def test_home_that_cannot_be_a_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TINYKIT_HOME", str(tmp_path / "file" / "home"))
    assert store.entries() == []
    assert not store.entry("thing").is_complete()
    for use in (lambda: build("thing"), store.downloads):
        with pytest.raises(CacheError, match="cannot be used: Not a directory") as caught:
            use()
        assert "TINYKIT_HOME" in caught.value.hint


def test_read_only_home(monkeypatch):
    def mkdir(path, *args, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(CacheError, match="Read-only file system"):
        build("thing")


def test_second_process_waits_and_gets_the_first_ones_result(other_process):
    waits = []

    def on_wait(message):
        waits.append(message)
        other_process.stdin.write("\n")
        other_process.stdin.flush()

    with store.building(store.entry("thing"), on_wait=on_wait) as folder:
        assert folder is None
    assert waits == [f"waiting for process {other_process.pid} to finish thing"]
    assert (store.entry("thing").path / "a.bin").read_bytes() == b"from the other process"


def test_waiting_ends_with_an_error_that_names_the_process(other_process):
    with pytest.raises(CacheError, match=f"process {other_process.pid} still works on"):
        build("thing", timeout_s=0.1)


def test_killed_process_holds_nothing_and_its_rest_is_swept(other_process):
    left = store.home().glob("thing.tmp-*")
    assert len(list(left)) == 1
    other_process.kill()
    other_process.wait()
    build("thing", timeout_s=5)
    assert list(store.home().glob("thing.tmp-*")) == []


def test_sweeping_spares_other_entries(other_process):
    build("thin")
    build("thing2")
    assert len(list(store.home().glob("thing.tmp-*"))) == 1


def test_interrupt_anywhere_leaves_nothing_locked(monkeypatch):
    # what comes while an object is cleared away is never heard of, here or anywhere
    monkeypatch.setattr("filelock.BaseFileLock.__del__", lambda _: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # to be quick
    watched = (store.__file__, disk.__file__, contextlib.__file__)

    def build(name):
        with store.building(store.entry("models", name), timeout_s=0.1) as folder:
            if folder is not None:
                (folder / "a.bin").write_bytes(b"1")

    at, kept = 0, []
    while True:
        at += 1
        come, error = interrupted(at, partial(build, f"m{at}"), watched)
        if not come:
            break
        assert isinstance(error, KeyboardInterrupt), come
        build(f"m{at}")
        assert store.entry("models", f"m{at}").is_complete(), f"place {at}, in {come[0]}"
        kept.append(error)  # as a notebook keeps it, with its frames
    assert at > 100


def test_threads_build_once():
    built = []

    def work():
        with store.building(store.entry("thing")) as folder:
            if folder is not None:
                built.append(folder)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK], ids=["ENOSYS", "ENOLCK"])
def test_disk_without_locks_works_with_one_warning(monkeypatch, code):
    fcntl = pytest.importorskip("fcntl", reason="this system has no flock")

    def flock(descriptor, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(UserWarning) as warned:
        entry = build("thing")
    assert len(warned) == 1
    assert entry.is_complete()


def test_home_that_cannot_be_used(tmp_path, monkeypatch):
    assert disk.home_problem() is None  # it need not exist
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", tmp_path / "file" / "a" / "b"):
        monkeypatch.setenv("TINYKIT_HOME", str(home))
        assert disk.home_problem() == f"{tmp_path / 'file'} is not a folder"
    monkeypatch.setenv("TINYKIT_HOME", str(tmp_path / "a"))
    monkeypatch.setattr(disk.os, "access", lambda path, mode: False)
    assert disk.home_problem() == f"{tmp_path} cannot be written"


def test_entry_that_was_marked_is_made_again():
    entry = store.entry("models", "m", "b")
    with store.building(entry, info={"a": 1}) as folder:
        (folder / "x").write_bytes(b"x")
    entry.mark(damaged=True)
    assert entry.is_damaged and not entry.is_complete() and entry.info() == {"a": 1}
    assert store.entries() == [] and store.entries(damaged=True) == [entry]
    entry.mark(damaged=False)
    assert entry.is_complete() and store.entries() == [entry]
    entry.mark(damaged=True)
    with store.building(entry) as folder:
        assert folder is not None
    assert entry.is_complete() and not entry.is_damaged and not (entry.path / "x").exists()
