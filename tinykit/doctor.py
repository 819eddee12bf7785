"""What this machine has, for a person in trouble or a bug report."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tinykit import __version__, settings, store
from tinykit.devices import default_threads
from tinykit.hub_cache import cache_folder
from tinykit.hub_listing import shown_endpoint
from tinykit.inventory import text_table
from tinykit.progress import size_text

_PACKAGES = (
    "numpy",
    "onnxruntime",
    "tokenizers",
    "onnx",
    "gguf",
    "unearth",
    "huggingface_hub",
    "ipykernel",
    "ipywidgets",
    "mlx-lm",
    "transformers",
    "torch",
)


@dataclass(frozen=True)
class Report:
    """Facts by name; ``str()`` gives them as a table."""

    facts: dict[str, Any]

    def __str__(self) -> str:
        return text_table(
            ("what", "found"), [(name, _shown(name, value)) for name, value in self.facts.items()]
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows: the table."""
        printer.text(str(self))


def doctor() -> Report:
    """Versions, processor, memory, disk, caches and settings of this machine; uses no network."""
    import onnxruntime

    home = store.home()
    facts: dict[str, Any] = {
        "tinykit": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": settings.get("threads") or default_threads(),
        "memory_free_bytes": _free_memory_bytes(),
    }
    facts |= {name: _version(name) for name in _PACKAGES}
    facts["providers"] = onnxruntime.get_available_providers()
    facts["home"] = str(home)
    facts["home_bytes"] = sum(entry.size_bytes for entry in store.entries())
    facts["disk_free_bytes"] = shutil.disk_usage(_existing(home)).free
    facts["config"] = str(settings.config_path())
    facts["hub"] = shown_endpoint()
    facts["hub_cache"] = str(cache_folder())
    facts["offline"] = settings.get("offline")
    facts["environment"] = sorted(name for name in os.environ if name.startswith("TINYKIT_"))
    return Report(facts)


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "unknown" if name.endswith("_bytes") or name == "processor" else "not installed"
    if name.endswith("_bytes"):
        return size_text(value)
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return str(value)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str | None:
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None


def _free_memory_bytes() -> int | None:
    if sys.platform != "linux":
        return None
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable"):
            return int(line.split()[1]) * 1024
    return None


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.exists())
