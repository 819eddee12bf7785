"""Where a model can run, and with how many threads."""

from __future__ import annotations

import os
from pathlib import Path

from tinykit.errors import OptionError

DEVICES = ("auto", "cpu")


def choose_device(name: str | None) -> str:
    """The device to use for what the user asked; blank means the default, CPU.

    Raises:
        OptionError: a name that is not in `DEVICES`.
    """
    asked = (name or "cpu").strip().lower() or "cpu"
    if asked not in DEVICES:
        raise OptionError(
            f"Unknown device {name!r}; known are {', '.join(DEVICES)}.",
            hint="Leave it out to run on the CPU.",
            name="device",
            value=name,
        )
    return "cpu"


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
