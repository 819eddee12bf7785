"""Machines with devices that are not there, each with its fault: ONNX Runtime as it behaves on them.

Each is called with a `MonkeyPatch` and an empty folder, and is in place until the test ends.
"""

import sys
import types
from pathlib import Path

import onnxruntime

from tinykit import devices
from tinykit.backends import onnx_providers

CUDA, WEBGPU, CPU = "CUDAExecutionProvider", "WebGpuExecutionProvider", "CPUExecutionProvider"
PLUGIN = "onnxruntime_ep_webgpu"
REAL = onnxruntime.InferenceSession


class Device:
    """A session on the CPU that passes for one on a GPU; `run` may fail or change what it computes."""

    def __init__(self, real, providers=(CUDA, CPU), run=None):
        self._real = real
        self._providers = providers
        self._run = run
        self._steps = 0

    def __getattr__(self, name):
        return getattr(self._real, name)

    def get_providers(self):
        return list(self._providers)

    def run(self, names, feeds, options=None):
        found = self._real.run(names, feeds, options)
        self._steps += 1
        if self._run and "logits" in (names or ["logits"]):
            found[0] = self._run(found[0], self._steps)
        return found


def raising(message):
    def fail(*arguments, **options):
        raise RuntimeError(message)

    return fail


def from_step(number, change):
    return lambda logits, step: change(logits) if step >= number else logits


class Cuda:
    """Make this machine one with CUDA; `opened` lists who was asked to load."""

    def __init__(self, load=None, *, providers=(CUDA, CPU), run=None):
        self.opened = []
        self._load, self._providers, self._run = load, providers, run

    def __call__(self, patch, folder):
        patch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
        patch.setattr(onnxruntime, "InferenceSession", self._open)
        patch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)

    def _open(self, path, options, providers=None, disabled_optimizers=None, enable_fallback=1):
        self.opened.append(providers[0])
        if providers[0] == CPU:
            return REAL(path, options, providers=providers, disabled_optimizers=disabled_optimizers)
        assert enable_fallback == 0
        real = (self._load or REAL)(path, options, providers=[CPU])
        return Device(real, self._providers, self._run)


def damaged(path, options, **arguments):
    """What one provider cannot read: the error is ONNX Runtime's own."""
    return REAL(Path(path).read_bytes()[:-1000], options, **arguments)


def bare(patch, folder):
    """This machine has ONNX Runtime with its CPU, and nothing else."""
    patch.setattr(onnxruntime, "get_available_providers", lambda: [CPU])
    patch.setattr(devices, "installed", lambda name: name == "onnxruntime")


class Plugin:
    """Install a WebGPU plugin; `registered` says how often it was registered, `listed` is what it lists."""

    def __init__(
        self,
        *listed,
        code="def get_library_path():\n    return 'libwebgpu.so'\n",
        register=None,
        run=None,
        lacks=True,
    ):
        self.registered = []
        self._listed = [types.SimpleNamespace(ep_name=name) for name in listed]
        self._code, self._register, self._run, self._lacks = code, register, run, lacks

    def __call__(self, patch, folder):
        site = folder / "site"
        site.mkdir()
        (site / f"{PLUGIN}.py").write_text(self._code, encoding="utf-8")
        patch.syspath_prepend(str(site))
        patch.delitem(sys.modules, PLUGIN, raising=False)
        patch.setattr(onnx_providers, "_registered", set())
        patch.setattr(onnxruntime, "register_execution_provider_library", self._registers)
        patch.setattr(onnxruntime, "get_ep_devices", lambda: self._listed)
        patch.setattr(onnx_providers, "_lacks", lambda library: self._lacks)
        patch.setattr(onnxruntime.SessionOptions, "add_provider_for_devices", lambda *arguments: None)
        patch.setattr(onnxruntime, "InferenceSession", self._open)

    def _registers(self, *arguments):
        self.registered.append(arguments)
        if self._register:
            self._register()

    def _open(self, path, options, providers=None, **arguments):
        real = REAL(path, options, providers=[CPU], **arguments)
        return real if providers or self._run is None else Device(real, (WEBGPU, CPU), self._run)


def mlx_that_does_not_start(patch, folder):
    from tinykit.backends import mlx

    def require(*arguments, **options):
        raise ImportError("libmlx.so: cannot open shared object file: No such file or directory")

    patch.setattr(devices, "installed", lambda name: name in ("onnxruntime", "mlx_lm"))
    patch.setattr(mlx, "require", require)
    patch.setattr(mlx, "_START_ERROR", [])
