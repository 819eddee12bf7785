"""A fresh process from its start to a title on the screen, and where the time goes.

    python benchmarks/startup.py [--rounds 9] [--model KEY] [--recipe NAME]

Medians over fresh processes, the model imported before; peak memory is the largest resident size. `total_s`
is that of a process that is asked from Python; in each process it is the sum of `python_s` (start and end of
the interpreter), `imports_s`, `load_s`, `prefill_s` (all prompts), `decode_s` (all steps of all answers),
`rest_s` (our own work on the title) and `close_s`. `command_s` is `tinykit title`, `package_s` is `import
tinykit` in a bare Python, `extension_s` `%load_ext tinykit` in a bare IPython. The children find bytecode, as
those of an installed package do. The last line is JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

from plain_errors import positive, run

from tinykit.loading import DEFAULT_MODEL
from tinykit.recipes import get_recipe
from tinykit.registry import get_model

MESSAGE = "why does my docker container exit with code 137"
CHILD = """
import time
start = time.perf_counter()
import json, sys
from tinykit.session import TinySession
session = TinySession({model!r}, recipe={recipe!r}, lazy=True, progress=False)
from tinykit.optional import onnxruntime_library
onnxruntime_library()
import tokenizers, jinja2
imported = time.perf_counter()
session.load()
loaded = time.perf_counter()
spent = {{"prefill_s": 0.0, "decode_s": 0.0}}
def watched(forward, is_batch=False):
    def timed(token_ids, *arguments, **options):
        begun = time.perf_counter()
        try:
            return forward(token_ids, *arguments, **options)
        finally:
            name = "decode_s" if is_batch or len(token_ids) == 1 else "prefill_s"
            spent[name] += time.perf_counter() - begun
    return timed
def new_batch():
    batch = make_batch()
    batch.forward = watched(batch.forward, True)
    return batch
backend = session.load().engine.backend
make_batch = backend.new_batch
backend.forward, backend.new_batch = watched(backend.forward), new_batch
result = session.title_result({message!r})
done = time.perf_counter()
session.close()
closed = time.perf_counter()
try:
    import resource
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
except ImportError:  # Windows
    peak = 0
print(json.dumps({{
    "imports_s": imported - start,
    "load_s": loaded - imported,
    **spent,
    "rest_s": done - loaded - sum(spent.values()),
    "close_s": closed - done,
    "peak_bytes": peak,
    "title": result.text,
}}))
"""
PARTS = ("imports_s", "load_s", "prefill_s", "decode_s", "rest_s", "close_s")

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


# where bytecode may not be written beside the sources, an installed package has it all the same
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def timed(command: list[str]) -> tuple[float, str]:
    started = time.perf_counter()
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=ENVIRONMENT).stdout
    return time.perf_counter() - started, output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=positive, default=9)
    parser.add_argument("--model")
    parser.add_argument("--recipe")
    arguments = parser.parse_args()
    get_model(arguments.model or DEFAULT_MODEL)  # an unknown one is told here, in a line
    if arguments.recipe:
        get_recipe(arguments.recipe)
    with tempfile.TemporaryDirectory(prefix="tinykit-startup-") as bytecode:
        ENVIRONMENT.setdefault("PYTHONPYCACHEPREFIX", bytecode)
        measure(arguments)


def measure(arguments: argparse.Namespace) -> None:
    code = CHILD.format(model=arguments.model, recipe=arguments.recipe, message=MESSAGE)
    chosen = [f"--{name}={value}" for name in ("model", "recipe") if (value := getattr(arguments, name))]
    command = [sys.executable, "-m", "tinykit", "title", *chosen, MESSAGE]
    timed(command)  # imports the model if that has not been done, and warms the page cache
    for child in (code, EXTENSION):
        timed([sys.executable, "-c", child])
    rows, walls = [], []
    starts: dict[str, list[float]] = {"package_s": [], "extension_s": []}
    for _ in range(arguments.rounds):
        walls.append(timed(command)[0])
        total_s, output = timed([sys.executable, "-c", code])
        row = json.loads(output)
        rows.append({**row, "total_s": total_s, "python_s": total_s - sum(row[name] for name in PARTS)})
        for name, child in (("package_s", PACKAGE), ("extension_s", EXTENSION)):
            starts[name].append(float(timed([sys.executable, "-c", child])[1]))
    figures = {"command_s": statistics.median(walls)}
    for name in ("total_s", "python_s", *PARTS):
        figures[name] = statistics.median(row[name] for row in rows)
    figures |= {name: statistics.median(seconds) for name, seconds in starts.items()}
    for name, seconds in figures.items():
        print(f"{name:<11} {seconds:7.3f}")
    figures |= {"peak_bytes": max(row["peak_bytes"] for row in rows), "title": rows[0]["title"]}
    print(f"peak        {figures['peak_bytes'] / 1e6:7.0f} MB   title: {figures['title']}")
    figures |= {"load_average": os.getloadavg()[0], "cores": os.cpu_count()}
    print(json.dumps({name: round(v, 4) if isinstance(v, float) else v for name, v in figures.items()}))


if __name__ == "__main__":
    run(main)
