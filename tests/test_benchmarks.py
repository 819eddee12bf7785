"""What the scripts of `benchmarks/` say of options that cannot be used."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tinykit

FOLDER = Path(tinykit.__file__).parents[1] / "benchmarks"


def test_all_graph_passes_leave_the_logits_as_they_are():
    done = script("graph_passes", "--layers", "1", "--rounds", "1", "--tokens", "8", "--bits", "4")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    found = {row["graph"]: row["similarity"] for row in result["rows"] if "graph" in row}
    assert {"as exported", "accuracy_level", "last_logits", "all passes"} <= set(found)
    assert min(found.values()) > 0.999


def script(name, *options):
    return subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *options],
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent)}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["opening", "shapes", "startup", "threads"])
def test_no_rounds_are_refused(name):
    done = script(name, "--rounds", "0")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("must be a whole number from 1 on, got '0'")


@pytest.mark.parametrize("name", ["agreement", "choices", "memory", "opening", "startup", "threads"])
def test_model_that_nobody_knows_is_no_traceback(name):
    done = script(name, "--model", "smolm2-135m")
    assert (done.returncode, done.stdout) == (1, "")
    said, advice = done.stderr.splitlines()
    assert said == "There is no model 'smolm2-135m'" and "Did you mean smollm2-135m" in advice
