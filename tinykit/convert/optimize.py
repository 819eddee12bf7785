"""What a foreign decoder graph can do, and passes that make it faster without changing its answers.

A pass is one function that changes a model in place and returns how many nodes it changed; `PASSES` lists
them. Weights that lie in files beside the graph are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from tinykit.backends.signature import NO_HINTS, Port, StateHints, find_states, present_name
from tinykit.errors import ModelFileError
from tinykit.graph_data import data_names

# Raise when what is written or found changes; graphs prepared by another version are not used.
OPTIMIZE_VERSION: Final = 3

_ATTENTION = "GroupQueryAttention"
_PAST_SLOTS = {3: 1, 4: 2}  # its inputs past_key and past_value, and the outputs that carry them on
_ROTARY_SLOTS = {
    (_ATTENTION, "com.microsoft"): 7,
    ("RotaryEmbedding", "com.microsoft"): 2,
    ("RotaryEmbedding", ""): 1,
}
_FAST_LEVEL = 4  # of MatMulNBits: int8 activations
_KEEP_INPUTS = ("num_logits_to_keep", "logits_to_keep")
_HEADS = ("MatMul", "FusedMatMul", "MatMulNBits", "MatMulBnb4", "MatMulInteger")
_UNARY, _BINARY = ("Cast", "Identity", "Tanh"), ("Mul", "Div", "Add", "Sub")
_END = 2**62
_EMBEDDED_BYTES = 1024  # smaller tensors stay inside the graph
_ALIGNMENT = 64
_FLOAT_TYPES = (1, 10, 16)  # onnx.TensorProto.FLOAT, FLOAT16, BFLOAT16


@dataclass(frozen=True)
class GraphFacts:
    """What the graph itself says.

    Attributes:
        dtype: Precision of the weights, told by the operators.
        shared_kv: Whether one buffer may be bound as past and present of every growing state.
        windows: Tokens that a ring buffer must hold, by name of its state input.
        rotary_rows: Positions in the shortest rotary table; None if there is no table.
        data: Names of the files with the weights.
    """

    dtype: str
    shared_kv: bool
    windows: Mapping[str, int] = field(default_factory=dict)
    rotary_rows: int | None = None
    data: tuple[str, ...] = ()


def read_graph(path: Path) -> Any:
    """The graph as an `onnx.ModelProto`, without the weights that lie in other files.

    Raises:
        ModelFileError: it cannot be parsed.
    """
    import onnx

    try:
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf has several kinds
        raise ModelFileError(
            f"{path} is not a readable ONNX graph: {error}",
            hint="The file may be cut short; fetch it again.",
            path=path,
        ) from error


def inspect_graph(model: Any, hints: StateHints = NO_HINTS) -> GraphFacts:
    """Read what a runner must know.

    Raises:
        UnsupportedModelError: an input that is neither known nor a state, or a state of unknown size.
    """
    windows = _ring_buffers(model)
    hints = replace(hints, windows={**windows, **hints.windows})
    states = find_states(_ports(model.graph.input), _ports(model.graph.output), hints)
    growing = {state.past for state in states if state.growth_axis is not None}
    return GraphFacts(
        dtype=_weights_dtype(model),
        shared_kv=bool(growing) and growing <= _sharable(model, hints),
        windows=windows,
        rotary_rows=_rotary_rows(model),
        data=data_names(model),
    )


def set_accuracy_level(model: Any) -> int:
    """Let MatMulNBits nodes whose export left the level out compute with int8 activations.

    Without a level 8-bit weights take a path that is up to 80 times slower. Nodes with float zero points are
    left alone, they would become slower.
    """
    from onnx import helper

    floats = {t.name for t in model.graph.initializer if t.data_type in _FLOAT_TYPES}
    changed = 0
    for node in _nodes(model.graph):
        attributes = {a.name: a for a in node.attribute}
        bits = attributes["bits"].i if "bits" in attributes else 4
        level = attributes.get("accuracy_level")
        has_float_zeros = len(node.input) > 3 and node.input[3] in floats
        if node.op_type != "MatMulNBits" or (level and level.i) or has_float_zeros or bits not in (4, 8):
            continue
        if level is not None:
            node.attribute.remove(level)
        node.attribute.append(helper.make_attribute("accuracy_level", _FAST_LEVEL))
        changed += 1
    return changed


def keep_last_logits(model: Any) -> int:
    """Compute the logits of the last positions only, where the graph computes them for all.

    How many is told by a new input, as in our own graphs.

    The hidden states are cut right before the output head's multiplication. Nothing is done if something else
    than elementwise operations with constants lies between it and the logits.
    """
    from onnx import TensorProto, helper, numpy_helper

    graph = model.graph
    output = next((value for value in graph.output if value.name == "logits"), None)
    if output is None or any(value.name in _KEEP_INPUTS for value in graph.input):
        return 0
    chain = _logits_chain(graph, output)
    if chain is None:
        return 0
    head = chain[-1]
    graph.input.append(helper.make_tensor_value_info(_KEEP_INPUTS[0], TensorProto.INT64, [1]))
    start, end, axis = (f"tinykit.last.{name}" for name in ("start", "end", "axis"))
    for name, value in ((end, [_END]), (axis, [1])):
        graph.initializer.append(numpy_helper.from_array(_int64(value), name))
    negative = helper.make_node("Neg", [_KEEP_INPUTS[0]], [start], name=start)
    cut = helper.make_node("Slice", [head.input[0], start, end, axis], ["tinykit.last"], name="tinykit.last")
    head.input[0] = "tinykit.last"
    place = list(graph.node).index(head)
    graph.node.insert(place, cut)
    graph.node.insert(place, negative)
    stale = {name for node in chain for name in node.output}
    kept = [value for value in graph.value_info if value.name not in stale]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    output.type.tensor_type.shape.dim[1].Clear()
    output.type.tensor_type.shape.dim[1].dim_param = "num_logits"
    return 1


PASSES: Final[dict[str, Callable[[Any], int]]] = {
    "accuracy_level": set_accuracy_level,
    "last_logits": keep_last_logits,
}


def apply_passes(model: Any) -> tuple[str, ...]:
    """Apply all passes in place; returns the names of those that changed something."""
    return tuple(name for name, change in PASSES.items() if change(model))


def write_graph(model: Any, path: Path) -> Path | None:
    """Write the graph to `path`, large weights inside it to ``<path>_data``; returns that file, if any.

    Weights that already lie in other files keep their place there.
    """
    from onnx import TensorProto

    inside = [
        t for t in model.graph.initializer if t.HasField("raw_data") and len(t.raw_data) >= _EMBEDDED_BYTES
    ]
    data_path = path.with_name(f"{path.name}_data") if inside else None
    if data_path is not None:
        with data_path.open("wb") as file:
            for tensor in inside:
                file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                place = {"location": data_path.name, "offset": file.tell(), "length": len(tensor.raw_data)}
                file.write(tensor.raw_data)
                tensor.ClearField("raw_data")
                tensor.data_location = TensorProto.EXTERNAL
                for key, value in place.items():
                    tensor.external_data.add(key=key, value=str(value))
    path.write_bytes(model.SerializeToString())
    return data_path


# ---- reading the graph --------------------------------------------------------------------------


def _nodes(graph: Any) -> Iterator[Any]:
    """All nodes, also those inside the branches of an If."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _ports(values: Sequence[Any]) -> list[Port]:
    from onnx import TensorProto

    names = {
        TensorProto.FLOAT: "tensor(float)",
        TensorProto.FLOAT16: "tensor(float16)",
        TensorProto.INT64: "tensor(int64)",
        TensorProto.INT32: "tensor(int32)",
        TensorProto.BOOL: "tensor(bool)",
    }
    ports: list[Port] = []
    for value in values:
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
        kind = names.get(tensor.elem_type, f"type {tensor.elem_type}")
        ports.append(SimpleNamespace(name=value.name, type=kind, shape=shape))
    return ports


def _attribute(node: Any, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _ring_buffers(model: Any) -> dict[str, int]:
    """State inputs of attention nodes that keep the last tokens only, and how many those are."""
    return {
        node.input[slot]: _attribute(node, "local_window_size", 0)
        for node in model.graph.node
        if node.op_type == _ATTENTION and _attribute(node, "sliding_window_cache", 0)
        for slot in _PAST_SLOTS
    }


def _sharable(model: Any, hints: StateHints) -> set[str]:
    """State inputs that only an attention node reads which writes their continuation itself.

    Such a node appends in place if past and present are the same memory:
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GroupQueryAttention
    """
    outputs = {value.name: value for value in model.graph.output}
    readers: dict[str, list[str | None]] = {}
    for node in _nodes(model.graph):
        for slot, name in enumerate(node.input):
            carried = None
            if node.op_type == _ATTENTION and slot in _PAST_SLOTS and len(node.output) > _PAST_SLOTS[slot]:
                carried = node.output[_PAST_SLOTS[slot]]
            readers.setdefault(name, []).append(carried)
    return {
        value.name
        for value in model.graph.input
        if (present := present_name(value.name, outputs, hints)) and readers.get(value.name) == [present]
    }


def _rotary_rows(model: Any) -> int | None:
    rows = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if len(tensor.dims) == 2}
    found = []
    for node in model.graph.node:
        slot = _ROTARY_SLOTS.get((node.op_type, node.domain))
        if slot is not None and len(node.input) > slot and node.input[slot] in rows:
            found.append(int(rows[node.input[slot]]))
    return min(found, default=None)


def _weights_dtype(model: Any) -> str:
    kinds = {node.op_type for node in _nodes(model.graph)}
    floats = {t.data_type for t in model.graph.initializer if len(t.dims) > 1}
    half = "f16" if 10 in floats else ""  # onnx.TensorProto.FLOAT16
    if "MatMulNBits" in kinds:
        bits = [_attribute(node, "bits", 4) for node in _nodes(model.graph) if node.op_type == "MatMulNBits"]
        return f"q{min(bits)}{half}"
    if "MatMulBnb4" in kinds:
        return "bnb4"
    if "MatMulInteger" in kinds:
        return "q8"
    return "fp16" if half else "fp32"


def _logits_chain(graph: Any, output: Any) -> list[Any] | None:
    """The nodes from the logits back to the output head; None if a cut before the head is not safe."""
    makers = {name: node for node in graph.node for name in node.output}
    constants = {t.name: len(t.dims) for t in graph.initializer}
    constants |= {n.output[0]: -1 for n in graph.node if n.op_type == "Constant"}
    uses: dict[str, int] = {value.name: 1 for value in graph.output}
    for node in _nodes(graph):
        for name in node.input:
            uses[name] = uses.get(name, 0) + 1
    if len(output.type.tensor_type.shape.dim) != 3:
        return None
    chain, name = [], "logits"
    while (node := makers.get(name)) is not None and uses[name] == 1:
        chain.append(node)
        if node.op_type in _HEADS:
            return chain if _is_matrix(node, makers, constants) else None
        inputs = list(node.input)
        if node.op_type in _BINARY:
            inputs = [i for i in inputs if not _is_constant(i, makers, constants)]
        elif node.op_type not in _UNARY:
            return None
        if len(inputs) != 1:
            return None
        name = inputs[0]
    return None


def _is_constant(name: str, makers: Mapping[str, Any], constants: Mapping[str, int]) -> bool:
    """A constant, or the scale of dynamic quantisation, which is one number for the whole input."""
    if name in constants:
        return True
    maker = makers.get(name)
    if maker is None:
        return False
    if maker.op_type == "DynamicQuantizeLinear":
        return bool(name == maker.output[1])
    return maker.op_type == "Mul" and all(_is_constant(i, makers, constants) for i in maker.input)


def _is_matrix(head: Any, makers: Mapping[str, Any], constants: Mapping[str, int]) -> bool:
    """Whether the head multiplies by a matrix, so that its other factor has the three axes of the logits."""
    if head.op_type in ("MatMulNBits", "MatMulBnb4"):
        return True
    weights = head.input[1]
    while weights not in constants and weights in makers:
        maker = makers[weights]
        if maker.op_type not in ("Transpose", "Cast", "DequantizeLinear"):
            return False
        weights = maker.input[0]
    return constants.get(weights) == 2


def _int64(values: Sequence[int]) -> Any:
    import numpy as np

    return np.array(values, np.int64)
