"""The process that one engine runs in: ``python -m tinykit.peers.child SETUP``, JSON lines in and out.

`SETUP` is JSON: `module`, `files`, `threads`, `batch`, `options`, and `first`, the message that is titled at
once, so that the time from the process's start to its first line is a cold start. Each further line on
standard input is an `Ask`; the answer to it is one line. What libraries print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from importlib import import_module
from typing import Any

from tinykit.peers.engines.base import Engine, Setup
from tinykit.peers.work import Ask


def main() -> None:
    """Load, title the first message, and answer until standard input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # compiled libraries print too
    given = json.loads(sys.argv[1])

    def reply(found: dict[str, Any]) -> None:
        replies.write(json.dumps(found) + "\n")
        replies.flush()

    try:
        setup = Setup(given["files"], given["threads"], given["batch"], given["options"])
        started = time.perf_counter()
        engine: Engine = import_module(f"tinykit.peers.engines.{given['module']}").Engine(setup)
        load_s = time.perf_counter() - started
        reply({**answered(engine, Ask((given["first"],))), "load_s": load_s})
        for line in sys.stdin:
            reply(answered(engine, Ask(**json.loads(line))))
    except Exception as error:
        reply({"error": f"{type(error).__name__}: {error}"})
    replies.flush()
    os._exit(0)  # some libraries crash while the interpreter ends


def answered(engine: Engine, ask: Ask) -> dict[str, Any]:
    """Answers with their seconds, one after the other or all at once, and the most memory until then."""
    answers: list[dict[str, Any]] = []
    begun = time.perf_counter()
    if ask.batch > 1:
        answers = [asdict(one) for one in engine.titles(ask.messages, ask.max_tokens, ask.stop)]
    else:
        for message in ask.messages:
            started = time.perf_counter()
            answer = engine.title(message, ask.max_tokens, ask.stop)
            answers.append({**asdict(answer), "total_s": time.perf_counter() - started})
    elapsed_s = time.perf_counter() - begun
    return {"answers": answers, "elapsed_s": elapsed_s, "peak_bytes": peak_bytes()}


def peak_bytes() -> int:
    """The most memory this process had, resident; mapped files count with what was read of them.

    0 where the system does not tell.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123
            return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        try:
            import resource  # where there is no /proc; on Linux it would also count the parent's memory
        except ImportError:  # Windows
            return 0
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


if __name__ == "__main__":
    main()
