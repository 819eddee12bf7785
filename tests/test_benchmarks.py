"""What the scripts of `benchmarks/` say of options that cannot be used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tinykit

FOLDER = Path(tinykit.__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("name", ["agreement", "choices", "memory"])
def test_model_that_nobody_knows_is_no_traceback(name):
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), "--model", "smolm2-135m"],
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent)}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    said, advice = done.stderr.splitlines()
    assert said == "There is no model 'smolm2-135m'" and "Did you mean smollm2-135m" in advice
