"""A fresh process from its start to a title on the screen, and where the time goes.

    python benchmarks/startup.py [--rounds 7] [--model KEY] [--recipe NAME]

Medians over fresh processes, the model imported before; peak memory is the largest resident size. `package_s`
is `import tinykit` in a bare Python, `extension_s` `%load_ext tinykit` in a bare IPython. The last line is
JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

MESSAGE = "why does my docker container exit with code 137"
CHILD = """
import json, resource, sys, time
start = time.perf_counter()
from tinykit.session import TinySession
session = TinySession({model!r}, recipe={recipe!r}, lazy=True, progress=False)
import onnxruntime, tokenizers, jinja2
imported = time.perf_counter()
session.load()
loaded = time.perf_counter()
result = session.title_result({message!r})
done = time.perf_counter()
timings = result.completion.timings if result.completion else None
scale = 1 if sys.platform == "darwin" else 1024
print(json.dumps({{
    "imports_s": imported - start,
    "load_s": loaded - imported,
    "prefill_s": timings.prefill_s if timings else 0.0,
    "decode_s": timings.decode_s if timings else 0.0,
    "rest_s": done - loaded - (timings.total_s if timings else 0.0),
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale,
    "title": result.text,
}}))
"""

PACKAGE = """
import time
start = time.perf_counter()
import tinykit
print(time.perf_counter() - start)
"""
EXTENSION = """
import time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
start = time.perf_counter()
shell.run_line_magic("load_ext", "tinykit")
print(time.perf_counter() - start)
"""


def timed(command: list[str]) -> tuple[float, str]:
    started = time.perf_counter()
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return time.perf_counter() - started, output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--model")
    parser.add_argument("--recipe")
    arguments = parser.parse_args()
    code = CHILD.format(model=arguments.model, recipe=arguments.recipe, message=MESSAGE)
    chosen = [f"--{name}={value}" for name in ("model", "recipe") if (value := getattr(arguments, name))]
    command = [sys.executable, "-m", "tinykit", "title", *chosen, MESSAGE]
    timed(command)  # imports the model if that has not been done, and warms the page cache
    rows, walls, bare = [], [], []
    starts: dict[str, list[float]] = {"package_s": [], "extension_s": []}
    for _ in range(arguments.rounds):
        bare.append(timed([sys.executable, "-c", "pass"])[0])
        walls.append(timed(command)[0])
        rows.append(json.loads(timed([sys.executable, "-c", code])[1]))
        for name, child in (("package_s", PACKAGE), ("extension_s", EXTENSION)):
            starts[name].append(float(timed([sys.executable, "-c", child])[1]))
    figures = {"python_s": statistics.median(bare), "command_s": statistics.median(walls)}
    for name in ("imports_s", "load_s", "prefill_s", "decode_s", "rest_s"):
        figures[name] = statistics.median(row[name] for row in rows)
    figures |= {name: statistics.median(seconds) for name, seconds in starts.items()}
    for name, seconds in figures.items():
        print(f"{name:<11} {seconds:7.3f}")
    figures |= {"peak_bytes": max(row["peak_bytes"] for row in rows), "title": rows[0]["title"]}
    print(f"peak        {figures['peak_bytes'] / 1e6:7.0f} MB   title: {figures['title']}")
    figures |= {"load_average": os.getloadavg()[0], "cores": os.cpu_count()}
    print(json.dumps({name: round(v, 4) if isinstance(v, float) else v for name, v in figures.items()}))


if __name__ == "__main__":
    main()
