"""Ctrl-C at every place where Python may hear of it: nothing stays held, and the next call is a good one."""

import contextlib
import sys
import threading
from inspect import CO_GENERATOR
from pathlib import Path

import pytest

import tinykit
from tests.generation.test_batch import saying
from tests.generation.test_engine import A, B
from tinykit.generation.batch import one_request, run_task, run_tasks, samples
from tinykit.generation.choice import score_continuations
from tinykit.generation.request import GenerationOptions, Request

OURS = str(Path(tinykit.__file__).parent / "generation")
WATCHED = (OURS, contextlib.__file__, threading.__file__)
PATIENCE_S = 60
REQUEST = Request((A, B), slot="chat")
PREFIXED = Request((A, B), GenerationOptions(timeout_s=1000), prefix_tokens=1, slot="chat")


def interrupted(at, act, engine):
    """Call `act`, with a KeyboardInterrupt at the `at`-th place; which place that was, and the error.

    Python hears of a signal when a function of its own begins, and after the call of any other. Not when an
    exception is thrown into a generator: that goes on where the generator's own handlers are.
    """
    seen, come, thrown = [0], [], [0]

    def hear(frame, event, argument):
        is_generator = bool(frame.f_code.co_flags & CO_GENERATOR)
        if event.startswith("c_") and getattr(argument, "__name__", "") in ("throw", "close"):
            thrown[0] += 1 if event == "c_call" else -1
        is_place = (
            event == "c_return"
            or (event == "call" and not (is_generator and thrown[0]))
            or (event == "return" and not is_generator)
        )
        if come or not is_place or not frame.f_code.co_filename.startswith(WATCHED):
            return
        seen[0] += 1
        if seen[0] == at:
            come.append(frame.f_code.co_qualname)
            raise KeyboardInterrupt

    sys.setprofile(hear)
    try:
        act(engine)
    except KeyboardInterrupt as error:
        return come, error
    finally:
        sys.setprofile(None)
    return come, None


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
        come, error = interrupted(at, act, engine)
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
