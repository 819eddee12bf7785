"""What it costs to open a graph whose weights lie elsewhere, as those of the hub's cache do.

    python benchmarks/opening.py [--model KEY] [--dtype NAME] [--rounds 5]

The imported graph of the model is put alone into a folder, and its weights into one like the hub's cache,
where names are links to files named by their hash. Medians over fresh processes, from the import of ONNX
Runtime on: `copied` hands the files over in memory, `mapped` is what tinykit does, `beside` is the imported
graph as it lies. `resident` is what is held once it is open, with those pages of mapped files that were
touched. The logits of all three have to be the same. Figures: docs/speed.md, "Start".
Works on Linux; the last line is JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from plain_errors import positive, run

from tinykit import TinySession

WAYS = ("copied", "mapped", "beside")
CHILD = """
import hashlib, json, resource, sys, time
from pathlib import Path
from tinykit.backends import onnx_session
from tinykit.backends.onnx import OnnxBackend
from tinykit.optional import onnxruntime_library
way, graph = sys.argv[1], Path(sys.argv[2])
data = {name: Path(path) for name, path in json.loads(sys.argv[3])}
def bytes_of(name):  # what getrusage says of the peak begins with that of the parent
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))
if way == "copied":
    onnx_session.locate = lambda path, data: None
onnxruntime_library()
before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
backend = OnnxBackend(graph, dtype="x", context_length=2048, data=data)
open_s, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
peak, resident = bytes_of("VmHWM"), bytes_of("VmRSS")
logits = backend.forward([*range(1, 61)], backend.new_state())
print(json.dumps({
    "open_s": open_s,
    "processor_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    "faults": after.ru_minflt - before.ru_minflt,
    "peak_mb": peak / 1e6,
    "resident_mb": resident / 1e6,
    "logits": hashlib.sha256(logits.tobytes()).hexdigest(),
}))
"""


def lay_out(graph: Path, folder: Path) -> dict[str, tuple[Path, dict[str, Path]]]:
    """For each way the graph, and its weights by their names."""
    blobs, snapshot, store = (folder / name for name in ("blobs", "snapshots/main/onnx", "store"))
    for made in (blobs, snapshot, store):
        made.mkdir(parents=True)
    alone = store / "graph.onnx"
    alone.write_bytes(graph.read_bytes())
    data = {}
    for number, file in enumerate(sorted(graph.parent.glob(f"{graph.name}_data*"))):
        (blobs / f"{number:064}").write_bytes(file.read_bytes())
        data[file.name] = snapshot / file.name
        data[file.name].symlink_to(blobs / f"{number:064}")
    return {"copied": (alone, data), "mapped": (alone, data), "beside": (graph, {})}


def measure(way: str, graph: Path, data: dict[str, Path]) -> dict[str, float]:
    files = json.dumps([(name, str(path)) for name, path in data.items()])
    command = [sys.executable, "-c", CHILD, way, str(graph), files]
    root = str(Path(__file__).parent.parent)
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--dtype")
    parser.add_argument("--rounds", type=positive, default=5)
    arguments = parser.parse_args()
    with TinySession(arguments.model, dtype=arguments.dtype, progress=False) as session:
        graph = next(session.load().folder.rglob("*.onnx"))
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        laid_out = lay_out(graph, Path(folder))
        for way in WAYS:
            measure(way, *laid_out[way])  # reads the files from the disk
        for _ in range(arguments.rounds):
            for way in WAYS:
                found[way].append(measure(way, *laid_out[way]))
    if len({row.pop("logits") for rows in found.values() for row in rows}) != 1:
        raise SystemExit("the logits differ")
    medians = {
        way: {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        for way, rows in found.items()
    }
    for way, row in medians.items():
        print(
            f"{way:8} {row['open_s']:6.2f} s  processor {row['processor_s']:5.2f} s  faults "
            f"{row['faults']:7.0f}  peak {row['peak_mb']:5.0f} MB  resident {row['resident_mb']:5.0f} MB"
        )
    print(json.dumps(medians))


if __name__ == "__main__":
    run(main)
