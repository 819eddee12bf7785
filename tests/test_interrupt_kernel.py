"""The Stop button of Jupyter: a real kernel, interrupted in the middle of a call (detail 1)."""

import pytest

pytest.importorskip("jupyter_client")
from tests.kernels import SAY_BEGUN, SAY_ONCE, Kernel

pytestmark = pytest.mark.real

SETUP = """
import sys
from tinykit import TinySession
session = TinySession("smollm2-135m", progress=False)
expected = session.complete("Name a color.", max_tokens=5)
prompts, long = ["Tell me a long story."] * 40, "A long story about a fox. " * 900
print("ready")
"""
LONG = {
    "decode": 'session.complete("Tell me a long story.", max_tokens=900)',
    "prefill": "session.complete(long, max_tokens=5)",
    "batch": "session.complete_many(prompts, max_tokens=500)",
    "samples": 'session.complete("Tell me a long story.", n=4, temperature=1.0, max_tokens=500)',
    "stream": 'for piece in session.stream("Tell me a long story.", max_tokens=900): pass',
    "title": 'session.title(long, recipe="plain")',
    "titles": 'session.titles(prompts, recipe="plain")',
    "choice": 'session.choose(long, ["a story", "a report"])',
}
AFTER = 'print(session.complete("Name a color.", max_tokens=5) == expected)'


@pytest.fixture(scope="module")
def kernel(real_home):
    with Kernel(TINYKIT_HOME=str(real_home)) as kernel:
        assert "ready" in kernel.run(SETUP).printed
        assert kernel.run(SAY_BEGUN).error is None
        yield kernel


@pytest.mark.parametrize("kind", LONG)
def test_stop_ends_a_running_call_with_few_lines_and_leaves_a_usable_session(kernel, kind):
    kernel.run(SAY_ONCE)
    ran = kernel.run(LONG[kind], kernel.interrupt)
    assert (ran.printed, ran.error, ran.status) == ("begun\n", "KeyboardInterrupt", "error")
    assert ran.traceback[1].startswith("Cell In[") and ran.traceback[2] == f"----> {LONG[kind]}"
    assert "engine.py" not in "".join(ran.traceback)  # our frames: what takes IPython long to draw
    assert kernel.run("print(hasattr(sys.last_value, 'partial'))").printed == f"{kind != 'choice'}\n"
    assert kernel.run(AFTER).printed == "True\n"


def test_stop_shows_what_a_call_has_so_far(kernel):
    ran = kernel.run(
        'session.complete("Tell me a long story.", max_tokens=900, on_chunk=lambda chunk: print(chunk))',
        kernel.interrupt,
    )
    said = kernel.run("print(sys.last_value.partial.text)").printed.strip()
    assert said and said in "\n".join(ran.traceback) and "sys.last_value.partial" in ran.traceback[-2]


def test_whole_traceback_is_there_for_those_who_ask(kernel):
    kernel.run(SAY_ONCE)
    kernel.run(LONG["decode"], kernel.interrupt)
    ran = kernel.run("import traceback; traceback.print_exception(sys.last_value)")
    assert "engine.py" in ran.printed
