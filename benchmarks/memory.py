"""Memory of a process while a model is loaded and after it was released, round by round.

    python benchmarks/memory.py [--model KEY] [--dtype NAME] [--backend NAME] [--rounds 5] [--sessions 1]

The first round, which also loads the libraries, is not shown. What counts is the resident memory of this
process above that of the end of the first round; a round opens `sessions` of them,
which share the model. Works on Linux. The last line is JSON.

Five rounds with ONNX Runtime 1.32: q8 holds 271 to 286 MB and leaves 3 MB or less, fp32 688 to 694 MB and
3 MB. Three sessions at once hold no more weights than one.
"""

import argparse
import gc
import json
import os
from contextlib import ExitStack
from pathlib import Path

from plain_errors import run

from tinykit import TinySession, loaded

MESSAGE = "Plan a three day trip to Lisbon with two kids, we like beaches and trains"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(options: dict[str, str | None], sessions: int) -> tuple[int, int, int]:
    """Bytes in use with the sessions, what `loaded` says of them, and bytes in use after them."""
    with ExitStack() as stack:
        for _ in range(sessions):
            stack.enter_context(TinySession(progress=False, **options)).title(MESSAGE)
        during, said = resident_bytes(), sum(one.size_bytes for one in loaded())
    gc.collect()
    return during, said, resident_bytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "dtype", "backend"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sessions", type=int, default=1)
    arguments = parser.parse_args()
    options = {name: getattr(arguments, name) for name in ("model", "dtype", "backend")}
    *_, before = measure(options, arguments.sessions)
    rows = []
    for _ in range(arguments.rounds):
        during, said, after = measure(options, arguments.sessions)
        rows.append({"loaded_bytes": during - before, "said_bytes": said, "released_bytes": after - before})
        print(
            "  ".join(
                f"{name.removesuffix('_bytes')} {value / 1e6:7.1f} MB" for name, value in rows[-1].items()
            )
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    run(main)
