"""How much memory a process holds."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path


def memory_bytes() -> int | None:
    """Resident memory of this process; None where it cannot be told."""
    with suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    with suppress(ImportError):
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # the highest so far; bytes on macOS
        return most if sys.platform == "darwin" else most * 1024
    return None
