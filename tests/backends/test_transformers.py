"""The transformers backend on tiny random models. Skipped where torch or transformers is not installed."""

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
    DeviceError,
    ForwardInterrupted,
    ModelFileError,
    OptionError,
)

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from tinykit.backends.transformers import TransformersBackend  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
COMMON = {
    "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 512,
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Checkpoints with known weights by family."""
    return {family: write_checkpoint(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


def write_random(folder, family):
    """A checkpoint with random weights of a family whose caches are no plain keys and values."""
    torch.manual_seed(0)
    if family == "lfm2":
        config = transformers.Lfm2Config(**COMMON, layer_types=["conv", "full_attention"])
    else:
        config = transformers.Gemma3TextConfig(
            **COMMON, head_dim=32, sliding_window=8, layer_types=["sliding_attention", "full_attention"]
        )
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(8)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["llama", "lfm2", "gemma3"])
def backend(request, folders, tmp_path_factory):
    family = request.param
    folder = folders[family] if family in folders else write_random(tmp_path_factory.mktemp(family), family)
    opened = TransformersBackend(folder, context_length=512)
    yield opened
    opened.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check, backend):
    check(backend)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_and_tokens_are_those_of_the_textbook_and_of_onnx(family, folders):
    ours = TransformersBackend(folders[family], context_length=tiny.CONTEXT)
    with sizes(family):
        expected = tiny.reference_logits(tiny.random_weights(family), IDS)
    np.testing.assert_allclose(ours.forward(IDS, ours.new_state(), rows=len(IDS)), expected, atol=2e-4)
    graph = folders[family].parent / "onnx" / "model.onnx"
    onnx = OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1)
    for prompt in PROMPTS:
        assert greedy(ours, prompt) == greedy(onnx, prompt)


def test_info_is_read_back(backend):
    info = backend.info
    assert (info.backend, info.device, info.providers) == ("transformers", "cpu", ("torch:cpu",))
    assert (info.dtype, info.threads) == ("fp32", torch.get_num_threads())
    assert not info.can_batch
    with pytest.raises(BackendError, match="one sequence at a time"):
        backend.new_batch()


def test_state_takes_the_bytes_that_info_says(folders):
    backend = TransformersBackend(folders["llama"], context_length=512)
    state = backend.new_state()
    backend.forward(IDS, state)
    assert state.size_bytes == len(IDS) * backend.info.bytes_per_token


def test_interrupt_stops_between_layers_and_leaves_the_state_as_it_was(backend):
    state = backend.new_state()
    backend.forward(IDS[:5], state)
    begun = threading.Event()

    def wait(*_):
        begun.set()
        time.sleep(0.2)

    hook = backend._model.get_input_embeddings().register_forward_hook(wait)
    threading.Thread(target=lambda: (begun.wait(10), backend.interrupt())).start()
    with pytest.raises(ForwardInterrupted):
        backend.forward(IDS[5:], state)
    hook.remove()
    assert state.length == 5
    np.testing.assert_allclose(backend.forward(IDS[5:], state)[0], logits_of(backend, IDS), atol=1e-3)
    backend.interrupt()
    assert logits_of(backend, [1]).size


def test_failing_step_leaves_the_state_as_it_was(backend):
    state = backend.new_state()
    backend.forward(IDS[:5], state)

    def fail(*_):
        raise RuntimeError("CUDA out of memory\nmore")

    hook = backend._model.get_output_embeddings().register_forward_hook(fail)
    with pytest.raises(BackendError, match=r"torch failed while running the model: CUDA out of memory$"):
        backend.forward(IDS[5:], state)
    hook.remove()
    assert state.length == 5
    np.testing.assert_allclose(backend.forward(IDS[5:], state)[0], logits_of(backend, IDS), atol=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [("fp16", 0.02), ("bf16", 0.15)])
def test_half_floats_are_near_named_and_saved(dtype, tolerance, folders):
    exact = logits_of(TransformersBackend(folders["llama"], context_length=512), IDS)
    backend = TransformersBackend(folders["llama"], context_length=512, dtype=dtype)
    assert backend.info.dtype == dtype
    state = backend.new_state()
    found = backend.forward(IDS, state)[0]
    np.testing.assert_allclose(found, exact, atol=tolerance * np.abs(exact).max())
    again = backend.load_state({name: array.copy() for name, array in state.dump().items()}, len(IDS))
    np.testing.assert_array_equal(backend.forward([5], again), backend.forward([5], state))


def test_closed_backend_says_so(folders):
    backend = TransformersBackend(folders["llama"], context_length=512)
    state = backend.new_state()
    backend.close()
    backend.close()
    with pytest.raises(ClosedError):
        backend.forward([1], state)


def test_what_cannot_work_is_a_clear_error(folders, tmp_path, monkeypatch):
    with pytest.raises(OptionError, match="cannot compute in 'q4'; it knows auto, fp32"):
        TransformersBackend(folders["llama"], context_length=512, dtype="q4")
    with pytest.raises(OptionError, match="does not know the device 'dml', but cpu, cuda"):
        TransformersBackend(folders["llama"], context_length=512, device="dml")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match="sees no cuda device"):
        TransformersBackend(folders["llama"], context_length=512, device="cuda")
    with pytest.raises(ModelFileError, match=r"has no config\.json"):
        TransformersBackend(tmp_path, context_length=512)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    with pytest.raises(ModelFileError, match="cannot load"):
        TransformersBackend(tmp_path, context_length=512)
