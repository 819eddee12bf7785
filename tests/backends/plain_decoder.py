"""A tiny decoder as older hub exports are: plain operators, keys and values appended by Concat, a mask.

It also hands each token's embedding on to the second token after it, through a state of fixed size.
"""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

VOCAB_SIZE, WIDTH, CONTEXT = 50, 8, 64
_FAR = 2**62


def write(path: Path, *, seed: int = 0, all_logits: bool = True) -> Path:
    """Write the graph; without `all_logits` it gives those of the last token alone."""
    rng = np.random.default_rng(seed)
    weights = {"embed": (VOCAB_SIZE, WIDTH), "place": (CONTEXT, WIDTH), "head": (WIDTH, VOCAB_SIZE)}
    weights |= dict.fromkeys(("wq", "wk", "wv"), (WIDTH, WIDTH))
    constants = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in weights.items()}
    constants |= {f"n{n}": np.array([n]) for n in (-2, -1, 0, 1, 2)} | {"far": np.array([_FAR])}
    constants |= {"i0": np.array(0), "i1": np.array(1), "one": np.float32(1), "low": np.float32(-1e9)}
    constants |= {"zero": np.float32(0), "mask_axes": np.array([1, 2])}
    lines = """
        Gather embed input_ids > known; Gather place position_ids > placed; Add known placed > x
        MatMul x wq > q; MatMul x wk > k; MatMul x wv > v
        Unsqueeze q n1 > qh; Unsqueeze k n1 > kh; Unsqueeze v n1 > vh
        Concat:2 past_key_values.0.key kh > present.0.key
        Concat:2 past_key_values.0.value vh > present.0.value
        Transpose present.0.key > turned; MatMul qh turned > scores
        Shape attention_mask > mask_shape; Gather mask_shape i1 > total
        Shape input_ids > ids_shape; Gather ids_shape i1 > count
        Range i0 total i1 > columns; Sub total count > before; Range before total i1 > rows
        Unsqueeze rows n1 > rows_down; Greater columns rows_down > later; Where later low zero > causal
        Cast mask_float; Sub one mask_float > hidden; Mul hidden low > hiding
        Unsqueeze hiding mask_axes > hiding_wide; Add scores causal > ordered; Add ordered hiding_wide > seen
        Softmax seen > weights; MatMul weights present.0.value > mixed; Squeeze mixed n1 > read
        Transpose3 x > across; Concat:2 past_conv.0 across > line; Slice line n-2 far n2 > present_conv.0
        Slice line n0 n-2 n2 > delayed; Transpose3 delayed > delayed_down
        Add x read > y; Add y delayed_down > z; Slice z from far n1 > kept; MatMul kept head > logits
    """
    constants["from"] = np.array([-_FAR if all_logits else -1])
    nodes = [_node(line.split()) for line in lines.replace("\n", ";").split(";") if line.strip()]
    rows = "s" if all_logits else 1
    inputs = {"input_ids": ["b", "s"], "attention_mask": ["b", "t"], "position_ids": ["b", "s"]}
    past = {f"past_key_values.0.{part}": ["b", 1, "past", WIDTH] for part in ("key", "value")}
    present = {f"present.0.{part}": ["b", 1, "t", WIDTH] for part in ("key", "value")}
    graph = helper.make_graph(
        nodes,
        "plain",
        [helper.make_tensor_value_info(n, TensorProto.INT64, s) for n, s in inputs.items()]
        + _floats(past | {"past_conv.0": ["b", WIDTH, 2]}),
        _floats({"logits": ["b", rows, VOCAB_SIZE]} | present | {"present_conv.0": ["b", WIDTH, 2]}),
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _node(words):
    if words[0] == "Cast":
        return helper.make_node("Cast", ["attention_mask"], words[1:], to=TensorProto.FLOAT)
    op, *inputs = words[: words.index(">")]
    outputs = words[words.index(">") + 1 :]
    attributes = {"Transpose": {"perm": [0, 1, 3, 2]}, "Transpose3": {"perm": [0, 2, 1]}}.get(op, {})
    if ":" in op:
        op, axis = op.split(":")
        attributes = {"axis": int(axis)}
    return helper.make_node(op.removesuffix("3"), inputs, outputs, **attributes)


def _floats(shapes):
    return [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
