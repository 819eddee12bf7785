"""Every way in which a device lets a session down: the session says so, and works on the CPU."""

import sys
import types
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from tests import tiny_models as tiny
from tinykit import TinySession
from tinykit.backends import onnx_providers
from tinykit.backends.onnx_providers import heavy_share, open_on
from tinykit.devices import DEVICES
from tinykit.errors import DeviceError, DeviceFallbackWarning
from tinykit.loading import FAILURES

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
REAL = onnxruntime.InferenceSession


@pytest.fixture(autouse=True)
def forget():
    yield
    FAILURES.clear()


@pytest.fixture
def model(tmp_path):
    return tiny.write_gguf(tmp_path / "tiny.gguf", "llama", tiny.random_weights("llama"))


class Device:
    """A session on the CPU that passes for one on a GPU, with a fault."""

    def __init__(self, real, fault):
        self._real = real
        self._fault = fault

    def __getattr__(self, name):
        return getattr(self._real, name)

    def get_providers(self):
        return [CPU] if self._fault == "silent" else [CUDA, CPU]

    def run(self, names, feeds, options=None):
        if self._fault == "first step":
            raise RuntimeError("CUDA error 209: no kernel image is available for execution on the device")
        found = self._real.run(names, feeds, options)
        if self._fault == "wrong" and "logits" in (names or ["logits"]):
            found[0] = -found[0]
        if self._fault == "nan":
            found[0] = np.full_like(found[0], np.nan)
        return found


@pytest.fixture
def gpu(monkeypatch):
    """Make this machine one with CUDA, of which something is wrong; `opened` lists who was asked to load."""

    def make(fault):
        opened = []

        def open_session(path, options, providers=None, disabled_optimizers=None, enable_fallback=1):
            opened.append(providers[0])
            if providers[0] == CPU:
                return REAL(path, options, providers=providers, disabled_optimizers=disabled_optimizers)
            assert enable_fallback == 0
            if fault == "library":
                raise RuntimeError(
                    "[ONNXRuntimeError] : 1 : FAIL : Failed to load library libonnxruntime_providers_cuda.so with "
                    "error: libcudnn.so.9: cannot open shared object file: No such file or directory"
                )
            return Device(REAL(path, options, providers=[CPU]), fault)

        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
        monkeypatch.setattr(onnxruntime, "InferenceSession", open_session)
        monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
        return opened

    return make


FAULTS = {
    "library": r"libcudnn\.so\.9: cannot open shared object file.*missing: libcudnn\.so\.9.*pip install 'onnxruntime-gpu",
    "silent": "loaded the model on CPUExecutionProvider instead of CUDAExecutionProvider",
    "first step": "CUDA error 209: no kernel image",
    "wrong": r"computes something else: its next token is \d+, the CPU's is \d+",
    "nan": "logits that are not finite",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_leaves_a_session_on_the_cpu_that_works(fault, gpu, model):
    gpu(fault)
    with pytest.warns(
        DeviceFallbackWarning, match=f"cuda was asked for, cpu .* is used.*{FAULTS[fault]}"
    ) as caught:
        session = TinySession(model, device="cuda", progress=False)
    assert len(caught) == 1
    assert caught[0].message.asked == "cuda"
    assert session.info.device == "cpu"
    assert session.info.providers == (CPU,)
    assert "on cpu, not cuda" in repr(session)
    assert [(run.device, run.model) for run in session.failures] == [("cuda", session.spec.key)]
    with TinySession(model, progress=False) as plain:
        prompt = "the cat"
        assert session.complete(prompt, max_tokens=8).text == plain.complete(prompt, max_tokens=8).text
    session.close()


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


@pytest.mark.parametrize("fault", FAULTS)
def test_without_fallback_the_fault_is_an_error(fault, gpu, model):
    gpu(fault)
    with pytest.raises(DeviceError, match="does not run on cuda") as caught:
        TinySession(model, device="cuda", fallback=False, progress=False)
    assert len(caught.value.failures) == 1


def test_a_device_that_works_is_used_and_said_so(gpu, model):
    gpu(None)
    with TinySession(model, device="gpu", progress=False) as session:
        assert session.info.device == "cuda"
        assert session.info.providers == (CUDA, CPU)
        assert session.failures == ()
        assert "on cuda" in repr(session)
        with TinySession(model, progress=False) as plain:
            assert session.complete("the", max_tokens=8).text == plain.complete("the", max_tokens=8).text


def test_a_fault_is_tried_once_and_again_when_it_is_forgotten(gpu, model):
    opened = gpu("library")
    for _ in range(2):
        with pytest.warns(DeviceFallbackWarning):
            TinySession(model, device="cuda", progress=False).close()
    assert opened.count(CUDA) == 1
    with pytest.warns(DeviceFallbackWarning):
        session = TinySession(model, device="cuda", progress=False)
    session.clear_failures()
    assert session.failures == ()
    session.close()
    gpu(None)
    with TinySession(model, device="cuda", progress=False) as session:
        assert session.info.device == "cuda"


def test_device_comes_from_the_environment_at_each_use(gpu, model, monkeypatch):
    gpu(None)
    monkeypatch.setenv("TINYKIT_DEVICE", "cuda")
    with TinySession(model, progress=False) as session:
        assert session.info.device == "cuda"
    monkeypatch.setenv("TINYKIT_DEVICE", "cpu")
    with TinySession(model, progress=False) as session:
        assert session.info.device == "cpu"


def test_cpu_is_asked_nothing(model, monkeypatch):
    def never():
        raise AssertionError("nobody asked for another device")

    monkeypatch.setattr(onnxruntime, "get_available_providers", never)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TinySession(model, progress=False).close()


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    """An installed WebGPU plugin that registers; `devices` is what it lists."""
    folder = tmp_path / "site"
    folder.mkdir()
    name = "onnxruntime_ep_webgpu"
    (folder / f"{name}.py").write_text(
        "def get_library_path():\n    return 'libwebgpu.so'\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(onnx_providers, "_registered", set())
    registered, devices = [], []
    monkeypatch.setattr(
        onnxruntime, "register_execution_provider_library", lambda *args: registered.append(args)
    )
    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: devices)
    yield types.SimpleNamespace(registered=registered, devices=devices)
    sys.modules.pop(name, None)


def test_plugin_that_registers_without_a_device(plugin, model):
    for _ in range(2):
        FAILURES.clear()
        with pytest.warns(
            DeviceFallbackWarning, match=r"lists no device on this machine\. It needs libvulkan\.so\.1"
        ):
            session = TinySession(model, device="webgpu", progress=False)
        assert session.info.device == "cpu"
        session.close()
    assert plugin.registered == [("WebGpuExecutionProvider", "libwebgpu.so")]


def test_plugin_with_a_device_is_given_to_the_session(plugin, model, monkeypatch):
    card = types.SimpleNamespace(ep_name="WebGpuExecutionProvider")
    plugin.devices += [types.SimpleNamespace(ep_name=CPU), card, card]
    given = []

    class Options:
        def add_session_config_entry(self, name, value):
            given.append((name, value))

        def add_provider_for_devices(self, devices, options):
            given.append((devices, options))

    def open_session(path, options, **arguments):
        given.append(arguments)
        return types.SimpleNamespace(get_providers=lambda: ["WebGpuExecutionProvider", CPU])

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
