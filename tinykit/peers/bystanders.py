"""How much of the machine others used while something was measured: of a busy one there are no figures."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOST_SHARE: Final = 0.1  # of all cores together
_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class Reading:
    """A look at the machine's clocks.

    Attributes:
        at_s: When.
        used_s: Processor seconds of all processes since the machine began; None where the system hides it.
        own_s: Those of this process and of its children that ended.
    """

    at_s: float
    used_s: float | None
    own_s: float


def used_seconds(stat: str, ticks_per_s: int) -> float:
    """Processor seconds in the text of ``/proc/stat``: user, nice, system, irq, softirq and steal."""
    fields = [int(word) for word in stat.splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) / ticks_per_s


def look() -> Reading:
    """The clocks now."""
    times = os.times()
    own_s = times.user + times.system + times.children_user + times.children_system
    try:
        used = used_seconds(_STAT.read_text(encoding="ascii"), os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, AttributeError):
        used = None
    return Reading(time.monotonic(), used, own_s)


def share(before: Reading, after: Reading, cores: int) -> float | None:
    """The part of all cores that others used between two looks; None where the system does not tell."""
    elapsed_s = after.at_s - before.at_s
    if before.used_s is None or after.used_s is None or elapsed_s <= 0:
        return None
    others_s = (after.used_s - before.used_s) - (after.own_s - before.own_s)
    return max(0.0, others_s) / (cores * elapsed_s)


def current_share(seconds: float = 2.0) -> float | None:
    """The part of all cores that others use right now; where it cannot be seen, the load of the last minute.

    None where the system tells neither.
    """
    before = look()
    if before.used_s is None:
        return _load()
    time.sleep(seconds)
    return share(before, look(), os.cpu_count() or 1)


def _load() -> float | None:
    if not hasattr(os, "getloadavg"):
        return None
    return min(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
