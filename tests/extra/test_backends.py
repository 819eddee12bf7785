"""The embedded model on transformers writes what it writes on ONNX Runtime. Needs torch (`make test-extra`)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tinykit
from tinykit.optional import installed

SCRIPT = Path(tinykit.__file__).parents[1] / "benchmarks" / "backends.py"
MESSAGES = 5


@pytest.mark.real
@pytest.mark.timeout(1800)  # float weights are written twice the first time; a busy machine needs minutes
@pytest.mark.skipif(not (installed("torch") and installed("transformers")), reason="torch is not installed")
def test_transformers_writes_the_titles_of_onnx(use_real_home):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--backends", "onnx", "transformers", "--messages", str(MESSAGES)],
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}, capture_output=True, text=True, timeout=1700,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    for backend in ("onnx", "transformers"):  # neither was left out
        assert figures[backend]["unexplained"] == 0
    found = figures["transformers"]
    assert found["same_tokens"] + len(found["differences"]) == MESSAGES
    assert found["max_logit_error"] < 1e-2  # 7.8e-5 when this was written
