"""A kernel whose cells are run and read as a front end does it; for tests and for `benchmarks/interrupt.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import jupyter_client

WAIT_S = 240  # far more than any machine needs for a message

# A cell's first word once the model is at work, so that nobody has to guess when to press Stop.
SAY_BEGUN = """
from tinykit.backends.onnx import OnnxBackend
forward, told = OnnxBackend.forward, True
def noted(self, *args, **options):
    global told
    if not told:
        told = True
        print("begun", flush=True)
    return forward(self, *args, **options)
OnnxBackend.forward = noted
"""
SAY_ONCE = "told = False"


@dataclass
class Ran:
    """What came of a cell."""

    printed: str = ""
    shown: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    error: str | None = None
    traceback: list[str] = field(default_factory=list)
    status: str = ""
    ended_at: float = 0.0


class Kernel:
    """A kernel of this Python, with these variables besides the environment's."""

    def __init__(self, **variables: str) -> None:
        self._manager = jupyter_client.KernelManager(kernel_name="python3")
        self._manager.start_kernel(env={**os.environ, **variables})
        self.client = self._manager.client()
        self.client.start_channels()

    def __enter__(self) -> Self:
        try:
            self.client.wait_for_ready(timeout=WAIT_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def interrupt(self) -> None:
        """What the Stop button does."""
        self._manager.interrupt_kernel()

    def run(self, code: str, on_print: Callable[[], object] | None = None) -> Ran:
        """Run a cell to its end; `on_print` is called once, when it prints something."""
        # a cell that fails would abort the next one if that came soon enough
        sent = self.client.execute(code, stop_on_error=False)
        ran = Ran()
        while True:
            message = self.client.get_iopub_msg(timeout=WAIT_S)
            if message["parent_header"].get("msg_id") != sent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                if on_print and not ran.printed:
                    on_print()
                ran.printed += content["text"]
            elif kind in ("display_data", "update_display_data", "execute_result"):
                ran.shown.append((kind, content))
            elif kind == "error":
                ran.error, ran.traceback = content["ename"], content["traceback"]
            elif kind == "status" and content["execution_state"] == "idle":
                ran.ended_at = time.perf_counter()
                ran.status = self.reply(sent)["status"]
                return ran

    def reply(self, sent: str) -> dict[str, Any]:
        """The reply to a message that was sent on the shell channel."""
        while True:
            reply = self.client.get_shell_msg(timeout=WAIT_S)
            if reply["parent_header"].get("msg_id") == sent:
                content: dict[str, Any] = reply["content"]
                return content
