"""What this machine has, for a person in trouble or a bug report."""

from __future__ import annotations

import difflib
import html
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tinykit import __version__, settings, store
from tinykit.checkpoints import other_backends
from tinykit.devices import CPU, DEVICES, backend_name, default_threads, device_name, plan, this_machine
from tinykit.disk import home_problem
from tinykit.errors import TinykitError
from tinykit.hub_cache import cache_folder
from tinykit.hub_listing import shown_endpoint, time_answer
from tinykit.inventory import text_table
from tinykit.known_issues import PACKAGES, known_issues
from tinykit.loading import DEFAULT_MODEL, FAILURES, checked_dtype
from tinykit.optional import TELEMETRY_SWITCH, onnxruntime_library
from tinykit.progress import size_text
from tinykit.recipes import get_recipe
from tinykit.registry import get_model, known_models
from tinykit.residents import Resident, loaded

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
_HEADERS = ("what", "found")


@dataclass(frozen=True)
class Report:
    """Facts by name; ``str()`` gives them as a table, and so does a notebook."""

    facts: dict[str, Any]

    def __str__(self) -> str:
        return text_table(_HEADERS, self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        return [(name, _shown(name, value)) for name, value in self.facts.items()]

    def _repr_html_(self) -> str:
        """What notebooks show: a table in the colors of their theme."""
        left = 'style="text-align: left; vertical-align: top; overflow-wrap: anywhere"'
        head = "".join(f'<th scope="col" {left}>{name}</th>' for name in _HEADERS)
        rows = "".join(
            f'<tr><th scope="row" {left}>{html.escape(name)}</th><td {left}>{html.escape(value)}</td></tr>\n'
            for name, value in self._rows()
        )
        return (
            f"<table>\n<caption>tinykit doctor</caption>\n<thead><tr>{head}</tr></thead>\n"
            f"<tbody>\n{rows}</tbody>\n</table>"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows: the table."""
        printer.text(str(self))


def doctor(*, hub: bool = False) -> Report:
    """Versions, processor, memory, disk, caches and settings of this machine.

    What cannot be found out, for instance because a setting is wrong, has the reason as its value.

    Args:
        hub: Also ask whether the hub answers. Nothing else uses the network.
    """
    facts = {name: _found(find) for name, find in _FACTS.items()}
    return Report({**facts, "hub_answer": _found(_hub_answer)} if hub else facts)


def _hub_answer() -> str:
    if settings.get("offline"):
        return "not asked, as the network is switched off"
    return f"in {time_answer():.2f} s"


def _found(find: Callable[[], Any]) -> Any:
    try:
        return find()
    except Exception as error:  # whatever is broken here is what the report is for
        return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "unknown" if name.endswith("_bytes") or name == "processor" else "not installed"
    if name.endswith("_bytes") and isinstance(value, int):
        return size_text(value)
    if isinstance(value, list):
        return (" " if name == "wrong_settings" else ", ").join(value) or "none"  # whole sentences
    return str(value)


def _providers() -> list[str]:
    providers: list[str] = onnxruntime_library().get_available_providers()
    return providers


def _telemetry() -> str:
    """Whether ONNX Runtime reports to its makers."""
    onnxruntime_library()
    value = os.environ[TELEMETRY_SWITCH]
    return "off" if value == "1" else f"as {TELEMETRY_SWITCH}={value} says, which was set before"


def _hardware() -> list[str]:
    """What providers list: a plugin that registers without a device is not here."""
    onnxruntime = onnxruntime_library()
    if not hasattr(onnxruntime, "get_ep_devices"):
        return []
    kinds = {(one.ep_name, one.device.type.name, one.ep_vendor) for one in onnxruntime.get_ep_devices()}
    return sorted(f"{name} on {kind} ({vendor})" for name, kind, vendor in kinds)


def _devices() -> list[str]:
    """Every device that could be tried here, and every other one of this system with the reason."""
    here = this_machine()
    found = []
    for name, device in DEVICES.items():
        if here.system in device.systems:
            wish = plan(name, detect=lambda: here)
            usable = name == CPU.name or wish.attempts[0].device == device
            found.append(name if usable else f"{name}: {wish.skipped[0].reason}")
    return found


def _resident(one: Resident) -> str:
    held = f", {one.sessions} sessions" if one.sessions > 1 else ""
    return f"{one.model} {one.dtype} on {one.device} ({one.backend}, {size_text(one.size_bytes)}{held})"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor() -> str | None:
    """The name of this machine's processor."""
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


def _home() -> str:
    problem = home_problem()
    return f"{store.home()}{f' (cannot be used: {problem})' if problem else ''}"


def _free_disk_bytes() -> int:
    home = store.home()
    return shutil.disk_usage(next(folder for folder in (home, *home.parents) if folder.exists())).free


def wrong_settings() -> list[str]:
    """What is wrong with the variables and the config file, each with what to do about it."""
    found = [*map(_problem, settings.SETTINGS), _problem_of_models(), *map(_misspelt, os.environ)]
    return [text for text in dict.fromkeys(found) if text]  # a broken file is a problem of every setting


def _problem(name: str) -> str | None:
    """Why the value of a setting cannot be used; None if it can."""
    setting = settings.SETTINGS[name]
    where = ""
    try:
        value = settings.get(name)
        where = settings.origin(name) or ""
        if value is not None and name in _CHECKS:
            _CHECKS[name](value)
    except TinykitError as error:
        message = str(error) if not where or where in str(error) else f"{where} cannot be used. {error}"
        advice = error.hint or f"Set it to {setting.expects}, or leave it out."
        return f"{message.rstrip('.')}. {advice}"
    return None


def _problem_of_models() -> str | None:
    """Why the models in the config file cannot be used; None if they can."""
    try:
        known_models()
    except TinykitError as error:
        return f"{str(error).rstrip('.')}. {error.hint or 'Mend the config file.'}"
    return None


def _misspelt(variable: str) -> str | None:
    """What to say of a variable that looks like one of ours and is none."""
    prefix, name = variable[: len(_PREFIX)], variable.removeprefix(_PREFIX)
    known = [*(one.upper() for one in settings.SETTINGS), *_OTHER_VARIABLES]
    if prefix != _PREFIX or name in known:
        return None
    near = difflib.get_close_matches(name, known, n=1)
    advice = f"Did you mean {_PREFIX}{near[0]}?" if near else "Remove it."
    return f"The variable {variable} means nothing. {advice}"


_PREFIX = "TINYKIT_"
_OTHER_VARIABLES = ("CONFIG", "TOKEN")
_CHECKS: dict[str, Callable[[Any], object]] = {
    "model": get_model,
    "recipe": get_recipe,
    "device": device_name,
    "backend": lambda name: backend_name(name, other_backends()),
    "dtype": lambda name: checked_dtype(name, get_model(settings.get("model") or DEFAULT_MODEL)),
}
_FACTS: dict[str, Callable[[], Any]] = {
    "tinykit": lambda: __version__,
    "python": platform.python_version,
    "platform": platform.platform,
    "processor": processor,
    "cores": os.cpu_count,
    "threads": lambda: settings.get("threads") or default_threads(),
    "memory_free_bytes": _free_memory_bytes,
    **{package: partial(_version, package) for package in _PACKAGES},
    "onnxruntime_telemetry": _telemetry,
    "providers": _providers,
    "hardware": _hardware,
    "devices": _devices,
    "other_backends": lambda: sorted(other_backends()),
    "known_issues": lambda: known_issues({name: _version(name) for name in PACKAGES}),
    "loaded": lambda: [_resident(one) for one in loaded()],
    "failed": lambda: [f"{run.model} on {run.device}: {run.reason}" for run in FAILURES.all()],
    "home": _home,
    "home_bytes": lambda: sum(entry.size_bytes for entry in store.entries()),
    "disk_free_bytes": _free_disk_bytes,
    "config": lambda: str(settings.config_path()),
    "hub": shown_endpoint,
    "hub_cache": lambda: str(cache_folder()),
    "offline": lambda: settings.get("offline"),
    "wrong_settings": wrong_settings,
    "environment": lambda: sorted(name for name in os.environ if name.startswith(_PREFIX)),
}
