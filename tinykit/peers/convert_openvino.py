"""A GGUF file with float weights to an OpenVINO model with 8 bits a weight, by OpenVINO's own tools.

``python -m tinykit.peers.convert_openvino FOLDER TARGET``: OpenVINO GenAI reads ``model.gguf`` in `FOLDER`
and saves its graph and tokenizer there, nncf compresses the weights by channel, as optimum's int8 does.
"""

from __future__ import annotations

import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def main(source: Path, target: Path) -> None:
    """Convert."""
    nncf: Any = import_module("nncf")
    openvino: Any = import_module("openvino")
    genai: Any = import_module("openvino_genai")
    genai.LLMPipeline(str(source / "model.gguf"), "CPU", enable_save_ov_model=True)
    model = openvino.Core().read_model(source / "openvino_model.xml")
    small = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    openvino.save_model(small, target / "openvino_model.xml", compress_to_fp16=False)
    for path in source.glob("openvino_*tokenizer.*"):
        shutil.copy(path, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
