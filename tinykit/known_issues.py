"""Versions of packages that are known to do badly together, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Distributions that all install the module `onnxruntime`: the last one installed hides the others.
_FULL_WHEELS = (
    "onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino", "onnxruntime-rocm",
    "onnxruntime-migraphx", "onnxruntime-webgpu",
)  # fmt: skip
# first version with the fault, first without, what goes wrong. Each was seen with the CPU provider.
_ONNXRUNTIME = (
    ("0", "1.24.2", "cannot read weights beside a graph through the links of the hub's cache"),
    ("1.23.2", "1.28", "cannot load half-float graphs of plain operators with all optimizations"),
    ("0", "1.29", "cannot run LFM2 graphs of onnxruntime-genai 0.18"),
    ("0", "1.30", "cannot run Qwen 3.5 graphs of onnxruntime-genai 0.18"),
)
PACKAGES = (*_FULL_WHEELS, "mlx", "mlx-lm")


def known_issues(versions: Mapping[str, str | None]) -> list[str]:
    """What is known to go wrong with these versions, each with its remedy.

    `versions` are by distribution; None, or no entry, for what is not installed.
    """
    found = []
    full = [name for name in _FULL_WHEELS if versions.get(name)]
    if len(full) > 1:
        found.append(
            f"{' and '.join(full)} replace each other's files; "
            f"pip uninstall {' '.join(full)}, then install the one that is wanted"
        )
    runtime = next((versions[name] for name in full), None)
    if runtime:
        found += [
            f"onnxruntime {runtime} {what}; pip install 'onnxruntime>={fixed}'"
            for first, fixed, what in _ONNXRUNTIME
            if _numbers(first) <= _numbers(runtime) < _numbers(fixed)
        ]
    mlx = versions.get("mlx-lm")
    if mlx and _numbers(mlx) < (0, 31):
        found.append(f"mlx-lm {mlx} is too old; pip install 'mlx-lm>=0.31'")
    return found


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version without the zeros at its end; what follows them does not count."""
    match = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else [0]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
