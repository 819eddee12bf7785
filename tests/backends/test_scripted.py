import numpy as np
import pytest

from tinykit.backends.scripted import ScriptedBackend
from tinykit.errors import BackendError, ClosedError, ForwardInterrupted, ModelFileError


def backend(script=lambda seen: sum(seen) % 10, **options):
    return ScriptedBackend(script, vocab_size=10, **options)


def test_rows_are_the_answers_after_each_of_the_last_tokens():
    scripted = backend()
    state = scripted.new_state()
    logits = scripted.forward([1, 2, 3, 4], state, rows=3)
    assert logits.shape == (3, 10)
    assert logits.argmax(axis=1).tolist() == [3, 6, 0]
    assert (state.length, scripted.calls) == (4, [(1, 2, 3, 4)])


def test_script_may_give_all_logits():
    wanted = np.arange(10, dtype=np.float32)
    scripted = backend(lambda seen: wanted)
    np.testing.assert_array_equal(scripted.forward([1], scripted.new_state())[0], wanted)


def test_batch_answers_each_row_after_its_own_tokens():
    scripted = backend()
    batch = scripted.new_batch()
    for ids in ([1], [2, 3], [4, 4]):
        state = scripted.new_state()
        scripted.forward(ids, state)
        batch.add(state)
    assert batch.forward([1, 1, 1]).argmax(axis=1).tolist() == [2, 6, 9]
    batch.remove(1)
    assert batch.forward([1, 1]).argmax(axis=1).tolist() == [3, 0]
    assert scripted.batch_calls == [(1, 1, 1), (1, 1)]
    assert batch.size_bytes == 8 * (3 + 4)


def test_interrupted_forward_changes_nothing():
    def script(seen):
        if 7 in seen:
            scripted.interrupt()
        return 0

    scripted = backend(script)
    state = scripted.new_state()
    scripted.interrupt()  # nothing runs
    scripted.forward([1, 2], state)
    batch = scripted.new_batch()
    batch.add(state)
    for step in (lambda: scripted.forward([7], state), lambda: batch.forward([7])):
        with pytest.raises(ForwardInterrupted):
            step()
    assert (state.length, batch.size_bytes) == (2, 16)
    scripted.forward([3], state)
    assert state.token_ids == [1, 2, 3]


def test_dumped_state_is_loaded():
    scripted = backend()
    state = scripted.new_state()
    scripted.forward([1, 2], state)
    assert scripted.load_state(state.dump(), 2).token_ids == [1, 2]
    with pytest.raises(ModelFileError):
        scripted.load_state(state.dump(), 3)


def test_wrong_use_is_said():
    scripted = backend(can_batch=False)
    with pytest.raises(BackendError, match="several sequences"):
        scripted.new_batch()
    for ids, rows in (([], 1), ([1], 2), ([1], 0)):
        with pytest.raises(ValueError, match="cannot give logits"):
            scripted.forward(ids, scripted.new_state(), rows=rows)
    scripted.close()
    with pytest.raises(ClosedError):
        scripted.forward([1], scripted.new_state())
