import mmap
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import tiny_models as tiny
from tests.backends import plain_decoder
from tinykit.backends.onnx import OnnxBackend
from tinykit.convert.gguf import GgufFile
from tinykit.convert.importer import import_model
from tinykit.errors import BackendError, ClosedError


def opened(kind, folder):
    """A small model in one of the two modes."""
    if kind == "plain_feeds":
        path, context = plain_decoder.write(folder / "plain.onnx"), plain_decoder.CONTEXT
    else:
        file = GgufFile(tiny.write_gguf(folder / "m.gguf", "llama", tiny.random_weights("llama")))
        path, context = import_model(file, folder, dtype="fp32"), tiny.CONTEXT
    return OnnxBackend(path, dtype="fp32", context_length=context, threads=1, can_batch=True)


@pytest.fixture(scope="module", params=["shared_buffers", "plain_feeds"])
def backend(request, tmp_path_factory):
    found = opened(request.param, tmp_path_factory.mktemp("batch"))
    yield found
    found.close()


def state_of(backend, length, seed=0):
    state = backend.new_state()
    ids = np.random.default_rng(seed).integers(3, backend.info.vocab_size, length).tolist()
    if ids:
        backend.forward(ids, state)
    return state


def same_step(backend, batch, states, token_ids):
    """One step of the batch and of each sequence alone."""
    together = batch.forward(token_ids).copy()
    alone = np.concatenate([backend.forward([i], s).copy() for i, s in zip(token_ids, states, strict=True)])
    np.testing.assert_allclose(together, alone, atol=1e-4)


def test_rows_of_very_different_lengths_answer_as_they_do_alone(backend):
    lengths = [1, 0, 50, 7, 33]
    states = [state_of(backend, length, seed) for seed, length in enumerate(lengths)]
    batch = backend.new_batch()
    for state in states:
        batch.add(state)
    assert len(batch) == len(lengths)
    for step in range(4):
        same_step(backend, batch, states, [step + 3 + n for n in range(len(states))])


# joins of some tokens' length, leaves of some row, or steps
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 30)),
        st.tuples(st.just("leave"), st.integers(0, 20)),
        st.tuples(st.just("step"), st.integers(3, 40)),
    ),
    max_size=25,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_rows_that_join_and_leave_at_random(backend, actions):
    batch, states = backend.new_batch(), []
    for number, (action, value) in enumerate(actions):
        if action == "join":
            states.append(state_of(backend, value, number))
            batch.add(states[-1])
        elif action == "leave" and states:
            batch.remove(value % len(states))
            del states[value % len(states)]
        elif states:
            same_step(backend, batch, states, [value + row for row in range(len(states))])
        assert len(batch) == len(states)


def test_state_that_was_added_goes_its_own_way(backend):
    state = state_of(backend, 9)
    batch = backend.new_batch()
    batch.add(state)
    batch.add(state)
    before = backend.forward([5], state.copy()).copy()
    backend.forward([9] * 3, state)
    np.testing.assert_allclose(batch.forward([5, 5]), np.repeat(before, 2, axis=0), atol=1e-4)


def test_interrupted_step_leaves_all_rows_as_they_were(backend, monkeypatch):
    states = [state_of(backend, 5), state_of(backend, 12)]
    batch = backend.new_batch()
    for state in states:
        batch.add(state)
    graph = backend._graph
    for method in ("run", "run_bound"):
        original = getattr(graph, method)

        def interrupted(*args, original=original):
            graph.interrupt()
            return original(*args)

        monkeypatch.setattr(graph, method, interrupted)
    with pytest.raises(BackendError, match="interrupted"):
        batch.forward([5, 6])
    monkeypatch.undo()
    same_step(backend, batch, states, [5, 6])


def test_wrong_use_of_a_batch_is_said(backend):
    batch = backend.new_batch()
    with pytest.raises(ValueError, match="a batch of 0 rows cannot take 0 tokens"):
        batch.forward([])
    batch.add(state_of(backend, 3))
    with pytest.raises(ValueError, match="a batch of 1 rows cannot take 2 tokens"):
        batch.forward([5, 6])
    with pytest.raises(IndexError):
        batch.remove(1)


@pytest.fixture
def shared(tmp_path):
    file = GgufFile(tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.random_weights("llama")))
    graph = import_model(file, tmp_path, dtype="fp32")
    return OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1)


def test_buffers_grow_past_their_room_and_give_it_back(shared):
    token_bytes, logits_bytes = shared.info.bytes_per_token, 4 * len(tiny.VOCABULARY)
    states = [state_of(shared, 254, seed) for seed in range(17)]
    batch = shared.new_batch()
    for state in states:
        batch.add(state)
    assert (batch._room(), batch.size_bytes) == ((32, 256), 17 * 254 * token_bytes + 32 * logits_bytes)
    for _ in range(4):
        same_step(shared, batch, states, list(range(3, 20)))
    assert (batch._room(), batch.size_bytes) == ((32, 512), 17 * 258 * token_bytes + 32 * logits_bytes)
    while len(batch) > 2:
        batch.remove(0)
        del states[0]
        same_step(shared, batch, states, list(range(3, 3 + len(states))))
    assert batch._room()[0] == 16
    assert batch.size_bytes == sum(state.length for state in states) * token_bytes + 16 * logits_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's advice on memory")
def test_place_of_a_row_that_has_left_takes_no_memory(shared):
    states = [state_of(shared, 254, seed) for seed in range(3)]
    batch = shared.new_batch()
    for state in states:
        batch.add(state)
    same_step(shared, batch, states, [3, 4, 5])
    buffers = batch._held[0].arrays
    assert all(buffer[:3].reshape(3, -1).any(axis=1).all() for buffer in buffers)
    batch.remove(1)  # then the last row moves into its place
    same_step(shared, batch, [states[0], states[2]], [6, 7])
    page = mmap.PAGESIZE // 4
    for buffer in batch._held[0].arrays:
        left = buffer[2].reshape(-1)
        assert not left[page:-page].any()


def test_failing_step_of_a_batch_leaves_all_rows_as_they_were(shared):
    states = [state_of(shared, 4), state_of(shared, tiny.CONTEXT)]
    batch = shared.new_batch()
    for state in states:
        batch.add(state)
    with pytest.raises(BackendError, match="ONNX Runtime failed"):
        batch.forward([5, 6])  # the rotary table ends before the second row's token
    batch.remove(1)
    same_step(shared, batch, states[:1], [5])


def test_closed_backend_runs_no_batch(shared):
    batch = shared.new_batch()
    batch.add(state_of(shared, 3))
    shared.close()
    with pytest.raises(ClosedError):
        batch.forward([5])


def test_foreign_graph_batches_only_if_told(tmp_path):
    path = plain_decoder.write(tmp_path / "plain.onnx")
    backend = OnnxBackend(path, dtype="fp32", context_length=64, threads=1)
    assert not backend.info.can_batch
    with pytest.raises(BackendError, match="several sequences"):
        backend.new_batch()
