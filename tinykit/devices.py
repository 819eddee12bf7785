"""Where a model can run: the known devices, the order in which they are tried, and the number of threads.

A device is data, and what this machine has is an argument, so the same functions answer for every system.
"""

from __future__ import annotations

import difflib
import os
import platform
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tinykit.errors import OptionError
from tinykit.optional import installed, onnxruntime_library

BACKENDS: Final = ("onnx", "mlx", "transformers")
_MODULES: Final = {  # what must be importable for a backend, and how to install it
    "onnx": ("onnxruntime", "tinykit"),
    "mlx": ("mlx_lm", "tinykit[mlx]"),
    "transformers": ("transformers", "tinykit[transformers]"),
}
_ALL = ("linux", "win32", "darwin")
_APPLE = "Apple silicon"


@dataclass(frozen=True)
class Device:
    """Something that computes, and what it takes to use it.

    Attributes:
        name: What users type.
        label: What it is, in words.
        backends: Libraries that can use it, the preferred one first.
        systems: Values of `sys.platform` where it exists; none for those of browsers.
        provider: Its execution provider in ONNX Runtime.
        package: What to install for that provider.
        plugin: The module of a provider that is loaded at run time instead of being built in.
        needs: A library of the system that the provider needs.
    """

    name: str
    label: str
    backends: tuple[str, ...] = ("onnx",)
    systems: tuple[str, ...] = _ALL
    provider: str = ""
    package: str = ""
    plugin: str = ""
    needs: str = ""


def _plugin(name: str, label: str, provider: str, systems: tuple[str, ...] = _ALL, needs: str = "") -> Device:
    package = f"onnxruntime-ep-{name}"
    plugin = package.replace("-", "_")
    return Device(name, label, ("onnx",), systems, provider, package, plugin, needs)


_PC = ("linux", "win32")
# Packages and names of providers: https://onnxruntime.ai/docs/execution-providers/
DEVICES: Final[dict[str, Device]] = {
    device.name: device
    for device in (
        Device("cpu", "the processor", ("onnx", "mlx", "transformers"), _ALL, "CPUExecutionProvider"),
        Device(
            "cuda", "NVIDIA GPU", ("onnx", "transformers"), _PC, "CUDAExecutionProvider",
            "onnxruntime-gpu[cuda,cudnn]",
        ),
        Device("tensorrt", "NVIDIA GPU", ("onnx",), _PC, "TensorrtExecutionProvider", "onnxruntime-gpu"),
        Device(
            "tensorrt-rtx", "NVIDIA RTX GPU", ("onnx",), _PC, "NvTensorRTRTXExecutionProvider",
            "onnxruntime-ep-nv-tensorrt-rtx", "onnxruntime_ep_nv_tensorrt_rtx",
        ),
        Device(
            "mlx", "GPU of Apple silicon", ("mlx", "onnx"), ("darwin", "linux"), "MLXExecutionProvider",
            "onnxruntime-ep-mlx", "onnxruntime_ep_mlx",
        ),
        _plugin("webgpu", "any GPU", "WebGpuExecutionProvider", needs="libvulkan.so.1"),
        _plugin("openvino", "Intel GPU or NPU", "OpenVINOExecutionProvider", _PC),
        Device(
            "dml", "any GPU of Windows", ("onnx",), ("win32",), "DmlExecutionProvider",
            "onnxruntime-directml",
        ),
        Device("coreml", "CoreML of macOS", ("onnx",), ("darwin",), "CoreMLExecutionProvider", "onnxruntime"),
        Device(
            "rocm", "AMD GPU", ("onnx", "transformers"), ("linux",), "ROCMExecutionProvider",
            "onnxruntime-rocm",
        ),
        Device(
            "migraphx", "AMD GPU", ("onnx",), ("linux",), "MIGraphXExecutionProvider", "onnxruntime-migraphx"
        ),
        Device(
            "qnn", "Qualcomm NPU", ("onnx",), _PC, "QNNExecutionProvider", "onnxruntime-qnn",
            "onnxruntime_qnn",
        ),
        Device("mps", "GPU of Apple silicon", ("transformers",), ("darwin",)),
        *(
            Device(name, "part of browsers", ("onnx",), ())
            for name in ("wasm", "webnn", "webnn-npu", "webnn-gpu", "webnn-cpu")
        ),
    )
}  # fmt: skip
CPU: Final = DEVICES["cpu"]

# `metal` meant WebGPU in some programs; here it is the library that Apple makes for its GPUs
ALIASES: Final[dict[str, str]] = {
    "metal": "mlx", "nvidia": "cuda", "directml": "dml", "vulkan": "webgpu",
    "nv-tensorrt-rtx": "tensorrt-rtx",
}  # fmt: skip

# A name that stands for several devices: those of each system in the order to try, before the CPU. `auto`
# takes only what is made for such models; `gpu` takes whatever GPU there is.
ORDERS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "auto": {"linux": ("cuda",), "win32": ("cuda", "dml"), "darwin": ("mlx",)},
    "gpu": {
        "linux": ("cuda", "webgpu", "openvino", "rocm"),
        "win32": ("cuda", "dml", "webgpu", "openvino"),
        "darwin": ("mlx", "webgpu"),
    },
}
NAMES: Final = (*ORDERS, *DEVICES, *ALIASES)


@dataclass(frozen=True)
class Machine:
    """What is here.

    Attributes:
        system: As `sys.platform` says it.
        architecture: As `platform.machine()` says it.
        providers: What ONNX Runtime offers.
        modules: Installed modules, of those that devices and backends need.
    """

    system: str
    architecture: str
    providers: frozenset[str]
    modules: frozenset[str]

    @property
    def is_apple_silicon(self) -> bool:
        """A Mac whose processor has the GPU that MLX is made for."""
        return self.system == "darwin" and self.architecture == "arm64"


def this_machine() -> Machine:
    """What this machine has; imports onnxruntime if it is there, and nothing else."""
    providers: list[str] = []
    if installed("onnxruntime"):
        providers = onnxruntime_library().get_available_providers()
    wanted = {name for name, _ in _MODULES.values()} | {d.plugin for d in DEVICES.values() if d.plugin}
    modules = frozenset(name for name in wanted if installed(name))
    return Machine(sys.platform, platform.machine(), frozenset(providers), modules)


def any_machine() -> Machine:
    """This machine as far as it is known without a library; enough to tell whether names exist."""
    return Machine(sys.platform, platform.machine(), frozenset(), frozenset())


class Attempt(NamedTuple):
    """A device to try, and the library to try it with."""

    device: Device
    backend: str


class Failure(NamedTuple):
    """A device that was not used, and why.

    `library` is a missing file, `package` what to install, `remedy` what else to do.
    """

    device: str
    backend: str
    reason: str
    library: str = ""
    package: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.device} ({self.backend}): {self.reason}"


@dataclass(frozen=True)
class Plan:
    """What to try for what the user asked, in order; `skipped` is what cannot work on this machine."""

    asked: str
    backend: str | None
    attempts: tuple[Attempt, ...]
    skipped: tuple[Failure, ...]

    @property
    def is_a_wish(self) -> bool:
        """Whether the user named something that ONNX Runtime on the CPU is not an answer to."""
        return self.asked not in ("auto", CPU.name) or self.backend not in (None, CPU.backends[0])


def device_name(name: str | None) -> str:
    """The name as the tables above have it; blank means the default, CPU.

    Raises:
        OptionError: a name that is not in `NAMES`.
    """
    asked = (name or "").strip().lower() or CPU.name
    if asked not in NAMES:
        near = difflib.get_close_matches(asked, NAMES, n=1)
        raise OptionError(
            f"Unknown device {name!r}; known are {', '.join(NAMES)}.",
            hint=f"Did you mean {near[0]!r}?" if near else "Leave it out to run on the CPU.",
            name="device",
            value=name,
        )
    return ALIASES.get(asked, asked)


def backend_name(name: str | None, others: Collection[str] = ()) -> str | None:
    """The backend that was asked for, one of `BACKENDS` or `others`; None for `auto` or nothing.

    Raises:
        OptionError: an unknown name.
    """
    asked = (name or "").strip().lower()
    if asked in ("", "auto"):
        return None
    known = (*BACKENDS, *others)
    if asked not in known:
        near = difflib.get_close_matches(asked, known, n=1)
        raise OptionError(
            f"Unknown backend {name!r}; known are auto, {', '.join(known)}.",
            hint=f"Did you mean {near[0]!r}?"
            if near
            else "Leave it out for the backend that fits the model.",
            name="backend",
            value=name,
        )
    return asked


def plan(
    device: str | None,
    backend: str | None = None,
    *,
    others: Collection[str] = (),
    detect: Callable[[], Machine] = this_machine,
) -> Plan:
    """What to try, in order, with ONNX Runtime on the CPU at the end.

    Args:
        device: What the user asked for.
        backend: The library that the user asked for.
        others: Backends that are not tinykit's own; they may use every device.
        detect: Says what this machine has. It is not called for the CPU alone.

    Raises:
        OptionError: an unknown name, or a backend that cannot use the device on any machine.
    """
    asked, wanted = device_name(device), backend_name(backend, others)
    last = Attempt(CPU, CPU.backends[0])
    if asked == CPU.name and wanted in (None, last.backend):
        return Plan(asked, wanted, (last,), ())
    machine = detect()
    names = ORDERS[asked].get(machine.system, ()) if asked in ORDERS else (asked,)
    wishes = [
        Attempt(DEVICES[name], one)
        for name in names
        for one in _backends(DEVICES[name], wanted, asked, others)
    ]
    if wanted is not None and asked != CPU.name:
        wishes.append(Attempt(CPU, wanted))
    attempts: list[Attempt] = []
    skipped: list[Failure] = []
    for wish in wishes:
        failure = None if wish.backend in others else _unavailable(*wish, machine)
        if failure is not None:
            skipped.append(failure)
        elif wish != last:
            attempts.append(wish)
    return Plan(asked, wanted, (*attempts, last), tuple(skipped))


def _backends(device: Device, wanted: str | None, asked: str, others: Collection[str]) -> tuple[str, ...]:
    """Those to try for this device; transformers is the choice of nobody who has another one."""
    if wanted is None:
        return tuple(one for one in device.backends if one != "transformers") or device.backends
    if wanted in device.backends or wanted in others:
        return (wanted,)
    if asked in ORDERS:
        return ()
    usable = [name for name, one in DEVICES.items() if wanted in one.backends]
    raise OptionError(
        f"The {wanted} backend cannot use the device {asked!r}.",
        hint=f"It knows {', '.join(usable)}; for {asked} use backend={device.backends[0]!r}.",
        name="device",
        value=asked,
    )


def _unavailable(device: Device, backend: str, machine: Machine) -> Failure | None:
    """Why the device cannot work here, from what is installed alone."""

    def because(reason: str, package: str = "") -> Failure:
        return Failure(device.name, backend, reason, package=package)

    if machine.system not in device.systems:
        if not device.systems:
            return because("it exists in browsers only")
        return because(f"it does not exist on {machine.system}")
    if device.name in ("mlx", "mps") and machine.system == "darwin" and not machine.is_apple_silicon:
        return because(f"it needs {_APPLE}, and this is {machine.architecture}")
    if backend != "onnx":
        module, package = _MODULES[backend]
        return None if module in machine.modules else because(f"{module} is not installed", package)
    if device.plugin:
        if device.name == "mlx" and not machine.is_apple_silicon:
            return because(f"the plugin needs {_APPLE}")
        has = device.plugin in machine.modules or device.provider in machine.providers
        return None if has else because(f"{device.package} is not installed", device.package)
    if device.provider in machine.providers:
        return None
    return because(f"this onnxruntime has no {device.provider}", device.package)


# how Linux, Windows and macOS name a library that they do not find
_MISSING_LIBRARY = (
    re.compile(r"([\w.+-]+\.so(?:\.\d+)*):? cannot open shared object file"),
    re.compile(r"depends on \"?([\w.+-]+\.dll)\"? which is missing", re.IGNORECASE),
    re.compile(r"\"?([\w.+-]+\.dll)\"? which is missing", re.IGNORECASE),
    re.compile(r"Library not loaded: (?:\S*/)?([\w.+-]+\.dylib)"),
    re.compile(r"([\w.+-]+\.(?:so(?:\.\d+)*|dll|dylib))"),
)


def missing_library(text: str) -> str:
    """The file that an error says cannot be loaded; empty if it names none."""
    for pattern in _MISSING_LIBRARY:
        if match := pattern.search(text):
            return match[1]
    return ""


# what CUDA says where all its libraries are there: https://docs.nvidia.com/cuda/cuda-runtime-api/
_CUDA_REMEDIES = (
    (
        re.compile(
            r"no CUDA-capable device|CUDA (?:failure|error) 100\b|driver version is insufficient", re.I
        ),
        "Install or update the NVIDIA driver: nvidia-smi must list a GPU.",
    ),
    (
        re.compile(r"no kernel image", re.I),
        "This build is not made for this GPU: another version of the package may be.",
    ),
    (re.compile(r"out of memory", re.I), "Close what else uses the GPU's memory: nvidia-smi lists it."),
)


def explain(attempt: Attempt, error: BaseException | str) -> Failure:
    """The failure that an error while loading or running means, with what is missing by name."""
    said = " ".join((str(error) or type(error).__name__).split())
    library = missing_library(said)
    # a plugin is there, or it would not have been tried: what is missing is not in its package
    has_package = attempt.backend == "onnx" and not attempt.device.plugin
    package = attempt.device.package if has_package and library else ""
    remedy = ""
    if library and library == attempt.device.needs:
        remedy = f"Install the system's package that has {library}, and the GPU's driver."
    elif attempt.device.name == "cuda" and not library:
        remedy = next((text for pattern, text in _CUDA_REMEDIES if pattern.search(said)), "")
    return Failure(attempt.device.name, attempt.backend, said, library, package, remedy)


def default_threads() -> int:
    """The physical cores that this process may use; two threads on one core only get in each other's way."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    usable = os.sched_getaffinity(0)
    cores = {_siblings(cpu) for cpu in usable}
    return max(1, len(cores))


def _siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)
