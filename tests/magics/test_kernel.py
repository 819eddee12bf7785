"""A real kernel: the Stop button in every form of the magics, streams, TAB, and nbval (details 1, 3, 4 and 6)."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

jupyter_client = pytest.importorskip("jupyter_client")
nbformat = pytest.importorskip("nbformat")
pytestmark = pytest.mark.real

SETUP = """
%load_ext tinykit
%tiny use smollm2-135m
messages = ["Tell me a long story about a fox and a hen."] * 40
long = "A long story about a fox. " * 900
%tiny load
"""
# each says that it has begun when the model is at work, so that nobody has to guess when to press Stop
BEGUN = """
from tinykit.backends.onnx import OnnxBackend
forward = OnnxBackend.forward
def noted(self, *args, **options):
    global told
    if not told:
        told = True
        print("begun", flush=True)
    return forward(self, *args, **options)
OnnxBackend.forward = noted
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
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, "TINYKIT_HOME": str(real_home), "TINYKIT_STABLE": "0"})
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=120)
    try:
        for code in (SETUP, BEGUN):
            assert execute(client, code).error is None
        yield SimpleNamespace(manager=manager, client=client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def execute(client, code, on_print=None):
    """What a cell printed, displayed and failed with."""
    sent = client.execute(code)
    ran = SimpleNamespace(printed="", shown=[], error=None, traceback=[])
    while True:
        message = client.get_iopub_msg(timeout=240)
        if message["parent_header"].get("msg_id") != sent:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            ran.printed += content["text"]
            if on_print:
                on_print()
        elif kind in ("display_data", "update_display_data", "execute_result"):
            ran.shown.append((kind, content))
        elif kind == "error":
            ran.error, ran.traceback = content["ename"], content["traceback"]
        elif kind == "status" and content["execution_state"] == "idle":
            reply = client.get_shell_msg(timeout=240)
            while reply["parent_header"].get("msg_id") != sent:
                reply = client.get_shell_msg(timeout=240)
            ran.status = reply["content"]["status"]
            return ran


@pytest.mark.parametrize("kind", LONG)
def test_stop_ends_the_call_without_traceback_and_leaves_a_usable_session(kernel, kind):
    execute(kernel.client, "told = False; kept = None; talk = []")
    ran = execute(kernel.client, LONG[kind], kernel.manager.interrupt_kernel)
    assert (ran.error, ran.status, ran.traceback) == ("KeyboardInterrupt", "error", ["Interrupted."])
    if kind in ("titles", "stream", "cell", "prefill", "batch"):
        assert execute(kernel.client, "print(kept is not None)").printed == "True\n"
    if kind in ("stream", "prefill", "chat"):
        assert ran.shown and "text/html" in ran.shown[-1][1]["data"]
        text = ran.shown[-1][1]["data"]["text/plain"]
        assert "stopped before its end" in text
    if kind in ("titles", "batch"):
        assert "cancelled" in ran.shown[-1][1]["data"]["text/plain"] or kind == "batch"
        assert len({content["transient"]["display_id"] for _, content in ran.shown}) == 1
    if kind == "chat":
        assert execute(kernel.client, "print(talk)").printed == "[]\n"  # no half answer in it
    assert execute(kernel.client, AFTER).printed == "None length\n"


def test_stream_updates_one_display_and_ends_with_the_whole(kernel):
    execute(kernel.client, "told = True")
    ran = execute(kernel.client, "%tiny -o whole --show --max-tokens 30 Name the four seasons.")
    kinds = [kind for kind, _ in ran.shown]
    assert kinds[0] == "display_data" and set(kinds[1:]) <= {"update_display_data"}
    last = ran.shown[-1][1]
    assert execute(kernel.client, "print(whole.text)").printed.strip() in last["data"]["text/plain"]
    assert last["metadata"]["tinykit"]["timings"]["total_s"] > 0
    assert ran.printed == ""


def test_mistake_fails_the_cell_with_its_sentence_alone(kernel):
    ran = execute(kernel.client, "%title {{mesages}}")
    assert (ran.error, ran.status) == ("OptionError", "error")
    assert ran.traceback == [
        "OptionError: {{mesages}}: there is no variable 'mesages'.", "Did you mean 'messages'?",
    ]  # fmt: skip


def test_tab_is_answered_by_the_kernel(kernel):
    def matches(text):
        sent = kernel.client.complete(text, len(text))
        while True:
            reply = kernel.client.get_shell_msg(timeout=240)
            if reply["parent_header"].get("msg_id") == sent:
                return reply["content"]["matches"]

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
