"""How long Jupyter's Stop button takes: from the interrupt to the cell's end, in every form of a call.

    python benchmarks/interrupt.py [--rounds 5]

A real kernel is interrupted a moment after its cell has begun to compute. The delay counts until the kernel
says that the cell has ended; the first interrupt of a kernel is in it. The last line is JSON. A busy machine
is said: its figures mean little.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.kernels import SAY_BEGUN, SAY_ONCE, Kernel

SETUP = """
%load_ext tinykit
%tiny use smollm2-135m
session = %tiny load
messages = ["Tell me a long story about a fox and a hen."] * 40
long = "A long story about a fox. " * 900
"""
FORMS = {
    "call": 'session.complete("Tell me a long story.", max_tokens=900)',
    "stream": 'for piece in session.stream("Tell me a long story.", max_tokens=900): pass',
    "title call": 'session.title(long, recipe="plain")',
    "many calls": "session.complete_many(messages, max_tokens=500)",
    "choice": 'session.choose(long, ["a story", "a report"])',
    "%title": "%title -r plain {{long}}",
    "many titles": "%title -r plain {{messages}}",
    "%tiny": "%tiny --max-tokens 900 Tell me a long story.",
    "long prompt": "%tiny --max-tokens 5 {{long}}",
    "many answers": "%tiny --max-tokens 500 {{messages}}",
    "%%tiny_eval": "%%tiny_eval -r plain\n" + "Tell me a long story about a fox and a hen.\n" * 40,
}


def delay_s(kernel: Kernel, code: str, wait_s: float) -> float:
    """Seconds from the interrupt to the end of the cell."""
    asked = []

    def stop() -> None:
        time.sleep(wait_s)
        asked.append(time.perf_counter())
        kernel.interrupt()

    kernel.run(SAY_ONCE)
    ran = kernel.run(code, stop)
    if ran.error != "KeyboardInterrupt":
        raise SystemExit(f"The cell ended with {ran.error}: {ran.traceback}")
    return ran.ended_at - asked[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    found = {}
    with Kernel(TINYKIT_STABLE="0") as kernel:
        for code in (SETUP, SAY_BEGUN):
            if (ran := kernel.run(code)).error:
                raise SystemExit("\n".join(ran.traceback))
        for name, code in FORMS.items():
            delays = [delay_s(kernel, code, 0.2 + 0.037 * n) for n in range(arguments.rounds)]
            found[name] = {
                "median_ms": round(1000 * statistics.median(delays)),
                "worst_ms": round(1000 * max(delays)),
            }
            print(f"{name:13} median {found[name]['median_ms']:5} ms  worst {found[name]['worst_ms']:5} ms")
    if busy > 0.3:
        print(f"\nThe machine was busy before ({busy:.1f} processes a core): these are no measurements.")
    print(json.dumps({"interrupt": found, "load_before": round(busy, 2)}))


if __name__ == "__main__":
    main()
