"""Packages that only some features need, imported at the moment they are needed."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, Final

from tinykit.errors import MissingPackageError

# From 1.29 on the packages of ONNX Runtime for Linux and macOS, too, report to Microsoft which graphs are
# opened and how long they run, unless this is set before the library is imported:
# https://github.com/microsoft/onnxruntime/pull/27379
TELEMETRY_SWITCH: Final = "ORT_DISABLE_TELEMETRY"


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """The imported module, or an error that says what it is for and how to install it.

    Args:
        module: Name as in an import statement.
        extra: The extra of tinykit that installs it; empty for a package that tinykit itself depends on.
        purpose: What it is needed for, as it fits after "is needed for".

    Raises:
        MissingPackageError: The package is not installed. An installed package that fails while it is
            imported raises its own error instead, because installing it again would not help.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or not _is_part_of(module, exc.name):
            raise
        requirement = f"tinykit[{extra}]" if extra else "tinykit"
        raise MissingPackageError(
            f"The package {module.partition('.')[0]!r} is needed for {purpose}, and is not installed",
            hint=f"Install it with: pip install '{requirement}'",
            name=module,
            extra=extra,
            purpose=purpose,
        ) from exc


def installed(module: str) -> bool:
    """True if the module can be found; the last part of a dotted name is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        # a missing parent package, or a module put in sys.modules by hand, without a spec
        return False


def onnxruntime_library() -> Any:
    """ONNX Runtime, imported without its telemetry; a Ctrl-C waits for the end of the import.

    Whoever set `TELEMETRY_SWITCH`, to whatever, has decided. Where others imported the library before, what
    it reports from now on is switched off.
    """
    is_decided = TELEMETRY_SWITCH in os.environ
    os.environ.setdefault(TELEMETRY_SWITCH, "1")
    with held_interrupts():
        import onnxruntime
    if not is_decided and hasattr(onnxruntime, "disable_telemetry_events"):
        onnxruntime.disable_telemetry_events()
    return onnxruntime


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Let a Ctrl-C wait for the end of the block, which is an import.

    A compiled module that is interrupted while it starts says ImportError in place of KeyboardInterrupt, and
    some cannot be imported again in that process. Outside of the main thread no signal comes.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    held: list[FrameType | None] = []
    signal.signal(signal.SIGINT, lambda _, frame: held.append(frame))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            before(signal.SIGINT, held[0])


def _is_part_of(module: str, missing: str) -> bool:
    return module == missing or module.startswith(f"{missing}.")
