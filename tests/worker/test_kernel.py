"""The Stop button of Jupyter while a worker computes (detail 1)."""

import pytest

pytest.importorskip("jupyter_client")
from tests.kernels import Kernel

SETUP = """
import sys
from tinykit import TinySession
session = TinySession({model!r}, backend="scripted", shared=True, progress=False)
def tell(chunk):
    print("begun", flush=True)
"""


def test_stop_ends_a_shared_call_with_what_there_is(shared, backend, model_path):
    shared.load()
    backend.on("hold-later")
    with Kernel() as kernel:
        assert kernel.run(SETUP.format(model=str(model_path))).error is None

        def stop():
            backend.wait_for("held-later")
            kernel.interrupt()

        ran = kernel.run('session.complete("a", max_tokens=1024, on_chunk=tell)', stop)
        assert (ran.error, ran.status) == ("KeyboardInterrupt", "error")
        assert ran.traceback[1].startswith("Cell In[") and "remote.py" not in "".join(ran.traceback)
        backend.off("hold-later")
        length = int(kernel.run("print(len(sys.last_value.partial.text))").printed)
        assert length == len(ran.traceback[-1]) > 0  # the text, whatever this model says
        assert kernel.run('print(session.complete("a", max_tokens=3).finish_reason)').printed == "length\n"
