"""A checkpoint folder to a model of onnxruntime-genai with 8 bits a weight, by its own builder.

``python -m tinykit.peers.convert_genai FOLDER TARGET``; blocks of 32, symmetric, int8 activations.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from typing import Any


def main(source: str, target: str) -> None:
    """Convert."""
    builder: Any = import_module("onnxruntime_genai.models.builder")
    options = ["block_size=32", "accuracy_level=4", "is_symmetric=true"]
    with tempfile.TemporaryDirectory() as cache:
        given = builder.parse_extra_options("", source, target, "int8", "cpu", cache, options)
        builder.create_model("", source, target, "int8", "cpu", cache, **given)


if __name__ == "__main__":
    main(*sys.argv[1:3])
