"""Widgets in a real kernel, talked to as a front end does."""

import os
from pathlib import Path

import pytest

from tests.widgets.typist import WAIT_S

jupyter_client = pytest.importorskip("jupyter_client")
ROOT = Path(__file__).parent.parent.parent

SETUP = """
from tests.widgets.typist import TYPED, typing_session
from tinykit import widgets
session, typist = typing_session("Flaky login test on slow CI runners", hold_at=9)
playground = widgets.TitlePlayground(session, recipes=[TYPED],
    message="the login test is flaky on slow CI runners, can you fix it?")
playground.box
print(playground.form.run_button.comm.comm_id, playground.form.stop_button.comm.comm_id)
"""


class FrontEnd:
    """Sends cells and clicks, and reads what comes back."""

    def __init__(self, client):
        self.client = client

    def run(self, code):
        """What a cell printed and displayed."""
        sent = self.client.execute(code)
        text, bundles = "", []
        while True:
            message = self.client.get_iopub_msg(timeout=WAIT_S)
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                text += content["text"]
            elif kind == "execute_result":
                bundles.append(content["data"])
            elif kind == "error":
                raise AssertionError(content)
            elif kind == "status" and content["execution_state"] == "idle":
                return text, bundles

    def click(self, comm_id):
        data = {"method": "custom", "content": {"event": "click"}}
        message = self.client.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
        self.client.shell_channel.send(message)

    def see(self, wanted):
        """Wait until a widget shows this; returns all other output that came meanwhile."""
        others = []
        while True:
            message = self.client.get_iopub_msg(timeout=WAIT_S)
            if message["msg_type"] in ("stream", "display_data", "error"):
                others.append(message["content"])
            if message["msg_type"] != "comm_msg":
                continue
            if wanted in str(message["content"]["data"].get("state", {}).get("value")):
                return others


@pytest.fixture(scope="module")
def front_end():
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, "PYTHONPATH": str(ROOT), "TINYKIT_STABLE": "0"}, cwd=str(ROOT))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=WAIT_S)
    yield FrontEnd(client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_kernel_is_free_while_a_title_is_written_and_a_click_stops_it(front_end):
    run_button, stop_button = front_end.run(SETUP)[0].split()
    front_end.click(run_button)
    assert front_end.see("Flaky log") == []  # the title on its way, and no output anywhere
    assert front_end.run("print(6 * 7)") == ("42\n", [])
    front_end.click(stop_button)
    front_end.run("typist.go_on.set()")
    front_end.run(f"assert playground.wait({WAIT_S})")
    assert (
        front_end.run("print(playground.status, playground.rows[0].shown)")[0]
        == "Stopped. Flaky log (stopped)\n"
    )
    front_end.click(run_button)
    assert front_end.see("Flaky login test on slow CI runners") == []


def test_notebook_gets_widget_and_text(front_end):
    front_end.run("from tinykit import widgets")
    for name in ("TitlePlayground()", "ModelManager()", "ProgressBar()"):
        _, (bundle,) = front_end.run(f"widgets.{name}")
        assert set(bundle) == {"text/plain", "application/vnd.jupyter.widget-view+json"}
        assert "Box(" not in bundle["text/plain"]
