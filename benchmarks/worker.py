"""What a shared worker costs and saves: many clients at once, and a second program's first title.

    python benchmarks/worker.py [--clients 8] [--titles 200] [--ways shared,one,own] [--own-titles 5]

Clients are processes that ask for titles one by one, all beginning together; each has its own order of the
same messages. Their answers are compared with those of one session in this process. `shared` has them all
ask one worker, `own` gives each a model of its own (with fewer titles: that many models on few processors are
slow), `one` is a single session that makes the same number of titles alone, one by one. Times are seconds,
memory is resident: of the worker, or of all clients together. The worker's is looked at before, after each
quarter of the titles, and a few seconds after the last one. The last line is JSON. The worker is one of its
own, in a temporary folder, and is ended afterwards.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tinykit import TinySession
from tinykit.lab import datasets
from tinykit.worker.memory import memory_bytes

MB = 1e6
SETTLE_S = 3.0  # after which a worker without work has given back what it can


def messages(count: int, shift: int = 0) -> list[str]:
    """So many messages, again from the first one where there are not enough."""
    known = [case.message for case in datasets.titles()]
    return [known[(shift + number) % len(known)] for number in range(count)]


def child(way: str, count: int, shift: int) -> None:
    """One client: ready, wait for the word, then titles one by one; a line of JSON."""
    session = TinySession(shared=way == "shared", progress=False)
    session.title("why does my docker container exit with code 137")
    print("ready", flush=True)
    sys.stdin.readline()
    seconds, titles = [], []
    for message in messages(count, shift):
        started = time.perf_counter()
        titles.append(session.title(message))
        seconds.append(time.perf_counter() - started)
        print("done", flush=True)
    print(json.dumps({"titles": titles, "seconds": seconds, "memory": memory_bytes()}), flush=True)


def start_child(way: str, count: int, shift: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--child", way, "--titles", str(count), "--shift", str(shift)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Quarters:
    """Counts what clients have done, and looks at the worker's memory after each quarter of it."""

    def __init__(self, total: int, session: TinySession | None) -> None:
        self.memory_mb: list[float] = []
        self._marks = [total * part // 4 for part in (1, 2, 3, 4)]
        self._session = session
        self._done = 0
        self._lock = threading.Lock()

    def look(self) -> None:
        if self._session is not None and (worker := self._session.worker) is not None:
            self.memory_mb.append(round((worker.memory_bytes or 0) / MB))

    def answer_of(self, process: subprocess.Popen[str]) -> dict[str, object]:
        """Read a client to its end; what it found."""
        for line in process.stdout:
            if line != "done\n":
                return json.loads(line)
            with self._lock:
                self._done += 1
                if self._done in self._marks:
                    self.look()
        raise RuntimeError("a client ended without an answer")


def clients(way: str, count: int, each: int, expected: dict[str, str | None]) -> dict[str, object]:
    """All clients together."""
    shifts = [number * 7 for number in range(count)]
    processes = [start_child(way, each, shift) for shift in shifts]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    with TinySession(shared=True, lazy=True, progress=False) as watcher:
        quarters = Quarters(count * each, watcher if way == "shared" else None)
        quarters.look()
        with ThreadPoolExecutor(count) as pool:
            started = time.perf_counter()
            for process in processes:
                process.stdin.write("go\n")
                process.stdin.flush()
            found = list(pool.map(quarters.answer_of, processes))
            elapsed_s = time.perf_counter() - started
        for process in processes:
            process.communicate()
        if way == "shared":
            time.sleep(SETTLE_S)
            quarters.look()
    seconds = sorted(one for answer in found for one in answer["seconds"])
    pairs = [
        (title, expected[message])
        for answer, shift in zip(found, shifts, strict=True)
        for title, message in zip(answer["titles"], messages(each, shift), strict=True)
    ]
    result: dict[str, object] = {
        "titles": len(pairs),
        "equal": sum(title == wanted for title, wanted in pairs),
        "titles_per_s": len(pairs) / elapsed_s,
        "median_s": statistics.median(seconds),
        "p95_s": seconds[int(0.95 * (len(seconds) - 1))],
        "clients_memory_mb": sum(answer["memory"] for answer in found) / MB,
    }
    if way == "shared":
        result["worker_memory_mb"] = quarters.memory_mb
    return result


def one(count: int, expected: dict[str, str | None]) -> dict[str, object]:
    """A session of its own in one process, which makes all titles one by one."""
    process = start_child("own", count, 0)
    assert process.stdout.readline() == "ready\n"
    started = time.perf_counter()
    answer = json.loads(process.communicate("go\n")[0].splitlines()[-1])
    elapsed_s = time.perf_counter() - started
    pairs = zip(answer["titles"], messages(count), strict=True)
    return {
        "titles": count,
        "equal": sum(title == expected[message] for title, message in pairs),
        "titles_per_s": count / elapsed_s,
        "median_s": statistics.median(answer["seconds"]),
        "clients_memory_mb": answer["memory"] / MB,
    }


START = """
import json, time
begun = time.perf_counter()
from tinykit import TinySession
imported = time.perf_counter()
session = TinySession(shared={shared}, progress=False)
ready = time.perf_counter()
session.title("raspberry pi 4 keeps rebooting with under-voltage warnings")
print(json.dumps([imported - begun, ready - imported, time.perf_counter() - ready]))
"""


def start(shared: bool, rounds: int) -> dict[str, float]:
    """A fresh program's import, its session, and its first title; medians."""
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        code = START.format(shared=shared)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        found.append([*json.loads(done.stdout), time.perf_counter() - began])
    names = ("import_s", "session_s", "title_s", "whole_s")
    return {
        name: statistics.median(times) for name, times in zip(names, zip(*found, strict=True), strict=True)
    }


def measure(options: argparse.Namespace) -> dict[str, object]:
    found: dict[str, object] = {
        "cpus": os.cpu_count(), "load": os.getloadavg()[0], "clients": options.clients,
    }  # fmt: skip
    ways = options.ways.split(",")
    wanted = dict.fromkeys(
        message
        for number in range(options.clients)
        for message in messages(max(options.titles, options.own_titles), number * 7)
    )
    if "one" in ways:
        wanted.update(dict.fromkeys(messages(options.clients * options.titles)))
    with TinySession(progress=False) as session:
        expected = {message: session.title(message) for message in wanted}
    found["start_own"] = shown("start, a model of its own", start(False, options.starts))
    with TinySession(shared=True, progress=False) as session:  # its worker is warm from here on
        found["start_shared"] = shown("start, a warm worker", start(True, options.starts))
        if "shared" in ways:
            facts = clients("shared", options.clients, options.titles, expected)
            found["shared"] = shown("shared", facts)
        stop(session.worker.pid)
    if "one" in ways:
        found["one"] = shown("one", one(options.clients * options.titles, expected))
    if "own" in ways:
        found["own"] = shown("own", clients("own", options.clients, options.own_titles, expected))
    return found


def stop(pid: int) -> None:
    import signal

    os.kill(pid, signal.SIGTERM)


def shown(name: str, facts: dict[str, object]) -> dict[str, object]:
    """The facts, printed as soon as they are known."""
    print(f"\n{name}")
    for fact, value in facts.items():
        print(f"  {fact:24} {value:.2f}" if isinstance(value, float) else f"  {fact:24} {value}", flush=True)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--titles", type=int, default=200)
    parser.add_argument("--own-titles", type=int, default=5, help="of each client with a model of its own")
    parser.add_argument("--ways", default="shared,one,own")
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--child")
    parser.add_argument("--shift", type=int, default=0)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.titles, options.shift)
        return
    with tempfile.TemporaryDirectory(prefix="tk-") as folder:
        os.environ["TINYKIT_WORKER_DIR"] = str(Path(folder) / "run")
        print(f"{options.clients} clients, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
        print(json.dumps(measure(options)))


if __name__ == "__main__":
    main()
