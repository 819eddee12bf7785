"""The command in processes of its own, where signals, streams and imports matter."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tinykit

MESSAGE = "can you fix the flaky login test in CI?"
TITLE = "Fix the flaky login test in CI"


def process(*arguments, code=None, **options):
    return subprocess.Popen(
        [sys.executable, *(("-c", code) if code else ("-m", "tinykit")), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ),
        **options,
    )


ENDLESS = """
from tinykit import cli
from tinykit.backends.onnx import OnnxBackend

forward = OnnxBackend.forward

def endless(self, token_ids, state, *, rows=1):
    logits = forward(self, token_ids, state, rows=rows)
    logits[:, [0, 2]] = -100  # no end token ever
    return logits

OnnxBackend.forward = endless
cli.main(["complete", "-m", "smollm2-135m", "--max-tokens", "1024", "Count from one to one thousand."])
"""


def test_commands_load_nothing_heavy():
    code = """
import sys
import tinykit.cli
assert "click" not in sys.modules
sys.modules["torch"] = None
try:
    tinykit.cli.main(["tune", "--help"])
finally:
    assert not {"numpy", "onnxruntime", "onnx", "tinykit.session"} & set(sys.modules)
"""
    child = process(code=code)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, b"")
    assert b"PAIRS" in out


INTERRUPTED_IMPORT = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
from tinykit.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "module", ["tinykit.cli", "tinykit.errors", "click", "tinykit.settings", "tinykit.session", "numpy"]
)
def test_ctrl_c_while_importing_is_clean(module):
    code = INTERRUPTED_IMPORT.format(module=module)
    child = process("title", "-r", "first-words", "fix the build", code=code)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert (out, err.strip()) == (b"", b"Interrupted.")


def test_ctrl_c_is_heard_before_anything_is_imported():
    code = f"""
import sys
sys.path.insert(0, {str(Path(tinykit.__file__).parents[1])!r})
before = set(sys.modules)
import tinykit.__main__
print(*sorted(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) <= {"__future__", "tinykit", "tinykit.__main__"}


FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "arguments", [("title", "-r", "first-words", MESSAGE), ("--help",)], ids=["title", "help"]
)
def test_output_that_cannot_be_written(arguments):
    with FULL.open("w") as full:
        child = subprocess.run(
            [sys.executable, "-m", "tinykit", *arguments], stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert child.returncode == 6
    assert child.stderr == b"Error: Reading or writing failed: No space left on device\n"


def test_text_that_the_terminal_cannot_show():
    code = """
import sys
sys.stdout.reconfigure(encoding="latin-1")
from tinykit.cli import main
main(["title", "-r", "first-words", "naïve 名前 bug in the parser"])
"""
    child = process(code=code)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (0, b"")
    assert out.rstrip() == "Naïve \\u540d\\u524d bug in the parser".encode("latin-1")


@pytest.mark.real
def test_ctrl_c_is_clean(use_real_home):
    child = process(code=ENDLESS)
    begun = child.stdout.read(1)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert begun and out.endswith(b"\n")  # what was said stays on its line
    assert err.strip() == b"Interrupted."


def test_reader_that_leaves_early_is_no_error(monkeypatch):
    monkeypatch.setenv("TINYKIT_RECIPE", "first-words")
    child = process("title", "--file", "-", stdin=subprocess.PIPE)
    child.stdin.write(f"{MESSAGE}\n".encode() * 20_000)
    child.stdin.close()
    assert child.stdout.readline().decode() == f"{TITLE}\n"
    child.stdout.close()
    assert child.wait(timeout=60) == 141
    assert child.stderr.read() == b""
    child.stderr.close()


ENDING = """
import atexit, sys, threading, time
from tinykit import cli

atexit.register(print, "at the end")

class Left:
    def __del__(self):
        print("taken apart")

sys.left = Left()
sys.argv = ["tinykit", *{arguments!r}]
if {thread!r}:
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread done"))).start()
cli.run_and_end()
"""


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--version"], 0), (["no-such-command"], 2), (["title", "-r", "none", "x"], 3)]
)
def test_process_ends_at_once_with_its_code_and_what_is_due_at_exit(arguments, code):
    child = process(code=ENDING.format(arguments=arguments, thread=False))
    out, _ = child.communicate(timeout=60)
    assert child.returncode == code
    assert out.endswith(b"at the end\n")
    assert b"taken apart" not in out


def test_process_waits_for_threads_as_python_does():
    child = process(code=ENDING.format(arguments=["no-such-command"], thread=True))
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 2
    assert b"thread done\nat the end\n" in out
