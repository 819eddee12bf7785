"""Open an ONNX Runtime session on a device, and read back what it really runs on.

ONNX Runtime goes on without a provider that it cannot use, so nothing is believed here that it does not list
afterwards. A plugin is registered once in a process; that it registers does not mean that it has a device.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinykit.backends.apart import GoingAlone
from tinykit.devices import CPU, Device
from tinykit.errors import DeviceError
from tinykit.optional import onnxruntime_library

# operators that take the time: matrix products, attention, recurrent mixers, convolutions
_HEAVY = ("MatMul", "Gemm", "Attention", "Conv", "QMoE", "FusedMatMul")
_RECORD_PLACES = "session.record_ep_graph_assignment_info"
_lock = threading.Lock()
_registered: set[str] = set()


def open_on(
    device: Device, model: Path | bytes, options: Any, *, disabled: Sequence[str] | None = None
) -> Any:
    """A session whose providers include that of the device.

    Args:
        device: Where to run.
        model: The graph.
        options: The `SessionOptions`; a plugin's device is added to them.
        disabled: Names of ONNX Runtime's own optimizations to leave out.

    Raises:
        DeviceError: the provider or its device is not there, or the session goes on without it.
    """
    onnxruntime = onnxruntime_library()
    source = model if isinstance(model, bytes) else str(model)
    if device == CPU:
        return onnxruntime.InferenceSession(
            source,
            options,
            providers=[CPU.provider],
            disabled_optimizers=GoingAlone(disabled or ()),  # ONNX Runtime makes a set of it, last of all
        )
    if hasattr(onnxruntime.SessionOptions, "add_provider_for_devices"):  # it came with the record
        options.add_session_config_entry(_RECORD_PLACES, "1")
    is_built_in = device.provider in onnxruntime.get_available_providers()
    if is_built_in:
        if device.provider.startswith(("CUDA", "Tensorrt")) and hasattr(onnxruntime, "preload_dlls"):
            onnxruntime.preload_dlls()
        session = onnxruntime.InferenceSession(
            source,
            options,
            providers=[device.provider, CPU.provider],
            disabled_optimizers=disabled,
            enable_fallback=0,  # it would print to the terminal and go on with the CPU
        )
    else:
        options.add_provider_for_devices(_plugin_devices(device)[:1], {})
        session = onnxruntime.InferenceSession(source, options, disabled_optimizers=disabled)
    found = list(session.get_providers())
    if device.provider not in found:
        raise DeviceError(
            f"ONNX Runtime loaded the model on {', '.join(found)} instead of {device.provider}.",
            asked=device.name,
            failures=(),
        )
    return session


def _plugin_devices(device: Device) -> list[Any]:
    """The hardware that a plugin lists."""
    if not device.plugin:
        raise DeviceError(
            f"This onnxruntime has no {device.provider}.",
            hint=f"Install it with: pip install '{device.package}'",
            asked=device.name,
            failures=(),
        )
    onnxruntime = onnxruntime_library()
    with _lock:
        if device.name not in _registered:
            plugin = importlib.import_module(device.plugin)
            onnxruntime.register_execution_provider_library(device.provider, plugin.get_library_path())
            _registered.add(device.name)
    found = [one for one in onnxruntime.get_ep_devices() if one.ep_name == device.provider]
    if not found:
        needs = f"{device.needs}, which is not there" if _lacks(device.needs) else "hardware with its driver"
        raise DeviceError(
            f"The plugin {device.package} is there, but lists no device on this machine. It needs {needs}.",
            asked=device.name,
            failures=(),
        )
    return found


def _lacks(library: str) -> bool:
    """Whether this is the name of a library of Linux that cannot be loaded here."""
    if not library or sys.platform != "linux":  # other systems bring their own way to a GPU
        return False
    try:
        ctypes.CDLL(library)
    except OSError:
        return True
    return False


def heavy_share(session: Any, provider: str) -> float | None:
    """How much of the heavy operators the provider has, from 0 to 1; None if ONNX Runtime does not tell."""
    try:
        places = [
            (part.ep_name, node.op_type)
            for part in session.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        ]
    except Exception:  # an older version, or one that did not record it
        return None
    heavy = [name for name, kind in places if any(word in kind for word in _HEAVY)]
    return heavy.count(provider) / len(heavy) if heavy else None
