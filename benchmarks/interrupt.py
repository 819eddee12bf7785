"""How long Jupyter's Stop button takes: from the interrupt to the reply, in every form of the magics.

    python benchmarks/interrupt.py [--rounds 5]

A real kernel is interrupted a moment after its cell has begun to compute. The delay counts until the kernel
says that the cell has ended. The last line is JSON. A busy machine is said: its figures mean little.
"""

import argparse
import json
import os
import statistics
import time

import jupyter_client

SETUP = """
from tinykit.backends.onnx import OnnxBackend
get_ipython().run_line_magic("load_ext", "tinykit")
get_ipython().run_line_magic("tiny", "use smollm2-135m")
session = get_ipython().run_line_magic("tiny", "load")
messages = ["Tell me a long story about a fox and a hen."] * 40
long = "A long story about a fox. " * 900
forward, told = OnnxBackend.forward, False
def noted(self, *args, **options):
    global told
    if not told:
        told = True
        print("begun", flush=True)
    return forward(self, *args, **options)
OnnxBackend.forward = noted
"""
FORMS = {
    "title": "%title -r plain {{long}}",
    "many titles": "%title -r plain {{messages}}",
    "answer": "%tiny --max-tokens 900 Tell me a long story.",
    "long prompt": "%tiny --max-tokens 5 {{long}}",
    "many answers": "%tiny --max-tokens 500 {{messages}}",
    "call": 'session.complete("Tell me a long story.", max_tokens=900)',
    "stream": 'for piece in session.stream("Tell me a long story.", max_tokens=900): pass',
}


def run(client, code, on_begin=None) -> float:
    """Run a cell; returns when it had ended."""
    sent = client.execute(code)
    while True:
        message = client.get_iopub_msg(timeout=600)
        if message["parent_header"].get("msg_id") != sent:
            continue
        if message["msg_type"] == "stream" and on_begin:
            on_begin()
        if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            return time.perf_counter()


def delay_s(manager, client, code: str, wait_s: float) -> float:
    """Seconds from the interrupt to the end of the cell."""
    asked = []

    def stop() -> None:
        time.sleep(wait_s)
        asked.append(time.perf_counter())
        manager.interrupt_kernel()

    run(client, "told = False")
    return run(client, code, stop) - asked[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.start_kernel(env={**os.environ, "TINYKIT_STABLE": "0"})
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        run(client, SETUP)
        found = {}
        for name, code in FORMS.items():
            delays = [delay_s(manager, client, code, 0.2 + 0.037 * n) for n in range(arguments.rounds)]
            found[name] = {
                "median_ms": round(1000 * statistics.median(delays)),
                "worst_ms": round(1000 * max(delays)),
            }
            print(f"{name:13} median {found[name]['median_ms']:5} ms  worst {found[name]['worst_ms']:5} ms")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    if busy > 0.3:
        print(f"\nThe machine was busy before ({busy:.1f} processes a core): these are no measurements.")
    print(json.dumps({"interrupt": found, "load_before": round(busy, 2)}))


if __name__ == "__main__":
    main()
