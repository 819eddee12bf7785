"""Widgets whose traffic with a front end can be read, without a kernel."""

import re

import pytest

ipywidgets = pytest.importorskip("ipywidgets")


@pytest.fixture(autouse=True)
def no_widget_stays():
    """Each test leaves ipywidgets as it was."""
    yield
    ipywidgets.Widget.close_all()


@pytest.fixture
def traffic(monkeypatch):
    """All messages that widgets send to a front end, as pairs of message type and data."""
    import comm
    from comm.base_comm import BaseComm

    sent = []

    class Recorder(BaseComm):
        def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys):
            sent.append((msg_type, data))

    monkeypatch.setattr(comm, "create_comm", lambda **facts: Recorder(**facts))
    return sent


@pytest.fixture
def in_notebook(monkeypatch):
    """Let the widgets think that this is a kernel."""
    from tinykit.widgets import view

    monkeypatch.setattr(view, "is_notebook", lambda: True)
    monkeypatch.setenv("TINYKIT_STABLE", "0")  # pytest in the environment says that outputs are compared


@pytest.fixture
def standing_clock(monkeypatch):
    """Time stands still for the widgets; gives the timers that they have started, each to be fired by hand."""
    from tinykit.widgets import view

    timers = []

    class Timer:
        def __init__(self, wait_s, act):
            assert 0 < wait_s <= 0.1
            self.act, self.is_over = act, False
            timers.append(self)

        def start(self):
            pass

        def cancel(self):
            self.is_over = True

        def fire(self):
            assert not self.is_over
            self.act()
            self.is_over = True

    monkeypatch.setattr(view.threading, "Timer", Timer)
    monkeypatch.setattr(view, "monotonic", lambda: 5.0)
    return timers


def plain(html):
    """The text of some HTML, as one reads it."""
    import html as module

    return " ".join(module.unescape(re.sub(r"<[^>]+>", " ", html)).split())


def from_front_end(widget, **state):
    """What a front end sends when somebody changes a widget."""
    widget.comm.handle_msg({"content": {"data": {"method": "update", "state": state}}, "buffers": []})


def click_in_front_end(button):
    """What a front end sends when a button is pressed, by mouse or keyboard."""
    data = {"method": "custom", "content": {"event": "click"}}
    button.comm.handle_msg({"content": {"data": data}, "buffers": []})
