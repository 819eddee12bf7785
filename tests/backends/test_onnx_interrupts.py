"""Ctrl-C at every place of the ONNX backend: a state or a batch is as before the call, or as after it."""

from pathlib import Path

import numpy as np
import pytest

import tinykit
from tests.backends.test_onnx_batch import opened, state_of
from tests.interrupting import interrupted

WATCHED = (str(Path(tinykit.__file__).parent / "backends"),)
TOKENS, LATER = [5, 6, 7], [8]


@pytest.fixture(scope="module", params=["shared_buffers", "plain_feeds"])
def backend(request, tmp_path_factory):
    found = opened(request.param, tmp_path_factory.mktemp("interrupts"))
    yield found
    found.close()


def places(new, act):
    """Each place where `act` on something new can be interrupted, with that thing after the interrupt."""
    act(new())  # whatever is made only once
    at = 0
    while True:
        at += 1
        thing = new()
        come, error = interrupted(at, lambda thing=thing: act(thing), WATCHED)
        if not come:
            break
        assert isinstance(error, KeyboardInterrupt), come
        yield f"place {at}, in {come[0]}", thing
    assert at > 10


def is_like(found, *wanted):
    return any(found.shape == one.shape and np.allclose(found, one, atol=1e-4) for one in wanted)


def answers(backend, state, *inputs):
    """The last logits of inputs one after another."""
    return [backend.forward(token_ids, state).copy() for token_ids in inputs][-1]


@pytest.mark.parametrize("length", [0, 9, 255], ids=["new", "begun", "about to grow"])
def test_forward(backend, length):
    if length > backend.info.context_length:
        pytest.skip("is never so long")
    alone = [
        answers(backend, state_of(backend, length), LATER),
        answers(backend, state_of(backend, length), TOKENS, LATER),
    ]
    for place, state in places(
        lambda: state_of(backend, length), lambda state: backend.forward(TOKENS, state)
    ):
        number = (state.length - length) // len(TOKENS)
        assert is_like(answers(backend, state, LATER), alone[number]), place


def test_several_logits(backend):
    alone = [
        answers(backend, state_of(backend, 9), LATER),
        answers(backend, state_of(backend, 9), TOKENS, LATER),
    ]
    for place, state in places(
        lambda: state_of(backend, 9), lambda state: backend.forward(TOKENS, state, rows=3)
    ):
        number = (state.length - 9) // len(TOKENS)
        assert is_like(answers(backend, state, LATER), alone[number]), place


@pytest.mark.parametrize("kept", [4, 9])
def test_rolling_back_and_copying(backend, kept):
    if not state_of(backend, 9).can_truncate:
        pytest.skip("has a recurrent state")
    alone = {length: answers(backend, state_of(backend, 9).copy(length), LATER) for length in (kept, 9)}

    def act(state):
        state.copy(kept)
        state.truncate(kept)

    for place, state in places(lambda: state_of(backend, 9), act):
        wanted = alone[state.length]
        assert is_like(answers(backend, state, LATER), wanted), place


LENGTHS = [3, 9, 1, 5]


def batch_of(backend):
    batch = backend.new_batch()
    for seed, length in enumerate(LENGTHS):
        batch.add(state_of(backend, length, seed))
    batch.forward([3] * len(LENGTHS))
    return batch


def rows_alone(backend, rows, *inputs):
    """What the given rows of such a batch answer to inputs, each alone."""
    found = []
    for row in rows:
        state = state_of(backend, LENGTHS[row], row) if row < len(LENGTHS) else state_of(backend, 30, row)
        found.append(answers(backend, state, *([[3]] if row < len(LENGTHS) else []), *inputs))
    return np.concatenate(found)


def test_step_of_a_batch(backend):
    every = range(len(LENGTHS))
    alone = rows_alone(backend, every, LATER), rows_alone(backend, every, [4], LATER)
    for place, batch in places(lambda: batch_of(backend), lambda batch: batch.forward([4] * len(LENGTHS))):
        assert is_like(batch.forward(LATER * len(LENGTHS)), *alone), place


def test_row_that_joins(backend):
    new = state_of(backend, 30, 4)
    alone = rows_alone(backend, range(4), LATER), rows_alone(backend, range(5), LATER)
    for place, batch in places(lambda: batch_of(backend), lambda batch: batch.add(new)):
        assert is_like(batch.forward(LATER * len(batch)), alone[len(batch) - 4]), place


def test_row_that_leaves_and_the_step_after_it(backend):
    alone = [
        rows_alone(backend, range(4), LATER),
        rows_alone(backend, [0, 2, 3], LATER),
        rows_alone(backend, [0, 2, 3], [4], LATER),
    ]

    def act(batch):
        batch.remove(1)
        batch.forward([4] * 3)

    for place, batch in places(lambda: batch_of(backend), act):
        wanted = alone[:1] if len(batch) == 4 else alone[1:]
        assert is_like(batch.forward(LATER * len(batch)), *wanted), place
