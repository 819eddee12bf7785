"""The Stop button of Jupyter: a real kernel, interrupted in the middle of a call."""

import os

import pytest

jupyter_client = pytest.importorskip("jupyter_client")
pytestmark = pytest.mark.real

SETUP = """
from tinykit import TinySession
session = TinySession("smollm2-135m", progress=False)
expected = session.complete("Name a color.", max_tokens=5)
print("ready")
"""
LONG = {
    "decode": 'print("begun"); session.complete("Tell me a long story.", max_tokens=900)',
    "prefill": 'print("begun"); session.complete("A long story about a fox. " * 900, max_tokens=5)',
    "batch": 'print("begun"); session.complete_many(["Tell me a long story."] * 40, max_tokens=500)',
    "stream": 'print("begun")\nfor piece in session.stream("Tell me a long story.", max_tokens=900): pass',
}
AFTER = """
print(session.complete("Name a color.", max_tokens=5) == expected)
"""


@pytest.fixture(scope="module")
def kernel(real_home):
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, "TINYKIT_HOME": str(real_home)})
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    assert "ready" in outputs(client, SETUP)[0]
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def outputs(client, code, on_output=None):
    """What a cell printed and the name of the error that ended it."""
    sent = client.execute(code)
    text, error = "", None
    while True:
        message = client.get_iopub_msg(timeout=120)
        if message["parent_header"].get("msg_id") != sent:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            text += content["text"]
            if on_output:
                on_output(content["text"])
        elif kind == "error":
            error = content["ename"]
        elif kind == "status" and content["execution_state"] == "idle":
            return text, error


@pytest.mark.parametrize("kind", LONG)
def test_stop_ends_a_running_call_and_leaves_a_usable_session(kernel, kind):
    manager, client = kernel
    text, error = outputs(client, LONG[kind], lambda text: manager.interrupt_kernel())
    assert (text.strip(), error) == ("begun", "KeyboardInterrupt")
    assert outputs(client, AFTER) == ("True\n", None)
