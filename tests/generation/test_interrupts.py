"""Ctrl-C at every place where Python may hear of it: nothing stays held, and the next call is a good one."""

import contextlib
import threading
from pathlib import Path

import pytest

import tinykit
from tests.generation.test_batch import saying
from tests.generation.test_engine import A, B
from tests.interrupting import interrupted
from tinykit.generation.batch import one_request, run_task, run_tasks, samples
from tinykit.generation.choice import score_continuations
from tinykit.generation.request import GenerationOptions, Request

WATCHED = (str(Path(tinykit.__file__).parent / "generation"), contextlib.__file__, threading.__file__)
PATIENCE_S = 60
REQUEST = Request((A, B), slot="chat")
PREFIXED = Request((A, B), GenerationOptions(timeout_s=1000), prefix_tokens=1, slot="chat")


def generated(engine):
    engine.generate(REQUEST)


def generated_with_a_prefix(engine):
    engine.generate(PREFIXED)


def streamed(engine):
    for _ in engine.stream(REQUEST):
        pass


open_streams = []


def left(engine):
    with engine.stream(REQUEST) as stream:
        open_streams[:] = [stream]
        next(stream)


def sampled(engine):
    samples(engine, REQUEST, 2)


def asked_in_a_task(engine):
    def asking():
        return (yield [REQUEST, PREFIXED])

    run_task(engine, asking())


def batched(engine):
    list(run_tasks(engine, map(one_request, [REQUEST, PREFIXED]), batch_size=2))


def scored(engine):
    score_continuations(engine, (A, B), [(A,), (B, A)])


def answer_elsewhere(engine):
    found = []
    other = threading.Thread(target=lambda: found.append(engine.generate(REQUEST)), daemon=True)
    other.start()
    other.join(PATIENCE_S)
    return found


# every place of those that all others are made of; of the longer ones every seventh, to be quick
@pytest.mark.parametrize(
    ("act", "step"),
    [
        *((act, 1) for act in (generated, streamed, left, scored)),
        *((act, 7) for act in (generated_with_a_prefix, sampled, asked_in_a_task, batched)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_interrupt_anywhere_leaves_nothing_held(act, step):
    engine, at = saying("h"), 0
    act(engine)  # whatever is imported late
    while True:
        at += step
        engine.slots.clear()
        engine.cache.clear()
        # the error is kept, as a notebook keeps it, with all frames in its traceback
        come, error = interrupted(at, lambda: act(engine), WATCHED)
        if not come:
            break
        for stream in open_streams if come[0] in ("Stream.__exit__", "Stream.close") else ():
            stream.close()  # the interrupt came before: the stream is still its user's to close
        assert isinstance(error, KeyboardInterrupt)
        assert engine.generate(REQUEST).text == "h", f"stuck after place {at}, in {come[0]}"
        assert engine.slots.free("chat")
        assert (engine.turns._line, engine.cancel()) == ({}, 0)
    assert at > 50
    assert [one.text for one in answer_elsewhere(engine)] == ["h"]
