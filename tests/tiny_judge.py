"""A tiny judge model with random weights: an encoder graph of Julia-1's contract, and what numpy says it computes.

Its tokenizer has one token for each ASCII character, whose id is the character's code.
"""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

PAD, SEP, CLS, UNK, MASK = range(5)
SPECIALS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
NAMES = {"pad_token": "<pad>", "sep_token": "<eos>", "cls_token": "<bos>", "mask_token": "<mask>"}
VOCAB_SIZE, HIDDEN = 128, 16
KINDS = 3
_INT64, _BOOL, _FLOAT = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT


def tokenizer():
    vocabulary = {token: index for index, token in enumerate(SPECIALS)}
    vocabulary |= {chr(code): code for code in range(32, 127)}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return raw


def weights(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "embedding": rng.standard_normal((VOCAB_SIZE, HIDDEN)).astype(np.float32),
        "kinds": rng.standard_normal((KINDS, HIDDEN)).astype(np.float32),
        "mix": (rng.standard_normal((HIDDEN, HIDDEN)) / 2).astype(np.float32),
        "head": rng.standard_normal((HIDDEN, 1)).astype(np.float32),
    }


def graph(w=None, *, extra_input=None, markers="marker_pos", output="logits", int_type=_INT64):
    """Each option sees its mark, the token after it, the mean of all tokens that are no padding, and the kind."""
    w = weights() if w is None else w

    def constant(name, values):
        w_tensors.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    w_tensors = [numpy_helper.from_array(values, name) for name, values in w.items()]
    last = constant("last", np.array([-1], np.int64))
    one = constant("one", np.array([1], np.int64))
    node = helper.make_node
    nodes = [
        node("Cast", ["input_ids"], ["ids"], to=_INT64),
        node("Cast", ["attention_mask"], ["attention"], to=_FLOAT),
        node("Gather", ["embedding", "ids"], ["tokens"]),
        node("Unsqueeze", ["attention", last], ["weight"]),
        node("Mul", ["tokens", "weight"], ["kept"]),
        node("ReduceSum", ["kept", one], ["sum"]),
        node("ReduceSum", ["weight", one], ["count"]),
        node("Div", ["sum", "count"], ["mean"]),
        node("Cast", [markers], ["first"], to=_INT64),
        node("Add", ["first", one], ["second"]),
        node("GatherElements", ["ids", "first"], ["first_ids"], axis=1),
        node("GatherElements", ["ids", "second"], ["second_ids"], axis=1),
        node("Gather", ["embedding", "first_ids"], ["marks"]),
        node("Gather", ["embedding", "second_ids"], ["begins"]),
        node("Cast", ["qtype"], ["kind_ids"], to=_INT64),
        node("Gather", ["kinds", "kind_ids"], ["kind"]),
        node("Unsqueeze", ["kind", one], ["kind_row"]),
        node("Add", ["marks", "begins"], ["a"]),
        node("Add", ["a", "mean"], ["b"]),
        node("Add", ["b", "kind_row"], ["c"]),
        node("MatMul", ["c", "mix"], ["d"]),
        node("Tanh", ["d"], ["e"]),
        node("MatMul", ["e", "head"], ["f"]),
        node("Squeeze", ["f", last], ["g"]),
        node("Where", ["marker_mask", "g", constant("never", np.float32(-1e4))], [output]),
    ]
    inputs = [
        helper.make_tensor_value_info("input_ids", int_type, ["batch", "sequence"]),
        helper.make_tensor_value_info("attention_mask", int_type, ["batch", "sequence"]),
        helper.make_tensor_value_info(markers, int_type, ["batch", "options"]),
        helper.make_tensor_value_info("marker_mask", _BOOL, ["batch", "options"]),
        helper.make_tensor_value_info("qtype", int_type, ["batch"]),
    ]
    if extra_input:
        inputs.append(helper.make_tensor_value_info(extra_input, int_type, ["batch", "sequence"]))
    outputs = [helper.make_tensor_value_info(output, _FLOAT, ["batch", "options"])]
    model = helper.make_model(
        helper.make_graph(nodes, "judge", inputs, outputs, w_tensors),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    onnx.checker.check_model(model)
    return model


def reference(rows, w=None):
    """Logits of one row after the other, without any padding."""
    w = {name: values.astype(np.float64) for name, values in (weights() if w is None else w).items()}
    found = []
    for row in rows:
        tokens = w["embedding"][list(row.ids)]
        at = np.array(row.markers)
        x = tokens[at] + tokens[at + 1] + tokens.mean(axis=0) + w["kinds"][row.kind]
        found.append((np.tanh(x @ w["mix"]) @ w["head"])[:, 0].tolist())
    return found


def write_judge(folder: Path, *, names=NAMES, config=None, **options) -> Path:
    """A folder as the hub repo of Julia-1 has it: graph, weights beside it, tokenizer, no config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(
        graph(**options),
        folder / "model.onnx",
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=64,
    )
    tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder
