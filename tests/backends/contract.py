"""What every backend on real models promises (`tinykit.backends.base.Backend`), and tiny models to check it on."""

from contextlib import contextmanager

import numpy as np
import pytest

from tests import tiny_models as tiny
from tinykit.convert.export import export_model
from tinykit.convert.gguf import GgufFile
from tinykit.convert.importer import import_model
from tinykit.errors import BackendError, ModelFileError

IDS = [1, 40, 41, 42, 200, 258, 259, 260]
PROMPTS = [[1, 40, 41, 42], [1, *range(60, 100)], [1, 7], IDS]
FAMILIES = ["llama", "qwen2", "qwen3"]


@contextmanager
def sizes(family):
    """mlx-lm's Qwen2 has no heads but those that divide the hidden size, as all published ones do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "HEAD_DIM", tiny.HIDDEN // tiny.HEADS if family == "qwen2" else tiny.HEAD_DIM)
        yield


def write_checkpoint(root, family):
    """Random weights as a float checkpoint, whose folder is returned, and as an ONNX graph beside it."""
    with sizes(family):
        source = GgufFile(tiny.write_gguf(root / "m.gguf", family, tiny.random_weights(family)))
    folder = root / "float"
    folder.mkdir()
    import_model(source, root, dtype="fp32")
    return export_model(source, folder)


def logits_of(backend, ids):
    return backend.forward(ids, backend.new_state())[0]


def greedy(backend, prompt, count=24):
    state, tokens, found = backend.new_state(), list(prompt), []
    for _ in range(count):
        tokens = [int(backend.forward(tokens, state)[-1].argmax())]
        found += tokens
    return found


def pieces_give_what_the_whole_gives(backend):
    whole = backend.forward(IDS, backend.new_state(), rows=3)
    assert whole.shape == (3, backend.info.vocab_size)
    state = backend.new_state()
    backend.forward(IDS[:3], state)
    for piece, row in ((IDS[3:6], 0), (IDS[6:7], 1), (IDS[7:], 2)):
        np.testing.assert_allclose(backend.forward(piece, state)[0], whole[row], atol=1e-3)
    assert state.length == len(IDS)
    assert state.size_bytes > 0


def copy_is_independent(backend):
    state = backend.new_state()
    backend.forward(IDS[:5], state)
    twin = state.copy()
    backend.forward([9, 9, 9], state)
    assert (twin.length, state.length) == (5, 8)
    np.testing.assert_allclose(backend.forward(IDS[5:], twin)[0], logits_of(backend, IDS), atol=1e-3)


def truncate_goes_back_or_says_that_it_cannot(backend):
    state = backend.new_state()
    backend.forward(IDS[:5], state)
    if state.can_truncate:
        state.truncate(3)
        assert state.length == 3
        twin = state.copy(2)
        np.testing.assert_allclose(backend.forward(IDS[3:], state)[0], logits_of(backend, IDS), atol=1e-3)
        np.testing.assert_allclose(
            backend.forward([5], twin)[0], logits_of(backend, [*IDS[:2], 5]), atol=1e-3
        )
    else:
        with pytest.raises(BackendError, match="cannot be rolled back"):
            state.truncate(3)
        with pytest.raises(BackendError, match="cannot be rolled back"):
            state.copy(3)
    with pytest.raises(ValueError, match="cannot truncate"):
        state.truncate(99)


def full_window_cannot_be_truncated_and_still_goes_on(backend):
    ids = [1, *range(60, 100)]
    state = backend.new_state()
    for token_id in ids:
        last = backend.forward([token_id], state)[0]
    np.testing.assert_allclose(last, logits_of(backend, ids), atol=1e-3)


def dump_and_load_go_on_where_they_were(backend):
    state = backend.new_state()
    backend.forward(IDS[:5], state)
    arrays = {name: array.copy() for name, array in state.dump().items()}
    expected = backend.forward(IDS[5:], state)[0]
    again = backend.load_state(arrays, 5)
    assert again.length == 5
    np.testing.assert_allclose(backend.forward(IDS[5:], again)[0], expected, atol=1e-5)


def dump_of_another_model_is_refused(backend):
    state = backend.new_state()
    backend.forward(IDS, state)
    arrays = state.dump()
    some = next(name for name, array in arrays.items() if array.ndim > 1)
    broken = [
        ({**arrays, some: arrays[some][..., :1]}, len(IDS)),
        ({**arrays, some: arrays[some].astype(np.float64)}, len(IDS)),
        ({name: a for name, a in arrays.items() if name != some}, len(IDS)),
        ({**arrays, "more": arrays[some]}, len(IDS)),
        (arrays, len(IDS) + 1),
        (arrays, 0),
    ]
    for wrong, length in broken:
        with pytest.raises(ModelFileError, match="not one of this model"):
            backend.load_state(wrong, length)


CHECKS = [
    pieces_give_what_the_whole_gives,
    copy_is_independent,
    truncate_goes_back_or_says_that_it_cannot,
    full_window_cannot_be_truncated_and_still_goes_on,
    dump_and_load_go_on_where_they_were,
    dump_of_another_model_is_refused,
]
