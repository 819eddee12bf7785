import _thread
import gc
import threading
import weakref

import numpy as np
import pytest

from tests import tiny_models as tiny
from tests.backends import plain_decoder
from tinykit.backends.onnx import OnnxBackend
from tinykit.convert.gguf import GgufFile
from tinykit.convert.importer import import_model
from tinykit.errors import BackendError, ClosedError, ForwardInterrupted, ModelFileError

PATIENCE_S = 60
IDS = [1, 40, 41, 42, 200, 258, 259, 260]


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    file = GgufFile(tiny.write_gguf(folder / "m.gguf", "llama", tiny.random_weights("llama")))
    return import_model(file, folder, dtype="fp32")


@pytest.fixture(params=[True, False], ids=["shared_buffers", "plain_feeds"])
def backend(graph, request):
    return OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1, shared_kv=request.param)


def logits_of(backend, ids):
    return backend.forward(ids, backend.new_state()).copy()


def test_our_graphs_use_shared_buffers_by_themselves(graph):
    by_default = OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1)
    state = by_default.new_state()
    by_default.forward(IDS, state)
    assert state.capacity >= len(IDS)


def test_shared_buffers_give_the_logits_of_plain_feeds(graph):
    both = [
        OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1, shared_kv=s)
        for s in (True, False)
    ]
    states = [backend.new_state() for backend in both]
    for piece in (IDS, [5], [6, 7], [8]):
        shared, plain = (b.forward(piece, s).copy() for b, s in zip(both, states, strict=True))
        np.testing.assert_array_equal(shared, plain)


def test_truncate_goes_back_to_where_it_was(backend):
    state = backend.new_state()
    backend.forward(IDS[:4], state)
    once = backend.forward(IDS[4:], state).copy()
    state.truncate(4)
    assert state.length == 4
    np.testing.assert_allclose(backend.forward(IDS[4:], state), once, atol=1e-6)
    with pytest.raises(ValueError, match="cannot truncate"):
        state.truncate(len(IDS) + 1)


def test_copy_is_independent(backend):
    state = backend.new_state()
    backend.forward(IDS, state)
    twin = state.copy(5)
    backend.forward([9, 9, 9], state)
    assert (twin.length, state.length) == (5, len(IDS) + 3)
    np.testing.assert_allclose(backend.forward(IDS[5:], twin), logits_of(backend, IDS), atol=1e-5)


def test_state_grows_and_keeps_what_it_has(graph):
    shared = OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1)
    state = shared.new_state()
    shared.forward(IDS, state)
    before = state.arrays[0][:, :, : len(IDS)].copy()
    assert state.capacity == 256
    state.reserve(257)
    assert state.capacity == 512
    np.testing.assert_array_equal(state.arrays[0][:, :, : len(IDS)], before)
    assert state.size_bytes == 2 * 4 * tiny.LAYERS * tiny.KV_HEADS * tiny.HEAD_DIM * 512


def test_state_gives_memory_back_when_little_of_it_is_kept(graph):
    shared = OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1)
    state = shared.new_state()
    shared.forward([*IDS, *range(3, 203)] * 6, state)
    assert state.capacity >= 1248
    state.truncate(len(IDS))
    assert state.capacity == 256
    np.testing.assert_allclose(shared.forward([5], state), logits_of(shared, [*IDS, 5]), atol=1e-5)


def test_failing_step_leaves_the_state_as_it_was(backend):
    state = backend.new_state()
    backend.forward(IDS, state)
    with pytest.raises(BackendError, match="ONNX Runtime failed"):
        backend.forward([1] * 4090, state)  # 4098 tokens: the rotary table ends at 4096
    assert state.length == len(IDS)
    backend.forward([5], state)
    np.testing.assert_allclose(backend.forward([6], state), logits_of(backend, [*IDS, 5, 6]), atol=1e-5)


def test_info_is_read_back(backend):
    info = backend.info
    assert (info.backend, info.device, info.providers) == ("onnx", "cpu", ("CPUExecutionProvider",))
    assert (info.vocab_size, info.threads) == (len(tiny.VOCABULARY), 1)


def test_closed_backend_says_so(backend):
    backend.close()
    backend.close()
    with pytest.raises(ClosedError):
        backend.forward([1], backend.new_state())


def test_threads_that_wait_soon_sleep(backend):
    options = backend._graph._session.get_session_options()
    assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "20"


def test_states_that_are_kept_do_not_keep_a_closed_session(backend):
    state, other = backend.new_state(), backend.new_state()
    backend.forward(IDS, state)
    backend.forward(IDS, other)
    if backend.info.can_batch:
        batch = backend.new_batch()
        batch.add(other)
        batch.forward([1])
    session = weakref.ref(backend._graph._session._sess)
    backend.close()
    gc.collect()
    assert session() is None
    assert state.length == len(IDS)
    with pytest.raises(ClosedError):
        backend.forward([1], state)


def test_no_tokens_is_an_error(backend):
    with pytest.raises(ValueError, match="at least one token"):
        backend.forward([], backend.new_state())


def test_damaged_graph_is_a_clear_error(tmp_path, graph):
    absent = tmp_path / "absent.onnx"
    with pytest.raises(ModelFileError, match="There is no file"):
        OnnxBackend(absent, dtype="fp32", context_length=tiny.CONTEXT)
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(graph.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match=r"cannot load .*cut\.onnx"):
        OnnxBackend(cut, dtype="fp32", context_length=tiny.CONTEXT)


def test_faulty_fusion_of_older_runtimes_is_left_out(graph, monkeypatch):
    import onnxruntime

    opened = onnxruntime.InferenceSession

    def faulty(path, options, *, providers, disabled_optimizers):
        if not disabled_optimizers:
            raise RuntimeError("InsertedPrecisionFreeCast_x in SimplifiedLayerNormFusion")
        return opened(path, options, providers=providers, disabled_optimizers=disabled_optimizers)

    monkeypatch.setattr(onnxruntime, "InferenceSession", faulty)
    backend = OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1)
    assert backend.forward(IDS, backend.new_state()).shape == (1, len(tiny.VOCABULARY))


def test_weights_that_lie_elsewhere_are_found_by_name(graph, tmp_path):
    moved = tmp_path / "blob"
    moved.write_bytes(graph.with_name(f"{graph.name}_data").read_bytes())
    alone = tmp_path / "graph.onnx"
    alone.write_bytes(graph.read_bytes())
    options = {"dtype": "fp32", "context_length": tiny.CONTEXT, "threads": 1}
    backend = OnnxBackend(alone, data={f"{graph.name}_data": moved}, **options)
    np.testing.assert_array_equal(logits_of(backend, IDS), logits_of(OnnxBackend(graph, **options), IDS))
    with pytest.raises(ModelFileError, match="absent"):
        OnnxBackend(alone, data={f"{graph.name}_data": tmp_path / "absent"}, **options)


def test_rows_are_the_logits_after_each_of_the_last_tokens(backend):
    rows = backend.forward(IDS, backend.new_state(), rows=5).copy()
    assert rows.shape == (5, len(tiny.VOCABULARY))
    for row, length in zip(rows, range(len(IDS) - 4, len(IDS) + 1), strict=True):
        np.testing.assert_allclose(row, logits_of(backend, IDS[:length])[0], atol=1e-5)
    for wrong in (0, len(IDS) + 1):
        with pytest.raises(ValueError, match="cannot give logits"):
            backend.forward(IDS, backend.new_state(), rows=wrong)


def test_many_rows_and_few_take_turns(backend):
    state, ids = backend.new_state(), [*range(3, 103)]
    many = backend.forward(ids, state, rows=100).copy()
    one = backend.forward([5], state).copy()
    few = backend.forward([6, 7], state, rows=2).copy()
    every = backend.forward([*ids, 5, 6, 7], backend.new_state(), rows=103)
    np.testing.assert_allclose(np.concatenate([many, one, few]), every, atol=1e-5)


@pytest.mark.parametrize("dtype", ["fp32", "q8", "q4", "w8a8"])
def test_pieces_of_two_tokens_and_more_give_the_same_bits(dtype, tmp_path):
    file = GgufFile(tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.random_weights("llama"), "Q4_0"))
    graph = import_model(file, tmp_path, dtype=dtype)
    backend = OnnxBackend(graph, dtype=dtype, context_length=tiny.CONTEXT, threads=1)
    least, ids = backend.info.exact_tokens, [*range(3, 63)]
    assert least == 2
    whole = backend.forward(ids, backend.new_state(), rows=60).copy()
    for size in (least, 3, 7, 20):
        state = backend.new_state()
        starts = range(0, 60 - 60 % size, size)
        pieces = [backend.forward(ids[start : start + size], state, rows=size).copy() for start in starts]
        np.testing.assert_array_equal(np.concatenate(pieces), whole[: len(starts) * size])


@pytest.mark.parametrize("all_logits", [True, False], ids=["all_logits", "last_logits"])
def test_rows_of_a_graph_that_is_not_told_how_many(all_logits, tmp_path):
    path = plain_decoder.write(tmp_path / "m.onnx", all_logits=all_logits)
    backend = OnnxBackend(path, dtype="fp32", context_length=plain_decoder.CONTEXT, threads=1)
    state = backend.new_state()
    backend.forward([9, 8], state)
    rows = backend.forward([3, 4, 5, 6], state, rows=3).copy()
    for row, length in zip(rows, (2, 3, 4), strict=True):
        np.testing.assert_allclose(row, logits_of(backend, [9, 8, 3, 4, 5, 6][: 2 + length])[0], atol=1e-5)
    before = state.copy()
    with pytest.raises(BackendError):
        backend.forward([3, 4, plain_decoder.VOCAB_SIZE], state, rows=3)  # no such token
    assert state.length == 6
    np.testing.assert_array_equal(backend.forward([7], state).copy(), backend.forward([7], before))


def test_dumped_state_goes_on_as_before(backend):
    state = backend.new_state()
    backend.forward(IDS, state)
    arrays = {name: array.copy() for name, array in state.dump().items()}
    assert {array.shape for array in arrays.values()} == {(1, tiny.KV_HEADS, len(IDS), tiny.HEAD_DIM)}
    loaded = backend.load_state(arrays, len(IDS))
    for piece in ([5], [6, 7]):
        np.testing.assert_array_equal(backend.forward(piece, state).copy(), backend.forward(piece, loaded))
    assert loaded.length == state.length


def test_state_of_another_model_is_refused(backend):
    state = backend.new_state()
    backend.forward(IDS, state)
    arrays, name = state.dump(), "past_key_values.0.key"
    others = {
        "length": (arrays, len(IDS) + 1),
        "absent": ({k: v for k, v in arrays.items() if k != name}, len(IDS)),
        "extra": (arrays | {"past_conv.0": arrays[name]}, len(IDS)),
        "type": (arrays | {name: arrays[name].astype(np.float16)}, len(IDS)),
        "heads": (arrays | {name: arrays[name][:, :1]}, len(IDS)),
    }
    for wrong, length in others.values():
        with pytest.raises(ModelFileError, match="not one of this model") as caught:
            backend.load_state(wrong, length)
        assert caught.value.hint


def test_forward_is_interrupted_from_another_thread(backend):
    state, ids = backend.new_state(), [*range(3, 253)] * 12
    backend.forward(IDS, state)
    whole = backend.forward(ids, state.copy()).copy()
    entered, stop = threading.Event(), threading.Event()

    def interrupt():
        entered.wait()
        while not stop.is_set():  # the run may not have begun
            backend.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    entered.set()
    try:
        with pytest.raises(ForwardInterrupted, match="interrupted"):
            backend.forward(ids, state)
    finally:
        stop.set()
        thread.join()
    assert state.length == len(IDS)
    np.testing.assert_array_equal(backend.forward(ids, state), whole)


def test_interrupt_that_comes_too_late_stops_nothing(backend):
    backend.interrupt()
    expected = logits_of(backend, IDS)
    backend.interrupt()
    np.testing.assert_array_equal(logits_of(backend, IDS), expected)


def test_prompt_pieces_follow_from_the_size_of_the_weights(graph, tmp_path):
    sizes = {}
    for dtype, megabytes in (("q8", 0), ("q8", 145), ("fp32", 540), ("q8", 500), ("q4", 500), ("q8", 9000)):
        path = tmp_path / "m.onnx"
        path.write_bytes(graph.read_bytes())
        data = path.with_name(f"{graph.name}_data")
        data.write_bytes(graph.with_name(data.name).read_bytes())
        with path.with_name("m.onnx_data").open("wb") as sparse:
            sparse.truncate(megabytes * 10**6)
        options = {"context_length": tiny.CONTEXT, "threads": 1}
        sizes[dtype, megabytes] = OnnxBackend(path, dtype=dtype, **options).info.chunk_tokens
    assert list(sizes.values()) == [128, 128, 128, 32, 16, 16]


class Pressed:
    """A session that presses Ctrl-C when it begins to compute, and goes on once it was told to stop."""

    def __init__(self, session, told):
        self._session, self._told = session, told

    def __getattr__(self, name):
        original = getattr(self._session, name)
        if not name.startswith("run"):
            return original

        def run(*arguments):
            _thread.interrupt_main()
            assert self._told.wait(PATIENCE_S)
            return original(*arguments)

        return run


def test_interrupt_ends_a_long_forward_and_leaves_the_state_as_it_was(backend, monkeypatch):
    graph, told = backend._graph, threading.Event()
    state = backend.new_state()
    backend.forward(IDS[:2], state)
    session, interrupt = graph._session, graph.interrupt
    monkeypatch.setattr(graph, "interrupt", lambda: (interrupt(), told.set()))
    monkeypatch.setattr(graph, "_session", Pressed(session, told))
    graph.long_tokens = 3
    with pytest.raises(KeyboardInterrupt):
        backend.forward(IDS[2:], state)
    assert told.is_set() and state.length == 2
    monkeypatch.setattr(graph, "_session", session)
    np.testing.assert_array_equal(backend.forward(IDS[2:], state), resumed(backend, 2))


def resumed(backend, at):
    state = backend.new_state()
    backend.forward(IDS[:at], state)
    return backend.forward(IDS[at:], state).copy()


def test_long_forwards_give_the_logits_of_others(backend):
    direct = resumed(backend, 3)
    backend._graph.long_tokens = 1
    np.testing.assert_array_equal(resumed(backend, 3), direct)


@pytest.mark.parametrize(("weights_bytes", "tokens"), [(140_000_000, 14), (2_500_000_000, 1)])
def test_forwards_are_long_by_their_weights(graph, monkeypatch, weights_bytes, tokens):
    monkeypatch.setattr("tinykit.backends.onnx._weights_bytes", lambda path, data: weights_bytes)
    made = OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1)
    assert made._graph.long_tokens == tokens
