import os
import signal
import subprocess
import sys
import threading

import pytest

from tinykit.devices import this_machine
from tinykit.errors import MissingPackageError
from tinykit.optional import TELEMETRY_SWITCH, held_interrupts, installed, require


def test_require_gives_the_module():
    import json

    assert require("json", extra="", purpose="a test") is json
    assert require("os.path", extra="", purpose="a test") is sys.modules["os.path"]


@pytest.mark.parametrize("module", ["no_such_package", "no_such_package.part"])
def test_require_says_purpose_and_command(module):
    with pytest.raises(MissingPackageError, match="'no_such_package' is needed for counting sheep") as caught:
        require(module, extra="sheep", purpose="counting sheep")
    assert caught.value.hint == "Install it with: pip install 'tinykit[sheep]'"
    assert caught.value.name == module
    assert caught.value.extra == "sheep"


def test_require_passes_on_the_error_of_a_broken_package(tmp_path, monkeypatch):
    (tmp_path / "broken_package.py").write_text("import something_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_it_needs") as caught:
        require("broken_package", extra="x", purpose="a test")
    assert not isinstance(caught.value, MissingPackageError)


@pytest.mark.parametrize(
    ("module", "expected"),
    [("json", True), ("no_such_package", False), ("no_such_package.part", False), ("json.decoder", True)],
)
def test_installed(module, expected):
    assert installed(module) is expected


def test_installed_does_not_import(tmp_path, monkeypatch):
    (tmp_path / "lazy_package.py").write_text("raise RuntimeError\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert installed("lazy_package")


def test_installed_copes_with_a_module_without_spec(monkeypatch):
    monkeypatch.setitem(sys.modules, "made_by_hand", type(sys)("made_by_hand"))
    assert not installed("made_by_hand")


@pytest.fixture
def python_interrupts():
    """Ctrl-C as Python has it, whatever the tests were started with."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_interrupts")
class TestHeldInterrupts:
    def test_the_block_ends_first(self):
        done = []
        with pytest.raises(KeyboardInterrupt), held_interrupts():
            signal.raise_signal(signal.SIGINT)
            done.append(True)
        assert done
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_the_handler_that_was_there_is_told(self):
        told = []
        signal.signal(signal.SIGINT, lambda number, frame: told.append(number))
        with held_interrupts():
            signal.raise_signal(signal.SIGINT)
            assert not told
        assert told == [signal.SIGINT]

    def test_nothing_changes_without_a_signal_or_where_it_is_ignored(self):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with held_interrupts():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN

    def test_another_thread_may_import(self):
        found = []

        def work():
            with held_interrupts():
                found.append(signal.getsignal(signal.SIGINT))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        assert found == [signal.default_int_handler]

    def test_onnxruntime_is_imported_to_its_end(self, tmp_path, monkeypatch):
        (tmp_path / "onnxruntime.py").write_text(
            "import signal\nsignal.raise_signal(signal.SIGINT)\nis_whole = True\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setitem(sys.modules, "onnxruntime", None)  # to be put back after the test
        del sys.modules["onnxruntime"]
        with pytest.raises(KeyboardInterrupt):
            this_machine()
        assert sys.modules["onnxruntime"].is_whole


class TestOnnxruntimeLibrary:
    CI = ("CI", "TF_BUILD", "GITHUB_ACTIONS", "JENKINS_URL")  # where it reports nothing anyway

    def run(self, code, tmp_path, **environment):
        """What a fresh process says; its caches are in `tmp_path`."""
        kept = {n: v for n, v in os.environ.items() if n not in (*self.CI, TELEMETRY_SWITCH)}
        kept |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), **environment}
        done = subprocess.run([sys.executable, "-c", code], env=kept, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    def test_is_switched_off_before_the_import_and_leaves_nothing(self, tmp_path):
        code = """
import os, sys
class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            print(os.environ.get("ORT_DISABLE_TELEMETRY"))
sys.meta_path.insert(0, Watch())
from tinykit import TinySession
from tinykit.devices import this_machine
this_machine()
"""
        assert self.run(code, tmp_path)[-1] == "1"  # before that somebody asked whether it is installed
        assert not list((tmp_path / "cache").glob("Microsoft*"))

    def test_who_set_it_has_decided(self, tmp_path):
        code = """
import os, sys, types
sys.modules["onnxruntime"] = library = types.ModuleType("onnxruntime")
library.disable_telemetry_events = lambda: print("disabled")
from tinykit.optional import onnxruntime_library
onnxruntime_library(), onnxruntime_library()
print(os.environ["ORT_DISABLE_TELEMETRY"])
"""
        assert self.run(code, tmp_path, ORT_DISABLE_TELEMETRY="0") == ["0"]
        assert self.run(code, tmp_path) == ["disabled", "1"]
