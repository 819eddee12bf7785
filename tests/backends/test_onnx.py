import numpy as np
import pytest

from tests import tiny_models as tiny
from tinykit.backends.onnx import OnnxBackend
from tinykit.convert.gguf import GgufFile
from tinykit.convert.importer import import_model
from tinykit.errors import BackendError, ClosedError, ModelFileError

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
