import os
import subprocess
import sys
from pathlib import Path

import pytest

from tinykit import devices, settings
from tinykit.devices import DEVICES, NAMES, Machine, plan
from tinykit.errors import OptionError

ROOT = Path(__file__).parents[1]
SEED_NAMES = "auto gpu cpu wasm webgpu cuda dml coreml webnn webnn-npu webnn-gpu webnn-cpu mlx metal".split()
NO_PROVIDERS = ("AzureExecutionProvider", "CPUExecutionProvider")


def machine(system="linux", architecture="x86_64", providers=(), modules=("onnxruntime",)):
    found = Machine(system, architecture, frozenset((*NO_PROVIDERS, *providers)), frozenset(modules))
    return lambda: found


MAC = {"system": "darwin", "architecture": "arm64"}


def tried(asked, backend=None, **here):
    return [(one.device.name, one.backend) for one in plan(asked, backend, detect=machine(**here)).attempts]


def reasons(asked, backend=None, **here):
    return [str(one) for one in plan(asked, backend, detect=machine(**here)).skipped]


@pytest.mark.parametrize("name", [None, "", "  ", "cpu", "CPU ", "Cpu"])
def test_the_cpu_is_the_default_and_needs_no_look_at_the_machine(name):
    def detect():
        raise AssertionError("nobody needs to know")

    assert [one.device.name for one in plan(name, detect=detect).attempts] == ["cpu"]


@pytest.mark.parametrize("name", SEED_NAMES)
@pytest.mark.parametrize("system", ["linux", "win32", "darwin"])
def test_every_name_of_the_seeds_ends_at_the_cpu(name, system):
    assert tried(f" {name.upper()} ", system=system)[-1] == ("cpu", "onnx")


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("Metal", "mlx"), ("mlx", "mlx"), (" NVIDIA ", "cuda"), ("directml", "dml"), ("vulkan", "webgpu"),
        ("nv-tensorrt-rtx", "tensorrt-rtx"), ("GPU", "gpu"), ("auto", "auto"),
    ],
)  # fmt: skip
def test_aliases_are_other_names_of_a_device(alias, name):
    """`metal` had three meanings in older programs; here it is MLX."""
    assert devices.device_name(alias) == name
    assert set(devices.ALIASES.values()) <= set(DEVICES)


def test_order_of_each_system_is_the_documented_one():
    assert devices.ORDERS == {
        "auto": {"linux": ("cuda",), "win32": ("cuda", "dml"), "darwin": ("mlx",)},
        "gpu": {
            "linux": ("cuda", "webgpu", "openvino", "rocm"),
            "win32": ("cuda", "dml", "webgpu", "openvino"),
            "darwin": ("mlx", "webgpu"),
        },
    }
    text = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
    names = {"Linux": "linux", "Windows": "win32", "macOS": "darwin"}
    for asked, orders in devices.ORDERS.items():
        cells = [", ".join(f"`{one}`" for one in (*orders[key], "cpu")) for key in names.values()]
        assert f"| `{asked}` | {' | '.join(cells)} |" in text
    for device in DEVICES.values():
        if device.systems and device.name != "cpu":
            install = f"`{device.package}`" if device.package else "`tinykit[transformers]`"
            assert f"| `{device.name}` | {device.label} | {install} |" in text


@pytest.mark.parametrize("name", ["quantum", "cpu:0", "default"])
def test_unknown_device_is_named(name):
    with pytest.raises(
        OptionError, match=f"Unknown device {name!r}; known are auto, gpu, cpu, cuda"
    ) as caught:
        plan(name)
    assert (caught.value.name, caught.value.value) == ("device", name)
    assert all(known in str(caught.value) for known in NAMES)


def test_a_typo_is_understood():
    with pytest.raises(OptionError) as caught:
        plan("cudaa")
    assert caught.value.hint == "Did you mean 'cuda'?"


def test_unknown_backend_is_named():
    with pytest.raises(
        OptionError, match="Unknown backend 'torch'; known are auto, onnx, mlx, transformers, mine"
    ):
        plan("cpu", "torch", others=("mine",))
    for typo, hint in (("onx", "Did you mean 'onnx'?"), ("tflite", "Leave it out")):
        with pytest.raises(OptionError) as caught:
            plan("cpu", typo)
        assert caught.value.hint.startswith(hint)


CUDA, WEBGPU, DML = "CUDAExecutionProvider", "onnxruntime_ep_webgpu", "DmlExecutionProvider"


@pytest.mark.parametrize(
    ("asked", "backend", "here", "order"),
    [
        ("auto", None, {}, ["cpu/onnx"]),
        ("auto", None, {"providers": [CUDA]}, ["cuda/onnx", "cpu/onnx"]),
        ("auto", None, {"modules": [WEBGPU]}, ["cpu/onnx"]),
        ("auto", None, {**MAC, "modules": ["mlx_lm"]}, ["mlx/mlx", "cpu/onnx"]),
        ("auto", None, {"system": "darwin", "modules": ["mlx_lm"]}, ["cpu/onnx"]),
        ("auto", None, {"system": "win32", "providers": [DML, CUDA]}, ["cuda/onnx", "dml/onnx", "cpu/onnx"]),
        ("gpu", None, {"providers": [CUDA], "modules": [WEBGPU]}, ["cuda/onnx", "webgpu/onnx", "cpu/onnx"]),
        ("gpu", None, {**MAC, "modules": ["mlx_lm", WEBGPU, "onnxruntime_ep_mlx"]},
         ["mlx/mlx", "mlx/onnx", "webgpu/onnx", "cpu/onnx"]),
        ("cuda", None, {"providers": [CUDA], "modules": ["transformers"]}, ["cuda/onnx", "cpu/onnx"]),
        ("cuda", "transformers", {"modules": ["transformers"]},
         ["cuda/transformers", "cpu/transformers", "cpu/onnx"]),
        ("mlx", None, {"modules": ["mlx_lm"]}, ["mlx/mlx", "cpu/onnx"]),
        ("mlx", "onnx", {**MAC, "modules": ["mlx_lm", "onnxruntime_ep_mlx"]}, ["mlx/onnx", "cpu/onnx"]),
        ("cpu", "mlx", {"modules": ["mlx_lm"]}, ["cpu/mlx", "cpu/onnx"]),
        ("gpu", "mlx", {"modules": ["mlx_lm"]}, ["cpu/mlx", "cpu/onnx"]),
        ("mps", None, {**MAC, "modules": ["transformers"]}, ["mps/transformers", "cpu/onnx"]),
        ("tensorrt-rtx", None, {"modules": ["onnxruntime_ep_nv_tensorrt_rtx"]}, ["tensorrt-rtx/onnx", "cpu/onnx"]),
        ("webnn-npu", None, {}, ["cpu/onnx"]),
    ],
)  # fmt: skip
def test_order(asked, backend, here, order):
    assert ["/".join(one) for one in tried(asked, backend, **here)] == order


@pytest.mark.parametrize(
    ("asked", "backend", "here", "said"),
    [
        ("cuda", None, {}, "cuda (onnx): this onnxruntime has no CUDAExecutionProvider"),
        ("dml", None, {}, "dml (onnx): it does not exist on linux"),
        ("wasm", None, {}, "wasm (onnx): it exists in browsers only"),
        ("webgpu", None, {}, "webgpu (onnx): onnxruntime-ep-webgpu is not installed"),
        ("mlx", None, {}, "mlx (mlx): mlx_lm is not installed"),
        ("mlx", None, {"system": "win32"}, "mlx (mlx): it does not exist on win32"),
        ("mlx", None, {"system": "darwin"}, "mlx (mlx): it needs Apple silicon, and this is x86_64"),
        ("mlx", "onnx", {}, "mlx (onnx): the plugin needs Apple silicon"),
        ("cpu", "transformers", {}, "cpu (transformers): transformers is not installed"),
    ],
)  # fmt: skip
def test_what_cannot_work_has_a_reason(asked, backend, here, said):
    assert reasons(asked, backend, **here)[0] == said


def test_a_missing_provider_names_what_to_install():
    assert plan("cuda", detect=machine()).skipped[0].package == "onnxruntime-gpu[cuda,cudnn]"
    assert plan("mlx", detect=machine(**MAC)).skipped[0].package == "tinykit[mlx]"
    for device in DEVICES.values():
        assert not device.provider or device.package or device.name == "cpu"


@pytest.mark.parametrize(
    "device",
    [one for one in DEVICES.values() if one.provider and one != devices.CPU],
    ids=lambda one: one.name,
)
def test_each_device_that_is_missing_where_it_could_be_names_its_wheel(device):
    here = MAC if device.systems == ("darwin",) or device.name == "mlx" else {"system": device.systems[0]}
    (failure,) = plan(device.name, "onnx", detect=machine(**here)).skipped
    assert (failure.device, failure.package) == (device.name, device.package)
    assert failure.reason == (
        f"{device.package} is not installed"
        if device.plugin
        else f"this onnxruntime has no {device.provider}"
    )


def test_a_backend_that_cannot_use_a_device_is_an_error():
    with pytest.raises(OptionError, match="The mlx backend cannot use the device 'cuda'") as caught:
        plan("cuda", "mlx", detect=machine())
    assert caught.value.hint == "It knows cpu, mlx; for cuda use backend='onnx'."


def test_a_backend_from_outside_takes_every_device():
    found = plan("webgpu", "mine", others=("mine",), detect=machine())
    assert ["/".join((a.device.name, a.backend)) for a in found.attempts] == [
        "webgpu/mine", "cpu/mine", "cpu/onnx",
    ]  # fmt: skip
    assert found.is_a_wish


@pytest.mark.parametrize(
    ("asked", "backend", "is_a_wish"),
    [
        (None, None, False),
        ("auto", None, False),
        ("cpu", "onnx", False),
        ("gpu", None, True),
        ("cpu", "mlx", True),
    ],
)
def test_who_leaves_the_choice_gets_no_warning(asked, backend, is_a_wish):
    assert plan(asked, backend, detect=machine()).is_a_wish is is_a_wish


def test_argument_beats_variable_beats_config_at_each_use(monkeypatch, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("device = 'webgpu'\ndtype = 'q4'\n", encoding="utf-8")
    assert (settings.get("device"), settings.get("dtype")) == (None, None)
    monkeypatch.setenv("TINYKIT_CONFIG", str(config))
    assert (settings.get("device"), settings.get("dtype")) == ("webgpu", "q4")
    monkeypatch.setenv("TINYKIT_DEVICE", "cuda")
    monkeypatch.setenv("TINYKIT_DTYPE", "fp32")
    assert (settings.get("device"), settings.get("dtype")) == ("cuda", "fp32")
    assert settings.get("device", "cpu") == "cpu"
    monkeypatch.setenv("TINYKIT_DEVICE", " ")
    assert settings.get("device") == "webgpu"


@pytest.mark.parametrize(
    ("text", "library"),
    [
        ("Failed to load library libonnxruntime_providers_cuda.so with error: libcublasLt.so.12: cannot open "
         "shared object file: No such file or directory", "libcublasLt.so.12"),
        ('Error loading "C:\\x\\onnxruntime_providers_cuda.dll" which depends on "cudnn64_9.dll" which is missing.',
         "cudnn64_9.dll"),
        ("LoadLibrary failed: nvrtc64.dll which is missing", "nvrtc64.dll"),
        ("dlopen(x, 6): Library not loaded: @rpath/libmlx.dylib\n  Referenced from: y", "libmlx.dylib"),
        ("cannot load libonnxruntime_providers_cuda.so", "libonnxruntime_providers_cuda.so"),
        ("no CUDA-capable device is detected", ""),
    ],
)  # fmt: skip
def test_missing_library_is_read_from_the_error(text, library):
    assert devices.missing_library(text) == library


def test_an_error_becomes_a_failure():
    attempt = devices.Attempt(DEVICES["cuda"], "onnx")
    failure = devices.explain(attempt, RuntimeError("libcudnn.so.9: cannot open\n  shared object file"))
    assert failure.library == "libcudnn.so.9"
    assert failure.package == "onnxruntime-gpu[cuda,cudnn]"
    assert str(failure) == "cuda (onnx): libcudnn.so.9: cannot open shared object file"
    assert devices.explain(attempt, ValueError()).reason == "ValueError"


@pytest.mark.parametrize(
    ("device", "text", "package", "remedy"),
    [
        ("cuda", "CUDA driver version is insufficient for CUDA runtime version", "", "nvidia-smi must list a GPU"),
        ("cuda", "CUDA error 100", "", "nvidia-smi must list a GPU"),
        ("cuda", "CUDA failure 2: out of memory", "", "Close what else uses"),
        ("cuda", "something else", "", ""),
        ("cuda", "no kernel image; libcudnn.so.9: cannot open", "onnxruntime-gpu[cuda,cudnn]", ""),
        ("dml", "out of memory", "", ""),
        ("webgpu", "libvulkan.so.1: cannot open shared object file", "", "package that has libvulkan.so.1"),
        ("webgpu", "libwebgpu_dawn.so: cannot open shared object file", "", ""),
    ],
)  # fmt: skip
def test_what_to_do_follows_from_the_error(device, text, package, remedy):
    failure = devices.explain(devices.Attempt(DEVICES[device], "onnx"), text)
    assert failure.package == package
    assert remedy in failure.remedy if remedy else failure.remedy == ""


def test_this_machine_is_described():
    here = devices.this_machine()
    assert "CPUExecutionProvider" in here.providers
    assert "onnxruntime" in here.modules
    assert here.system == sys.platform


def test_names_are_checked_without_importing_anything_heavy():
    code = "import sys; from tinykit.devices import plan; plan('cpu'); print([m for m in sys.modules if m in ('onnxruntime', 'numpy', 'torch', 'mlx')])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("usable", "siblings", "threads"),
    [
        ({0, 1, 2, 3}, {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, 2),
        ({0, 1, 2, 3}, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, 2),
        ({1, 3}, {1: "0-1", 3: "2-3"}, 2),
        ({0, 1}, {0: "0-1", 1: "0-1"}, 1),
        ({0, 1, 2}, {}, 3),
    ],
    ids=["two_a_core", "interleaved", "some", "one_core", "no_topology"],
)
def test_threads_are_physical_cores(monkeypatch, usable, siblings, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: usable, raising=False)
    monkeypatch.setattr(devices, "_siblings", lambda cpu: siblings.get(cpu, str(cpu)))
    assert devices.default_threads() == threads


@pytest.mark.parametrize(("processors", "threads"), [(6, 6), (None, 1)])
def test_systems_without_affinity_count_processors(monkeypatch, processors, threads):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    assert devices.default_threads() == threads
