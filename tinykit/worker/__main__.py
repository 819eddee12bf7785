"""A worker's process: ``python -m tinykit.worker``, with a `Launch` as JSON on standard input.

Exit codes: 0 it ended as it should · 74 its folder has no room · 75 another process serves already · 1 it
could not start.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

FULL = 74  # no room for the lock, the socket or what says who serves
LOST = 75  # another process won
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
BANNER = "tinykit worker listens"


def main() -> int:
    """Serve what standard input describes; returns the exit code."""
    from tinykit.worker.launch import Launch

    launch = Launch.of_text(sys.stdin.read())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    return serve(launch)


def serve(launch: object) -> int:
    """Bind and serve until the end, unless another process does so already."""
    import filelock

    from tinykit.worker.launch import Launch
    from tinykit.worker.log_file import LogFile
    from tinykit.worker.server import Worker

    assert isinstance(launch, Launch)
    logging.raiseExceptions = False  # a full disk is no reason to end
    log = LogFile(Path(launch.log))
    logging.basicConfig(handlers=[log], level=logging.INFO, force=True)
    # the system lets go of it when this process ends in whatever way
    lock = filelock.FileLock(launch.path("lock"), mode=0o600)
    transport = launch.transport
    try:
        lock.acquire(timeout=0)
        listener = transport.listen()
        worker = Worker(launch, transport, listener)
        signal.signal(signal.SIGTERM, lambda *_: worker.end("SIGTERM"))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        launch.path("pid").write_text(str(os.getpid()), encoding="ascii")
        launch.save()
        logging.getLogger("tinykit.worker").info("%s: %s, pid %d", BANNER, launch.name, os.getpid())
        reason = worker.run()
        logging.getLogger("tinykit.worker").info("ended: %s", reason)
    except filelock.Timeout:
        return LOST
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        logging.getLogger("tinykit.worker").error("there is no room: %s", error)
        return FULL
    finally:
        if lock.is_locked:
            if transport.is_ours():
                transport.remove()
            for ending in ("pid", "json"):
                with suppress(OSError):
                    launch.path(ending).unlink()
            lock.release()
    return 0


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    # native libraries may crash or hang while the interpreter takes them apart
    os._exit(code)
