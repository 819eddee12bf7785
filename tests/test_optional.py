import signal
import sys
import threading

import pytest

from tinykit.devices import this_machine
from tinykit.errors import MissingPackageError
from tinykit.optional import held_interrupts, installed, require


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
