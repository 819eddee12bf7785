"""The MLX backend on tiny random models. Skipped where mlx-lm is not installed (`pip install 'tinykit[mlx]'`)."""

import json
import threading
import time

import numpy as np
import pytest

from tests import tiny_models as tiny
from tests.backends.contract import CHECKS, FAMILIES, IDS, PROMPTS, greedy, logits_of, sizes, write_checkpoint
from tinykit.backends.onnx import OnnxBackend
from tinykit.errors import (
    BackendError,
    ClosedError,
    ForwardInterrupted,
    ModelFileError,
    OptionError,
    UnsupportedModelError,
)

mlx_lm = pytest.importorskip("mlx_lm", reason="mlx-lm is not installed")

from tinykit.backends import mlx as module  # noqa: E402
from tinykit.backends.mlx import THREAD, MlxBackend  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
OTHERS = {  # families whose caches are no plain keys and values, with the least that mlx-lm wants to know
    "lfm2": {
        "norm_eps": 1e-5, "conv_bias": False, "conv_L_cache": 3, "block_dim": 64, "block_ff_dim": 96,
        "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1], "layer_types": ["conv", "full_attention"], "rope_theta": 10000.0,
    },
    "gemma3_text": {"sliding_window": 8, "sliding_window_pattern": 2, "query_pre_attn_scalar": 32},
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Checkpoints with known weights by family."""
    return {family: write_checkpoint(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


def write_random(folder, family):
    """A checkpoint of mlx-lm's own with random weights."""
    config = {
        "model_type": family, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5,
        "vocab_size": 300, "max_position_embeddings": 512, **OTHERS[family],
    }  # fmt: skip

    def act():
        import mlx.core as mx
        from mlx.utils import tree_flatten
        from mlx_lm.utils import _get_classes

        model_class, arguments = _get_classes(config)
        mx.random.seed(0)
        model = model_class(arguments.from_dict(config))
        weights = {
            name: 8 * value if value.ndim == 2 else value for name, value in tree_flatten(model.parameters())
        }
        mx.save_safetensors(str(folder / "model.safetensors"), weights)

    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    THREAD.call(act)
    return folder


@pytest.fixture(scope="module", params=["llama", *OTHERS])
def backend(request, folders, tmp_path_factory):
    """One model with plain caches, one with recurrent states, one with sliding windows."""
    family = request.param
    folder = folders[family] if family in folders else write_random(tmp_path_factory.mktemp(family), family)
    opened = MlxBackend(folder, context_length=512)
    yield opened
    opened.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_textbook(family, folders):
    backend = MlxBackend(folders[family], context_length=tiny.CONTEXT)
    with sizes(family):
        expected = tiny.reference_logits(tiny.random_weights(family), IDS)
    np.testing.assert_allclose(backend.forward(IDS, backend.new_state(), rows=len(IDS)), expected, atol=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_the_onnx_backend(family, folders):
    graph = folders[family].parent / "onnx" / "model.onnx"
    onnx = OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1)
    ours = MlxBackend(folders[family], context_length=tiny.CONTEXT)
    for prompt in PROMPTS:
        assert greedy(ours, prompt) == greedy(onnx, prompt)


def test_rope_base_is_found_where_transformers_writes_it(folders, tmp_path):
    for file in folders["llama"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    theta = 123.0
    config["rope_parameters"] = {"rope_theta": theta, "rope_type": "default"}
    del config["rope_theta"]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = logits_of(MlxBackend(tmp_path, context_length=512), IDS)
    config["rope_theta"] = theta
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    np.testing.assert_array_equal(found, logits_of(MlxBackend(tmp_path, context_length=512), IDS))
    other = logits_of(MlxBackend(folders["llama"], context_length=512), IDS)
    assert np.abs(found - other).max() > 1e-2


def test_info_is_read_back(backend):
    info = backend.info
    assert (info.backend, info.context_length) == ("mlx", 512)
    assert info.device in ("cpu", "mlx")
    assert info.providers[0] in ("mlx:cpu", "mlx:gpu")
    assert info.dtype == "fp32"
    assert info.chunk_tokens % 128 == 0
    assert not info.can_batch
    with pytest.raises(BackendError, match="one sequence at a time"):
        backend.new_batch()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check, backend):
    check(backend)


def test_dump_holds_exactly_the_tokens_that_were_seen(folders):
    backend = MlxBackend(folders["llama"], context_length=512)
    state = backend.new_state()
    backend.forward(IDS, state)
    arrays = state.dump()
    assert arrays["0.keys"].shape == (1, tiny.KV_HEADS, len(IDS), tiny.HEAD_DIM)
    growing = [array for array in arrays.values() if array.ndim]
    assert sum(array.nbytes for array in growing) == len(IDS) * backend.info.bytes_per_token
    state.truncate(3)
    assert state.dump()["1.values"].shape[2] == 3


def test_copy_gives_room_back(folders):
    backend = MlxBackend(folders["llama"], context_length=4096)
    state = backend.new_state()
    backend.forward([1, *range(100)] * 4, state)
    assert state.copy(3).size_bytes == 3 * backend.info.bytes_per_token < state.size_bytes


def slow(backend, monkeypatch, seconds):
    """Let each call of the model take a while, and say when one has begun."""
    begun, model = threading.Event(), backend._model

    def call(*args, **options):
        begun.set()
        time.sleep(seconds)
        return model(*args, **options)

    call.layers = model.layers
    monkeypatch.setattr(backend, "_model", call)
    return begun


def test_interrupt_lets_the_caller_go_and_leaves_the_state_as_it_was(backend, monkeypatch):
    state = backend.new_state()
    backend.forward(IDS[:5], state)
    with monkeypatch.context() as patch:
        begun = slow(backend, patch, 0.2)
        threading.Thread(target=lambda: (begun.wait(10), backend.interrupt())).start()
        with pytest.raises(ForwardInterrupted):
            backend.forward(IDS[5:], state)
    assert state.length == 5
    np.testing.assert_allclose(backend.forward(IDS[5:], state)[0], logits_of(backend, IDS), atol=1e-3)


def test_interrupt_without_a_forward_does_nothing(backend):
    backend.interrupt()
    assert logits_of(backend, [1]).shape == (backend.info.vocab_size,)


def test_failing_step_leaves_the_state_as_it_was(backend, monkeypatch):
    state = backend.new_state()
    backend.forward(IDS[:5], state)
    model = backend._model

    def fail(ids, cache):
        model(ids, cache=cache)
        raise RuntimeError("[metal] out of memory\nmore")

    with monkeypatch.context() as patch:
        patch.setattr(backend, "_model", fail)
        with pytest.raises(
            BackendError, match=r"MLX failed while running the model: \[metal\] out of memory$"
        ):
            backend.forward(IDS[5:], state)
    assert state.length == 5
    np.testing.assert_allclose(backend.forward(IDS[5:], state)[0], logits_of(backend, IDS), atol=1e-3)


def test_one_thread_does_it_all(folders, monkeypatch):
    """https://github.com/ml-explore/mlx-lm/issues/1181"""
    seen = set()

    def noted(name):
        act = getattr(module, name)

        def call(*args, **options):
            seen.add(threading.current_thread().name)
            return act(*args, **options)

        monkeypatch.setattr(module, name, call)

    for name in ("_load", "_logits", "_clear", "dumped", "fill", "spare_of"):
        noted(name)
    backend = MlxBackend(folders["llama"], context_length=512)
    found = []

    def ask():
        state = backend.new_state()
        found.append(int(backend.forward(IDS, state).argmax()))
        backend.load_state(state.copy().dump(), len(IDS))

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
        asker.join()
    backend.close()
    assert seen == {"tinykit-mlx"}
    assert len(found) == 3
    assert len(set(found)) == 1


def test_closed_backend_says_so(folders):
    backend = MlxBackend(folders["llama"], context_length=512)
    state = backend.new_state()
    backend.close()
    backend.close()
    with pytest.raises(ClosedError):
        backend.forward([1], state)
    with pytest.raises(ClosedError):
        backend.new_state()


def test_bad_calls_are_errors(folders):
    backend = MlxBackend(folders["llama"], context_length=512)
    with pytest.raises(ValueError, match="at least one token"):
        backend.forward([], backend.new_state())
    with pytest.raises(ValueError, match="after 2 of 1 tokens"):
        backend.forward([1], backend.new_state(), rows=2)
    with pytest.raises(OptionError, match="cannot convert to 'int3'; it knows auto, fp32"):
        MlxBackend(folders["llama"], context_length=512, dtype="int3")


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp16", 0.02), ("bf16", 0.15), ("q8", 0.1)])
def test_other_precisions_are_near_and_named(dtype, tolerance, folders):
    exact = logits_of(MlxBackend(folders["llama"], context_length=512), IDS)
    backend = MlxBackend(folders["llama"], context_length=512, dtype=dtype)
    assert backend.info.dtype == dtype
    np.testing.assert_allclose(logits_of(backend, IDS), exact, atol=tolerance * np.abs(exact).max())
    state = backend.new_state()
    backend.forward(IDS, state)
    arrays = {name: array.copy() for name, array in state.dump().items()}
    expected = backend.forward([5], state)
    np.testing.assert_array_equal(backend.forward([5], backend.load_state(arrays, len(IDS))), expected)


def test_unusable_folders_are_clear_errors(folders, tmp_path):
    with pytest.raises(ModelFileError, match=r"config\.json cannot be read"):
        MlxBackend(tmp_path, context_length=512)
    config = json.loads((folders["llama"] / "config.json").read_text(encoding="utf-8"))

    def refused(kind, match, **fields):
        (tmp_path / "config.json").write_text(json.dumps({**config, **fields}), encoding="utf-8")
        with pytest.raises(kind, match=match):
            MlxBackend(tmp_path, context_length=512)

    refused(ModelFileError, "No safetensors found")
    (tmp_path / "model.safetensors").write_bytes((folders["llama"] / "model.safetensors").read_bytes()[:-64])
    refused(ModelFileError, "mlx-lm cannot load")
    (tmp_path / "model.safetensors").write_bytes((folders["llama"] / "model.safetensors").read_bytes())
    refused(UnsupportedModelError, "mlx-lm cannot run .* not supported", model_type="nobodys")
    refused(UnsupportedModelError, r"brings its own code \(evil\.py\)", model_file="evil.py")


def test_a_start_that_failed_is_not_tried_again(folders, monkeypatch):
    tries = []

    def broken(*args, **options):
        tries.append(1)
        raise ImportError("libmlx.so: cannot open shared object file")

    monkeypatch.setattr(module, "require", broken)
    monkeypatch.setattr(module, "_START_ERROR", [])
    for _ in range(2):
        with pytest.raises(BackendError, match="MLX cannot start: libmlx.so: cannot open shared object file"):
            MlxBackend(folders["llama"], context_length=512)
    assert len(tries) == 1
