"""Write an ONNX graph piece by piece, its large tensors straight into one external data file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

_INLINE_BYTES = 1024  # smaller tensors stay inside the graph file
_ALIGNMENT = 64
_MICROSOFT = "com.microsoft"
_OPSET, _IR_VERSION = 21, 10


class GraphWriter:
    """Collects nodes and tensors; `save` writes the graph file beside the data file.

    Tensors are written when they are added, so at most one of them is in memory at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data_path = path.with_name(path.name + "_data")
        self._file: BinaryIO = self.data_path.open("wb")
        self._nodes: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def close(self) -> None:
        """Close the data file; `save` does it too."""
        self._file.close()

    def constant(self, name: str, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> str:
        """Add a tensor under `name` (once) and return the name."""
        from onnx import TensorProto, helper, numpy_helper

        if name in self._initializers:
            return name
        array = np.ascontiguousarray(values, dtype=dtype).reshape(np.shape(values))
        if array.nbytes < _INLINE_BYTES:
            tensor = numpy_helper.from_array(array, name)
        else:
            self._file.write(b"\0" * (-self._file.tell() % _ALIGNMENT))
            tensor = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
            tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
            place = {
                "location": self.data_path.name,
                "offset": self._file.tell(),
                "length": array.nbytes,
            }
            for key, value in place.items():
                tensor.external_data.add(key=key, value=str(value))
            self._file.write(array.data)
        self._initializers[name] = tensor
        return name

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        outputs: str | Sequence[str],
        *,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Add a node and return the name of its first output."""
        from onnx import helper

        names = [outputs] if isinstance(outputs, str) else list(outputs)
        self._nodes.append(
            helper.make_node(op, list(inputs), names, name=f"{names[0]}/{op}", domain=domain, **attributes)
        )
        return names[0]

    def contrib(self, op: str, inputs: Sequence[str], outputs: str | Sequence[str], **attributes: Any) -> str:
        """Add one of ONNX Runtime's own operators.

        Their specifications: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
        """
        return self.node(op, inputs, outputs, domain=_MICROSOFT, **attributes)

    def input(self, name: str, dtype: npt.DTypeLike, shape: Sequence[int | str]) -> str:
        """Declare a graph input."""
        self._inputs.append(_value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: npt.DTypeLike, shape: Sequence[int | str]) -> str:
        """Declare a graph output."""
        self._outputs.append(_value_info(name, dtype, shape))
        return name

    def save(self, metadata: dict[str, str]) -> None:
        """Write the graph file, with `metadata` as its properties."""
        from onnx import helper

        self._file.close()
        graph = helper.make_graph(
            self._nodes, "decoder", self._inputs, self._outputs, list(self._initializers.values())
        )
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_MICROSOFT, 1)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=_IR_VERSION, producer_name="tinykit"
        )
        helper.set_model_props(model, metadata)
        self.path.write_bytes(model.SerializeToString())


def _value_info(name: str, dtype: npt.DTypeLike, shape: Sequence[int | str]) -> Any:
    from onnx import helper

    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
