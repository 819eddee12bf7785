"""Titles beside other processes that use a core each, for how long ONNX Runtime's threads look for work.

    python benchmarks/threads.py [--spin default ours 0] [--others 0 1 2] [--threads N] [--rounds 4]

Each line is the median over fresh processes, one of each kind in every round: milliseconds for a title,
titles a second, and processor time for one title. `--spin` are microseconds, ``default`` is ONNX Runtime's
own, ``ours`` what tinykit sets. A `--threads` of several numbers compares these, too. The last line is JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import product

from plain_errors import positive, run

from tinykit.registry import get_model

MESSAGES = (
    "why does my docker container exit with code 137",
    "can you help me write a cover letter for a junior data analyst job?",
    "plan a 3 day trip to lisbon with kids",
    "explain the difference between tcp and udp",
    "my sourdough is too dense, what am i doing wrong",
    "convert this sql query to pandas: select a, count(*) from t group by a",
)
DEFAULT = "-1"  # what ONNX Runtime takes for its own choice


def number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}")
    return int(text)


def spin_us(text: str) -> str:
    return text if text in ("default", "ours") else str(number(text))


def measure(model: str, spin: str, threads: int | None, others: int) -> dict[str, float]:
    """Title every message twice, in this process."""
    from tinykit import TinySession
    from tinykit.backends import onnx_session

    if spin != "ours":
        onnx_session._SPIN_US = DEFAULT if spin == "default" else spin
    with TinySession(model, threads=threads, progress=False) as session:
        session.title(MESSAGES[0])
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
        try:
            time.sleep(0.3)
            taken, begun, spent = [], time.perf_counter(), time.process_time()
            for message in MESSAGES * 2:
                start = time.perf_counter()
                session.title(message)
                taken.append(time.perf_counter() - start)
            total_s = time.perf_counter() - begun
            cpu_s = time.process_time() - spent
        finally:
            for process in busy:
                process.kill()
                process.wait()
    return {
        "title_ms": 1000 * statistics.median(taken),
        "titles_per_s": len(taken) / total_s,
        "cpu_ms_per_title": 1000 * cpu_s / len(taken),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--spin", nargs="+", type=spin_us, default=["default", "ours", "0"])
    parser.add_argument("--others", nargs="+", type=number, default=[0, 1, 2])
    parser.add_argument("--threads", nargs="+", type=positive, default=[None])
    parser.add_argument("--rounds", type=positive, default=4)
    parser.add_argument("--model", default="smollm2-135m-titles")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.model, *json.loads(options.one))))
        return
    get_model(options.model)  # an unknown one is told here, in a line
    kinds = list(product(options.spin, options.threads, options.others))
    found: dict[tuple[str, int | None, int], list[dict[str, float]]] = {kind: [] for kind in kinds}
    for turn in range(options.rounds):
        for done, kind in enumerate(kinds):
            print(
                f"\rround {turn + 1} of {options.rounds}: {done + 1} of {len(kinds)}", end="", file=sys.stderr
            )
            command = [sys.executable, __file__, "--model", options.model, "--one", json.dumps(kind)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            found[kind].append(json.loads(output))
    print(f"{'spin us':>8} {'threads':>8} {'others':>7} {'title ms':>9} {'titles/s':>9} {'cpu ms/title':>13}")
    rows = []
    for (spin, threads, others), runs in found.items():
        row = {name: round(statistics.median(run[name] for run in runs), 2) for name in runs[0]}
        rows.append({"spin": spin, "threads": threads, "others": others, **row})
        shown = f"{spin:>8} {threads or 'default':>8} {others:>7}"
        print(f"{shown} {row['title_ms']:9.0f} {row['titles_per_s']:9.2f} {row['cpu_ms_per_title']:13.0f}")
    print(json.dumps({"rows": rows, "cores": os.cpu_count(), "load_average": round(os.getloadavg()[0], 2)}))


if __name__ == "__main__":
    run(main)
