"""Deadlines in the middle of a forward, on a backend whose forwards last until they are interrupted."""

import threading

import pytest

from tests import tiny_models as tiny
from tests.generation.test_engine import EOS, A, B, tokenizer
from tinykit.backends.scripted import ScriptedBackend
from tinykit.errors import ForwardInterrupted
from tinykit.generation.batch import one_request, run_tasks, samples
from tinykit.generation.deadlines import Deadlines
from tinykit.generation.engine import Engine
from tinykit.generation.request import GenerationOptions, Request

PATIENCE_S = 60
SOON = GenerationOptions(timeout_s=0.01)
NEVER = GenerationOptions(3, timeout_s=1e9)


class Endless(ScriptedBackend):
    """Says A for ever; computes until it is interrupted from the `at`-th forward on."""

    def __init__(self, at, *, deaf=0):
        super().__init__(lambda seen: A, vocab_size=len(tiny.VOCABULARY))
        self.at, self.deaf = at, deaf
        self.told = threading.Event()
        self.is_computing = threading.Semaphore(0)

    def forward(self, token_ids, state, *, rows=1):
        if len(self.calls) + 1 < self.at:
            return super().forward(token_ids, state, rows=rows)
        self.told.clear()
        self.is_computing.release()
        assert self.told.wait(PATIENCE_S)
        raise ForwardInterrupted("stopped")

    def interrupt(self):
        self.deaf -= 1
        if self.deaf < 0:
            self.told.set()


def engine_on(backend):
    return Engine(backend, tokenizer(), [EOS], cache_bytes=1 << 20)


@pytest.mark.parametrize("deaf", [0, 3], ids=["heard", "heard at the fourth time"])
def test_deadline_ends_a_prefill_that_computes_on(deaf):
    engine = engine_on(Endless(1, deaf=deaf))
    completion = engine.generate(Request((A, B), SOON))
    assert (completion.text, completion.finish_reason, completion.cancelled_by) == (
        "",
        "cancelled",
        "timeout",
    )


def test_deadline_ends_a_decode_step_and_keeps_what_there_is():
    engine = engine_on(Endless(3))
    request = Request((A, B), GenerationOptions(timeout_s=1.0), slot="chat")
    completion = engine.generate(request)
    assert completion.cancelled_by == "timeout"
    assert len(completion.token_ids) in (0, 1, 2)  # on a slow machine the time may be up before
    engine.backend.at = 100
    assert engine.generate(Request((A, B), GenerationOptions(2), slot="chat")).token_ids == (A, A)


def test_deadline_is_heard_in_a_batch_and_in_samples():
    engine = engine_on(Endless(1))
    found = dict(run_tasks(engine, map(one_request, [Request((A, B), SOON)] * 2), batch_size=2))
    assert [found[at].cancelled_by for at in range(2)] == ["timeout"] * 2
    assert [one.cancelled_by for one in samples(engine, Request((A, B), SOON), 2)] == ["timeout"] * 2


@pytest.fixture
def ended(monkeypatch):
    """Rings whenever a thread that watches ends."""
    bell, watch = threading.Semaphore(0), Deadlines._watch

    def watched(self, watcher):
        watch(self, watcher)
        bell.release()

    monkeypatch.setattr(Deadlines, "_watch", watched)
    return bell


def watcher(engine):
    return engine._deadlines._watcher


def test_watching_ends_with_the_last_run(ended):
    engine = engine_on(Endless(100))
    engine.generate(Request((A, B), GenerationOptions(3)))
    assert watcher(engine) is None  # nothing to watch
    stream = engine.stream(Request((A, B), NEVER))
    next(stream)
    first = watcher(engine)
    assert engine.generate(Request((B, B), NEVER)).finish_reason == "length"
    assert watcher(engine) is first is not None
    stream.close()
    assert ended.acquire(timeout=PATIENCE_S)
    assert (watcher(engine), engine._deadlines._runs) == (None, {})
    assert engine.generate(Request((A, A), NEVER)).finish_reason == "length"
    assert ended.acquire(timeout=PATIENCE_S)


def test_stream_that_nobody_reads_is_not_watched_after_its_time(ended):
    engine = engine_on(Endless(100))
    stream = engine.stream(Request((A, B), GenerationOptions(timeout_s=0.2)))
    first = next(stream)
    assert ended.acquire(timeout=PATIENCE_S)
    if not first.is_last:  # on a slow machine the time may be up before
        assert "".join(stream) == ""
    assert stream.result.cancelled_by == "timeout"
