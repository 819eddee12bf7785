"""Widgets in a real kernel, talked to as a front end does."""

from pathlib import Path

import pytest

from tests.widgets.typist import WAIT_S

pytest.importorskip("jupyter_client")
from tests.kernels import Kernel

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


class FrontEnd(Kernel):
    """A kernel whose widgets are clicked and watched."""

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
    with FrontEnd(PYTHONPATH=str(ROOT), TINYKIT_STABLE="0") as front_end:
        front_end.run(f"import os; os.chdir({str(ROOT)!r})")
        yield front_end


def test_kernel_is_free_while_a_title_is_written_and_a_click_stops_it(front_end):
    run_button, stop_button = front_end.run(SETUP).printed.split()
    front_end.click(run_button)
    assert front_end.see("Flaky log") == []  # the title on its way, and no output anywhere
    ran = front_end.run("print(6 * 7)")
    assert (ran.printed, ran.shown, ran.error) == ("42\n", [], None)
    front_end.click(stop_button)
    ended = front_end.run(f"typist.go_on.set(); assert playground.wait({WAIT_S})")
    assert ended.error is None, ended.traceback
    said = front_end.run("print(playground.status, playground.rows[0].shown)").printed
    assert said == "Stopped. Flaky log (stopped)\n"
    front_end.click(run_button)
    assert front_end.see("Flaky login test on slow CI runners") == []


def test_notebook_gets_widget_and_text(front_end):
    front_end.run("from tinykit import widgets")
    for name in ("TitlePlayground()", "ModelManager()", "ProgressBar()"):
        ((_, content),) = front_end.run(f"widgets.{name}").shown
        bundle = content["data"]
        assert set(bundle) == {"text/plain", "application/vnd.jupyter.widget-view+json"}
        assert "Box(" not in bundle["text/plain"]
