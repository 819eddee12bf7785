"""A real kernel: the Stop button in every form of the magics, streams, TAB, and nbval (details 1, 3, 4 and 6)."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("jupyter_client")
from tests.kernels import SAY_BEGUN, SAY_ONCE, Kernel

nbformat = pytest.importorskip("nbformat")
pytestmark = pytest.mark.real

SETUP = """
%load_ext tinykit
%tiny use smollm2-135m
messages = ["Tell me a long story about a fox and a hen."] * 40
long = "A long story about a fox. " * 900
%tiny load
"""
LONG = {
    "title": "%title -r plain {{long}}",
    "titles": "%title -o kept --show -r plain {{messages}}",
    "stream": "%tiny --max-tokens 900 -o kept --show Tell me a long story.",
    "cell": "%%tiny --max-tokens 900 -o kept\nTell me a long story.",
    "prefill": "%tiny --max-tokens 5 -o kept --show {{long}}",
    "batch": "%tiny --max-tokens 500 -o kept --show {{messages}}",
    "chat": "%tiny --max-tokens 900 --chat talk Tell me a long story.",
    "eval": "%%tiny_eval -r plain\n" + "Tell me a long story about a fox and a hen.\n" * 40,
}
AFTER = "print(get_ipython().run_line_magic('tiny', '--max-tokens 5 -o after Name a color.'), after.finish_reason)"


@pytest.fixture(scope="module")
def kernel(real_home):
    with Kernel(TINYKIT_HOME=str(real_home), TINYKIT_STABLE="0") as kernel:
        for code in (SETUP, SAY_BEGUN):
            assert kernel.run(code).error is None
        yield kernel


@pytest.mark.parametrize("kind", LONG)
def test_stop_ends_the_call_without_traceback_and_leaves_a_usable_session(kernel, kind):
    kernel.run(f"{SAY_ONCE}; kept = None; talk = []")
    ran = kernel.run(LONG[kind], kernel.interrupt)
    assert (ran.error, ran.status, ran.traceback) == ("KeyboardInterrupt", "error", ["Interrupted."])
    if kind in ("titles", "stream", "cell", "prefill", "batch"):
        assert kernel.run("print(kept is not None)").printed == "True\n"
    if kind in ("stream", "prefill", "chat"):
        assert ran.shown and "text/html" in ran.shown[-1][1]["data"]
        text = ran.shown[-1][1]["data"]["text/plain"]
        assert "stopped before its end" in text
    if kind in ("titles", "batch"):
        assert "cancelled" in ran.shown[-1][1]["data"]["text/plain"] or kind == "batch"
        assert len({content["transient"]["display_id"] for _, content in ran.shown}) == 1
    if kind == "chat":
        assert kernel.run("print(talk)").printed == "[]\n"  # no half answer in it
    assert kernel.run(AFTER).printed == "None length\n"


def test_stream_updates_one_display_and_ends_with_the_whole(kernel):
    ran = kernel.run("%tiny -o whole --show --max-tokens 30 Name the four seasons.")
    kinds = [kind for kind, _ in ran.shown]
    assert kinds[0] == "display_data" and set(kinds[1:]) <= {"update_display_data"}
    last = ran.shown[-1][1]
    assert kernel.run("print(whole.text)").printed.strip() in last["data"]["text/plain"]
    assert last["metadata"]["tinykit"]["timings"]["total_s"] > 0
    assert ran.printed == ""


def test_mistake_fails_the_cell_with_its_sentence_alone(kernel):
    ran = kernel.run("%title {{mesages}}")
    assert (ran.error, ran.status) == ("OptionError", "error")
    assert ran.traceback == [
        "OptionError: {{mesages}}: there is no variable 'mesages'.", "Did you mean 'messages'?",
    ]  # fmt: skip


def test_tab_is_answered_by_the_kernel(kernel):
    def matches(text):
        return kernel.reply(kernel.client.complete(text, len(text)))["matches"]

    assert matches("%title --wh") == ["--why"]
    assert "titles" in matches("x = %title -r ")
    assert matches("%tiny use lfm2.5-2") == ["lfm2.5-230m"]


CELLS = (
    "%load_ext tinykit",
    "%title --why why does my docker container exit with code 137",
    "%tiny --max-tokens 20 Name the four seasons.",
    'messages = ["plan a trip to Lisbon", "hi"]',
    "%title {{messages}}",
    "%tiny load",
)


def test_notebook_recorded_as_a_user_does_passes_nbval(real_home, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("nbval")
    monkeypatch.setenv("TINYKIT_HOME", str(real_home))
    monkeypatch.setenv("TINYKIT_STABLE", "0")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in CELLS])
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute()
    assert "widgets" not in notebook.metadata  # nothing that GitHub could not show
    assert [len(cell.outputs) for cell in notebook.cells] == [0, 1, 1, 0, 1, 1]
    notebook.metadata = {}
    nbformat.write(notebook, tmp_path / "recorded.ipynb")
    monkeypatch.delenv("TINYKIT_STABLE")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--nbval",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        tmp_path,
    ]
    done = subprocess.run(
        [*command, tmp_path / "recorded.ipynb"], capture_output=True, text=True, cwd=tmp_path, timeout=280,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "6 passed" in done.stdout
