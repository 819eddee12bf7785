"""A real IPython shell in this process, with the magics, and a tiny model that answers quickly."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests import tiny_models as tiny

pytest.importorskip("IPython")
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from tinykit.magics import sessions


@dataclass
class Ran:
    """What a cell did."""

    value: Any
    error: BaseException | None
    printed: str
    shown: list[dict] = field(default_factory=list)

    @property
    def texts(self) -> list[str]:
        return [one["data"]["text/plain"] for one in self.shown]


class Shell:
    """Runs cells, and tells what came of them."""

    def __init__(self, ip: InteractiveShell) -> None:
        self.ip = ip
        self.names = ip.user_ns

    def run(self, code: str) -> Ran:
        publisher = self.ip.display_pub = CapturingDisplayPublisher()
        with capture_output(display=False) as captured:
            result = self.ip.run_cell(code, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        return Ran(result.result, error, captured.stdout, publisher.outputs)

    def bundle(self, code: str) -> tuple[dict, dict]:
        """Data and metadata of a cell's value, as a notebook would save them."""
        ran = self.run(code)
        assert ran.error is None, ran.printed
        return self.ip.display_formatter.format(ran.value)

    def complete(self, text: str) -> list[str]:
        """What TAB offers at the end of a text, as whole words."""
        from IPython.core.completer import provisionalcompleter

        with provisionalcompleter():
            found = list(self.ip.Completer.completions(text, len(text)))
        return [(text[: one.start] + one.text).split()[-1] for one in found]


@pytest.fixture
def ip(monkeypatch):
    monkeypatch.setenv("TINYKIT_STABLE", "0")  # displays as a user sees them, though this is a test
    monkeypatch.setattr(sessions, "POOL", sessions.Pool())
    config = Config()
    config.HistoryManager.enabled = False
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=config)
    shell.display_formatter.active_types = shell.display_formatter.format_types  # as a notebook has it
    monkeypatch.setattr("tinykit.magics.shell.POOL", sessions.POOL)
    yield shell
    for session in sessions.POOL.sessions():
        session.close()
    InteractiveShell.clear_instance()


@pytest.fixture
def shell(ip):
    ip.run_line_magic("load_ext", "tinykit")
    yield Shell(ip)
    ip.run_line_magic("unload_ext", "tinykit")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A model of random weights: what it says is nonsense, and always the same."""
    folder = tmp_path_factory.mktemp("magics")
    return tiny.write_gguf(folder / "tiny.gguf", "llama", tiny.random_weights("llama"), "F32")


@pytest.fixture
def tiny_shell(shell, tiny_model, monkeypatch, tmp_path_factory):
    """The shell, with the tiny model in use; its import is kept for the other tests."""
    monkeypatch.setenv("TINYKIT_HOME", str(tmp_path_factory.getbasetemp() / "magics-home"))
    monkeypatch.setenv("TINYKIT_PROGRESS", "off")
    assert shell.run(f"%tiny use {tiny_model} --dtype fp32 -r first-words").error is None
    return shell


@pytest.fixture
def notebook(tiny_shell):
    """The shell as a kernel, whose displays can be updated."""
    tiny_shell.ip.kernel = object()
    return tiny_shell
