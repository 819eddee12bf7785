"""Workers of tests: on a backend without a model, in folders of their own, and gone when the test is over."""

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tests import tiny_models as tiny
from tinykit import TinySession
from tinykit.convert.export import export_model
from tinykit.convert.importer import open_source
from tinykit.worker import spawning
from tinykit.worker.crashes import CRASHES
from tinykit.worker.launch import Launch
from tinykit.worker.remote import launch_of

PATIENCE_S = 120.0  # for what takes no time at all on an idle machine


class Control:
    """The folder whose files tell the backend of tests what to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on(self, name: str) -> None:
        (self.folder / name).touch()

    def off(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def lines(self, name: str) -> int:
        path = self.folder / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    def wait_for(self, name: str) -> None:
        wait_until((self.folder / name).exists)


def wait_until(is_so, patience_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits to be asked for its code does not."""
    with spawning._children_lock:
        for child in spawning._children:
            child.poll()
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def launches(folder: Path) -> list[Launch]:
    found = []
    for path in folder.rglob("*.json"):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(Launch.load(path))
    return found


@contextlib.contextmanager
def place_for_workers():
    """A short folder for sockets; whatever still serves there is killed in the end."""
    folder = Path(tempfile.mkdtemp(prefix="tk-"))
    before = {child.pid for child in spawning._children}
    yield folder / "run"
    pids = {child.pid for child in spawning._children} - before
    for path in folder.rglob("*.pid"):
        with contextlib.suppress(OSError, ValueError):
            pids.add(int(path.read_text()))
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for child in spawning._children:
        if child.pid in pids:
            child.wait(PATIENCE_S)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def module_folder(request, tmp_path_factory):
    """For modules that say `ONE_WORKER = True`: the folders that all their tests have in common."""
    if not getattr(request.module, "ONE_WORKER", False):
        yield None
        return
    with place_for_workers() as folder:
        yield folder, tmp_path_factory.mktemp("one-worker")


@pytest.fixture
def worker_dir(monkeypatch, module_folder):
    """The folder for sockets."""
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    with contextlib.ExitStack() as stack:
        folder = module_folder[0] if module_folder else stack.enter_context(place_for_workers())
        monkeypatch.setenv("TINYKIT_WORKER_DIR", str(folder))
        yield folder


@pytest.fixture
def control(monkeypatch, tmp_path, module_folder):
    own = module_folder[1] if module_folder else tmp_path
    if module_folder:
        monkeypatch.setenv("TINYKIT_HOME", str(own / "home"))
    folder = own / "control"
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv("WORKER_TEST_DIR", str(folder))
    yield Control(folder)
    for path in folder.iterdir():
        path.unlink()


@pytest.fixture
def backend(monkeypatch, tmp_path, control):
    """The backend of tests as an installed package, here and in the workers."""
    site = control.folder.parent / "site"
    info = site / "scripted-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(
        "[tinykit.backends]\nscripted = tests.worker.scripted:make\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    )
    CRASHES._crashes.clear()
    yield control
    CRASHES._crashes.clear()


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    """A folder of float weights, which a backend of one's own reads as it is."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    folder.mkdir()
    weights = tiny.write_gguf(folder.with_suffix(".gguf"), "llama", tiny.random_weights("llama"))
    export_model(open_source(weights), folder)
    return folder


@pytest.fixture
def options(model_path):
    return {"model": model_path, "backend": "scripted", "progress": False}


@pytest.fixture
def shared(worker_dir, backend, options):
    """A shared session whose worker starts with its first call."""
    with TinySession(shared=True, lazy=True, **options) as session:
        yield session


@pytest.fixture
def launch(worker_dir, backend, options):
    """The launch of that session's worker."""
    return launch_of(TinySession(lazy=True, **options).spec, {"backend": "scripted"})


@pytest.fixture
def alone(backend, options):
    """The same model in this process."""
    with TinySession(**options) as session:
        yield session


@pytest.fixture
def in_thread():
    """Runs something beside the test; the result, or what it raised, comes from `get`."""
    started = []

    class Beside:
        def __init__(self, act):
            self._act = act
            self._result = self._error = None
            self.thread = threading.Thread(target=self._run)
            self.thread.start()
            started.append(self)

        def _run(self):
            try:
                self._result = self._act()
            except BaseException as error:
                self._error = error

        def get(self):
            self.thread.join(PATIENCE_S)
            assert not self.thread.is_alive()
            if self._error is not None:
                raise self._error
            return self._result

    yield Beside
    for one in started:
        one.thread.join(PATIENCE_S)
