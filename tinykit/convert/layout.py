"""What is made of weights: the versions that name its folder, and the graph in it.

Apart from the code that makes it, so that a finished import is found without that.
"""

from __future__ import annotations

from typing import Final, Literal

DecoderDtype = Literal["fp32", "q8", "q4", "w8a8"]
# Raise when what is written means something else; folders made by another version are not used.
IMPORT_VERSION: Final = 1
EXPORT_VERSION: Final = 1
GRAPH_NAMES: Final[dict[DecoderDtype, str]] = {
    "fp32": "model.onnx",
    "q8": "model_quantized.onnx",
    "q4": "model_q4.onnx",
    "w8a8": "model_w8a8.onnx",
}
