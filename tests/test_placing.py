import warnings

import pytest

from tinykit.devices import Machine, plan
from tinykit.errors import (
    BackendError,
    DeviceError,
    DeviceFallbackWarning,
    ModelFileError,
    OptionError,
    RestartNeededError,
)
from tinykit.failures import FailureMemory
from tinykit.placing import place

CUDA, DML = "CUDAExecutionProvider", "DmlExecutionProvider"


def wish(device, backend=None, *, system="linux", providers=(), modules=()):
    here = Machine(system, "x86_64", frozenset(providers), frozenset(modules))
    return plan(device, backend, detect=lambda: here)


class Opener:
    """Opens everything but what is named in `errors`, by device or device/backend."""

    def __init__(self, **errors):
        self.errors = {name.replace("_", "/"): error for name, error in errors.items()}
        self.tried = []

    def __call__(self, attempt):
        name = f"{attempt.device.name}/{attempt.backend}"
        self.tried.append(name)
        error = self.errors.get(name) or self.errors.get(attempt.device.name)
        if error:
            raise error
        return name


def run(asked, opener, memory=None, **options):
    return place(asked, opener, model="m", dtype="q8", memory=memory or FailureMemory(), **options)


@pytest.mark.parametrize("device", [None, "cpu", "auto"])
def test_the_cpu_needs_no_warning(device):
    placed = run(wish(device), Opener())
    assert placed.opened == "cpu/onnx"
    assert [one.device for one in placed.failures] == (["cuda"] if device == "auto" else [])


def test_what_works_is_used_without_a_warning():
    assert run(wish("cuda", providers=[CUDA]), Opener()).opened == "cuda/onnx"
    assert run(wish("gpu", providers=[CUDA]), Opener()).opened == "cuda/onnx"
    assert run(wish("cpu", "mlx", modules=["mlx_lm"]), Opener()).opened == "cpu/mlx"


def test_one_warning_says_what_was_asked_used_and_why():
    missing = BackendError("libcublasLt.so.12: cannot open shared object file: No such file or directory")
    with pytest.warns(DeviceFallbackWarning) as caught:
        placed = run(wish("cuda", providers=[CUDA]), Opener(cuda=missing))
    assert placed.opened == "cpu/onnx"
    assert len(caught) == 1
    warning = caught[0].message
    assert (warning.asked, warning.used) == ("cuda", "cpu")
    assert [(one.device, one.library) for one in warning.failures] == [("cuda", "libcublasLt.so.12")]
    assert str(warning) == (
        "cuda was asked for, cpu (onnx) is used. cuda (onnx): libcublasLt.so.12: cannot open shared object "
        "file: No such file or directory (missing: libcublasLt.so.12). "
        "Install it with: pip install 'onnxruntime-gpu[cuda,cudnn]'"
    )


def test_a_device_that_is_not_installed_says_what_to_install():
    with pytest.warns(DeviceFallbackWarning, match="pip install 'onnxruntime-ep-webgpu'"):
        run(wish("webgpu"), Opener())


def test_without_fallback_it_raises_with_the_same_facts():
    opener = Opener(cuda=BackendError("no kernel image"))
    with pytest.raises(
        DeviceError, match=r"m does not run on cuda: cuda \(onnx\): no kernel image"
    ) as caught:
        run(wish("cuda", providers=[CUDA]), opener, fallback=False)
    assert opener.tried == ["cuda/onnx"]
    assert (caught.value.asked, caught.value.failures[0].reason) == ("cuda", "no kernel image")
    with pytest.raises(DeviceError, match="wasm .*browsers only"):
        run(wish("wasm"), Opener(), fallback=False)
    with pytest.raises(DeviceError, match="m does not run on cpu: cpu .mlx.: mlx_lm is not installed"):
        run(wish("cpu", "mlx"), Opener(), fallback=False)


def test_without_fallback_auto_and_the_cpu_itself_still_work():
    assert run(wish("auto"), Opener(), fallback=False).opened == "cpu/onnx"
    assert run(wish("cpu"), Opener(), fallback=False).opened == "cpu/onnx"


def test_auto_is_silent_about_what_is_not_there_but_not_about_what_is_broken():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(wish("auto", system="win32"), Opener())
    with pytest.warns(DeviceFallbackWarning, match="auto was asked for, dml"):
        placed = run(wish("auto", system="win32", providers=[CUDA, DML]), Opener(cuda=BackendError("broken")))
    assert placed.opened == "dml/onnx"


def test_order_goes_on_to_the_next():
    opener = Opener(cuda=BackendError("one"), dml=ModelFileError("two"))
    with pytest.warns(DeviceFallbackWarning, match=r"cuda \(onnx\): one; dml \(onnx\): two"):
        run(wish("gpu", system="win32", providers=[CUDA, DML]), opener)
    assert opener.tried == ["cuda/onnx", "dml/onnx", "cpu/onnx"]


def test_the_error_of_the_cpu_is_raised_with_what_came_before():
    opener = Opener(cuda=BackendError("one"), cpu=ModelFileError("the file is damaged"))
    with pytest.raises(ModelFileError, match="the file is damaged") as caught:
        run(wish("cuda", providers=[CUDA]), opener)
    assert caught.value.__notes__ == ["Other devices were tried before. cuda (onnx): one"]


@pytest.mark.parametrize("error", [OptionError("no such dtype"), RestartNeededError("half released")])
def test_what_is_wrong_everywhere_is_raised_at_once(error):
    opener = Opener(cuda=error)
    with pytest.raises(type(error)):
        run(wish("cuda", providers=[CUDA]), opener)
    assert opener.tried == ["cuda/onnx"]


def test_a_failure_is_not_tried_again_until_it_is_forgotten():
    memory, opener = FailureMemory(), Opener(cuda=BackendError("no kernel image"))
    asked = wish("cuda", providers=[CUDA])
    for _ in range(3):
        with pytest.warns(DeviceFallbackWarning, match="no kernel image"):
            run(asked, opener, memory)
    assert opener.tried == ["cuda/onnx", "cpu/onnx", "cpu/onnx", "cpu/onnx"]
    assert [run.device for run in memory.all("m")] == ["cuda"]
    memory.clear()
    opener.errors.clear()
    assert run(asked, opener, memory).opened == "cuda/onnx"
    assert memory.all() == ()


def test_the_cpu_is_always_tried():
    memory, opener = FailureMemory(), Opener(cpu=BackendError("out of memory"))
    for _ in range(2):
        with pytest.raises(BackendError):
            run(wish("cpu"), opener, memory)
    assert opener.tried == ["cpu/onnx"] * 2


def test_failures_of_two_libraries_on_one_device_are_kept_apart():
    memory = FailureMemory()
    opener = Opener(cuda_transformers=BackendError("x"))
    asked = wish("cuda", "transformers", modules=["transformers"], providers=[CUDA])
    with pytest.warns(DeviceFallbackWarning):
        assert run(asked, opener, memory).opened == "cpu/transformers"
    assert run(wish("cuda", providers=[CUDA]), opener, memory).opened == "cuda/onnx"
