"""Every way in which a device lets a session down: the session says so, and works on the CPU."""

import re
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest

from tests import tiny_models as tiny
from tests.fake_devices import (
    CPU,
    CUDA,
    REAL,
    WEBGPU,
    Cuda,
    Plugin,
    bare,
    damaged,
    from_step,
    mlx_that_does_not_start,
    raising,
)
from tinykit import TinySession
from tinykit.backends import onnx_session
from tinykit.backends.onnx_providers import heavy_share, open_on
from tinykit.devices import DEVICES
from tinykit.errors import DeviceError, DeviceFallbackWarning
from tinykit.loading import FAILURES
from tinykit.registry import get_model


@pytest.fixture(autouse=True)
def forget():
    yield
    FAILURES.clear()


@pytest.fixture
def model(tmp_path):
    return tiny.write_gguf(tmp_path / "tiny.gguf", "llama", tiny.random_weights("llama"))


class Fault(NamedTuple):
    """A failure: how it is made, what is asked for, and what the user is to read of it."""

    arrange: Callable[[pytest.MonkeyPatch, Path], Any]
    said: str
    device: str = "cuda"
    backend: str = "onnx"
    library: str = ""
    remedy: str = ""
    is_tried: bool = True  # if not, it is known beforehand that it cannot work
    asks: str = "device"  # the option that asks for it


NO_LIBRARY = (
    "[ONNXRuntimeError] : 1 : FAIL : Failed to load library libonnxruntime_providers_cuda.so with "
    "error: libcudnn.so.9: cannot open shared object file: No such file or directory"
)
GPU_PACKAGE = "Install it with: pip install 'onnxruntime-gpu[cuda,cudnn]'"
FAULTS = {
    "provider is not built in": Fault(
        bare, "this onnxruntime has no CUDAExecutionProvider", remedy=GPU_PACKAGE, is_tried=False
    ),
    "library is missing": Fault(
        Cuda(raising(NO_LIBRARY)),
        r"libcudnn\.so\.9: cannot open shared object file",
        library="libcudnn.so.9",
        remedy=GPU_PACKAGE,
    ),
    "provider's own file is missing": Fault(
        Cuda(raising("Failed to load shared library libonnxruntime_providers_cuda.so")),
        r"cannot load model\w*\.onnx: Failed to load shared library",
        library="libonnxruntime_providers_cuda.so",
        remedy=GPU_PACKAGE,
    ),
    "no GPU": Fault(
        Cuda(raising("CUDA failure 100: no CUDA-capable device is detected ; GPU=-1")),
        "no CUDA-capable device is detected",
        remedy="Install or update the NVIDIA driver: nvidia-smi must list a GPU.",
    ),
    "model that this provider cannot read": Fault(
        Cuda(damaged), r"CUDAExecutionProvider cannot load model\w*\.onnx: .*[Pp]rotobuf parsing failed"
    ),
    "falls back to the CPU in silence": Fault(
        Cuda(providers=(CPU,)), "loaded the model on CPUExecutionProvider instead of CUDAExecutionProvider"
    ),
    "fails at its first step": Fault(
        Cuda(run=raising("CUDA error 209: no kernel image is available for execution on the device")),
        "CUDA error 209: no kernel image",
        remedy="This build is not made for this GPU: another version of the package may be.",
    ),
    "has no memory at its second step": Fault(
        Cuda(run=from_step(2, raising("CUDA failure 2: out of memory ; GPU=0"))),
        "CUDA failure 2: out of memory",
        remedy="Close what else uses the GPU's memory: nvidia-smi lists it.",
    ),
    "computes something else": Fault(
        Cuda(run=from_step(1, np.negative)),
        r"computes something else: its next token is \d+, the CPU's is \d+",
    ),
    "computes something else after the prompt": Fault(
        Cuda(run=from_step(2, np.negative)),
        r"computes something else: its next token is \d+, the CPU's is \d+",
    ),
    "computes no numbers": Fault(
        Cuda(run=from_step(1, lambda logits: np.full_like(logits, np.nan))), "logits that are not finite"
    ),
    "plugin is not installed": Fault(
        bare,
        "onnxruntime-ep-webgpu is not installed",
        device="webgpu",
        remedy="Install it with: pip install 'onnxruntime-ep-webgpu'",
        is_tried=False,
    ),
    "plugin without a device": Fault(
        Plugin(CPU, lacks=False), r"lists no device .* It needs hardware with its driver", device="webgpu"
    ),
    "plugin without a device for want of a library": Fault(
        Plugin(CPU),
        r"lists no device on this machine\. It needs libvulkan\.so\.1, which is not there",
        device="webgpu",
        library="libvulkan.so.1",
        remedy="Install the system's package that has libvulkan.so.1, and the GPU's driver.",
    ),
    "plugin whose library does not load": Fault(
        Plugin(register=raising("libwebgpu_dawn.so: cannot open shared object file: No such file")),
        "libwebgpu_dawn.so: cannot open shared object file",
        device="webgpu",
        library="libwebgpu_dawn.so",
    ),
    "plugin that cannot be imported": Fault(
        Plugin(code="raise ImportError('no module named _webgpu')\n"), "no module named _webgpu", device="webgpu"
    ),
    "plugin with a device that the session leaves out": Fault(
        Plugin(WEBGPU), "on CPUExecutionProvider instead of WebGpuExecutionProvider", device="webgpu"
    ),
    "plugin whose device computes something else": Fault(
        Plugin(WEBGPU, run=from_step(1, np.negative)), "webgpu computes something else", device="webgpu"
    ),
    "device of browsers": Fault(bare, "it exists in browsers only", device="wasm", is_tried=False),
    "library of a backend is not installed": Fault(
        bare,
        "transformers is not installed",
        device="cpu",
        backend="transformers",
        remedy="Install it with: pip install 'tinykit[transformers]'",
        is_tried=False,
        asks="backend",
    ),
    "MLX does not start": Fault(
        mlx_that_does_not_start,
        "MLX cannot start: libmlx.so: cannot open shared object file",
        device="mlx",
        backend="mlx",
        library="libmlx.so",
    ),
}  # fmt: skip


@pytest.fixture
def arranged(fault, monkeypatch, tmp_path):
    """What to ask a session for, on a machine that has the fault."""
    if fault.device == "cuda" and sys.platform == "darwin":
        pytest.skip("there is no CUDA on macOS")
    fault.arrange(monkeypatch, tmp_path)
    return {fault.asks: getattr(fault, fault.asks), "progress": False}


def checked_failure(failures, fault):
    """What is said of the library that has the fault; others of the same device may not be there at all."""
    (failure,) = (one for one in failures if one.backend == fault.backend)
    assert (failure.device, failure.library) == (fault.device, fault.library)
    assert re.search(fault.said, failure.reason)
    return failure


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
class TestFault:
    def test_is_one_warning_and_a_session_that_works_on_the_cpu(self, fault, arranged, model):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            session = TinySession(model, **arranged)
        (warning,) = [one.message for one in caught if one.category is not DeprecationWarning]
        assert isinstance(warning, DeviceFallbackWarning)
        assert (warning.asked, warning.used) == (fault.device, "cpu")
        checked_failure(warning.failures, fault)
        text = str(warning)
        assert re.match(rf"{fault.device}.* was asked for, cpu \(onnx\) is used\. ", text)
        assert re.search(fault.said, text) and fault.remedy in text and text.endswith(fault.remedy)
        assert (f"(missing: {fault.library})" in text) == bool(fault.library)
        assert (session.info.backend, session.info.device, session.info.providers) == ("onnx", "cpu", (CPU,))
        assert f"on cpu, not {fault.device}" in repr(session) or fault.asks == "backend"
        remembered = [(run.model, run.device.partition("/")[0]) for run in session.failures]
        assert remembered == [(session.spec.key, fault.device)] * fault.is_tried
        with TinySession(model, progress=False) as plain:
            said, expected = (one.complete("the cat", max_tokens=8) for one in (session, plain))
        assert said.text == expected.text and said.usage.completion_tokens > 0
        session.close()
        with pytest.warns(DeviceFallbackWarning) as caught:  # it is not tried again, and nothing is forgotten
            TinySession(model, **arranged).close()
        failure = checked_failure(caught[0].message.failures, fault)
        assert failure.reason.startswith("failed before: ") == fault.is_tried
        assert str(caught[0].message).endswith(fault.remedy)

    def test_is_an_error_without_fallback(self, fault, arranged, model):
        with pytest.raises(DeviceError, match=f"does not run on {fault.device}: ") as caught:
            TinySession(model, fallback=False, **arranged)
        checked_failure(caught.value.failures, fault)
        assert caught.value.asked == fault.device
        assert caught.value.hint == (fault.remedy or "Leave out fallback=False to run on the CPU.")


def test_warning_points_at_the_line_that_asked(model):
    def line_of(caught):
        return Path(caught.filename).read_text(encoding="utf-8").splitlines()[caught.lineno - 1].strip()

    with pytest.warns(DeviceFallbackWarning) as caught:
        TinySession(model, device="wasm", progress=False).close()
        with TinySession(model, device="wasm", progress=False, lazy=True) as session:
            session.complete("the", max_tokens=1)
    assert [line_of(one) for one in caught] == [
        'TinySession(model, device="wasm", progress=False).close()',
        'session.complete("the", max_tokens=1)',
    ]


def test_a_device_that_works_is_used_and_said_so(model, monkeypatch, tmp_path):
    Cuda()(monkeypatch, tmp_path)
    with TinySession(model, device="gpu", progress=False) as session:
        assert session.info.device == "cuda"
        assert session.info.providers == (CUDA, CPU)
        assert session.failures == ()
        assert "on cuda" in repr(session)
        with TinySession(model, progress=False) as plain:
            assert session.complete("the", max_tokens=8).text == plain.complete("the", max_tokens=8).text


def test_a_fault_is_tried_once_and_again_when_it_is_forgotten(model, monkeypatch, tmp_path):
    gpu = Cuda(raising(NO_LIBRARY))
    gpu(monkeypatch, tmp_path)
    for _ in range(2):
        with pytest.warns(DeviceFallbackWarning):
            TinySession(model, device="cuda", progress=False).close()
    assert gpu.opened.count(CUDA) == 1
    with pytest.warns(DeviceFallbackWarning):
        session = TinySession(model, device="cuda", progress=False)
    session.clear_failures()
    assert session.failures == ()
    session.close()
    Cuda()(monkeypatch, tmp_path)
    with TinySession(model, device="cuda", progress=False) as session:
        assert session.info.device == "cuda"


@pytest.mark.parametrize(
    "run", [from_step(1, np.negative), raising("no kernel image")], ids=["wrong", "failing"]
)
def test_both_sessions_of_a_failed_check_are_released(run, model, monkeypatch, tmp_path):
    seen, close = [], onnx_session.Graph.close

    def closing(graph):
        close(graph)
        seen.append(graph)

    monkeypatch.setattr(onnx_session.Graph, "close", closing)
    gpu = Cuda(run=run)
    gpu(monkeypatch, tmp_path)
    with pytest.raises(DeviceError) as caught:  # kept, with all that its traceback holds
        TinySession(model, device="cuda", fallback=False, progress=False)
    assert gpu.opened[-2:] == [CUDA, CPU]
    assert len({id(graph) for graph in seen}) == len(gpu.opened)
    assert [graph._session for graph in seen] == [None] * len(seen)
    assert caught.value.failures


def test_device_and_dtype_are_those_of_the_load_until_it_is_unloaded(model, monkeypatch, tmp_path):
    Cuda()(monkeypatch, tmp_path)
    monkeypatch.setenv("TINYKIT_DEVICE", "cuda")
    with TinySession(model, progress=False) as session:
        assert (session.info.device, session.info.dtype) == ("cuda", "q8")
        monkeypatch.setenv("TINYKIT_DEVICE", "cpu")
        monkeypatch.setenv("TINYKIT_DTYPE", "fp32")
        session.complete("the", max_tokens=1)
        assert (session.info.device, session.info.dtype) == ("cuda", "q8")
        with TinySession(model, progress=False) as another:
            assert (another.info.device, another.info.dtype) == ("cpu", "fp32")
        session.unload()
        assert (session.info.device, session.info.dtype) == ("cpu", "fp32")


def test_models_own_integer_products_are_for_the_cpu(model, monkeypatch, tmp_path):
    Cuda()(monkeypatch, tmp_path)
    spec = replace(get_model(model), dtype="w8a8")

    def used(**options):
        with TinySession(spec, progress=False, **options) as session:
            session.load()
            return session.info.device, session.info.dtype

    assert used(device="cpu") == ("cpu", "w8a8")
    assert used(device="cuda") == ("cuda", "q8")
    assert used(device="cuda", dtype="w8a8") == ("cuda", "w8a8")


def test_cpu_is_asked_nothing(model, monkeypatch):
    def never():
        raise AssertionError("nobody asked for another device")

    monkeypatch.setattr(onnxruntime, "get_available_providers", never)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TinySession(model, progress=False).close()


def test_plugin_is_registered_once_in_a_process(model, monkeypatch, tmp_path):
    plugin = Plugin(CPU)
    plugin(monkeypatch, tmp_path)
    for _ in range(2):
        FAILURES.clear()
        with pytest.warns(DeviceFallbackWarning):
            TinySession(model, device="webgpu", progress=False).close()
    assert plugin.registered == [(WEBGPU, "libwebgpu.so")]


def test_plugin_with_a_device_is_given_to_the_session(model, monkeypatch, tmp_path):
    Plugin()(monkeypatch, tmp_path)
    card, given = types.SimpleNamespace(ep_name=WEBGPU), []
    monkeypatch.setattr(
        onnxruntime, "get_ep_devices", lambda: [types.SimpleNamespace(ep_name=CPU), card, card]
    )

    class Options:
        def add_session_config_entry(self, name, value):
            given.append((name, value))

        def add_provider_for_devices(self, devices, options):
            given.append((devices, options))

    def open_session(path, options, **arguments):
        given.append(arguments)
        return types.SimpleNamespace(get_providers=lambda: [WEBGPU, CPU])

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
    open_on(DEVICES["webgpu"], model, Options())
    assert given == [
        ("session.record_ep_graph_assignment_info", "1"), ([card], {}), {"disabled_optimizers": None},
    ]  # fmt: skip


def test_share_of_heavy_work_is_read_from_where_the_nodes_are():
    def part(name, *kinds):
        nodes = [types.SimpleNamespace(op_type=kind) for kind in kinds]
        return types.SimpleNamespace(ep_name=name, get_nodes=lambda: nodes)

    parts = [
        part(CUDA, "MatMulNBits", "Reshape", "GroupQueryAttention"),
        part(CPU, "MatMul", "Shape", "Gather"),
    ]
    session = types.SimpleNamespace(get_provider_graph_assignment_info=lambda: parts)
    assert heavy_share(session, CUDA) == pytest.approx(2 / 3)
    assert heavy_share(types.SimpleNamespace(), CUDA) is None


def test_share_of_a_real_session(model, tmp_path):
    from tinykit.convert.gguf import GgufFile
    from tinykit.convert.importer import import_model

    graph = import_model(GgufFile(model), tmp_path, dtype="fp32")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = REAL(str(graph), options, providers=[CPU])
    assert heavy_share(session, CPU) == 1.0
    assert heavy_share(REAL(str(graph), providers=[CPU]), CPU) is None
