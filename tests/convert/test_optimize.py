import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.fixtures import precisions
from tests.test_families import FIXTURES
from tinykit.backends.onnx import OnnxBackend
from tinykit.backends.signature import StateHints
from tinykit.convert.optimize import (
    PASSES,
    apply_passes,
    inspect_graph,
    keep_last_logits,
    read_graph,
    set_accuracy_level,
    write_graph,
)
from tinykit.errors import ModelFileError, UnsupportedModelError
from tinykit.model_config import read_config

IDS = [1, 40, 41, 42, 200, 258, 259, 260, 7, 9]
GENAI = FIXTURES / "genai"


def hints_of(folder):
    config = read_config({path.name: path for path in folder.iterdir()})
    return StateHints(config.sizes, config.windows(), config.presents())


def logits_of(path, hints, *, shared=False, data=None):
    options = {"dtype": "x", "context_length": 512, "threads": 1, "shared_kv": shared}
    backend = OnnxBackend(path, hints=hints, data=data, **options)
    state = backend.new_state()
    return np.stack([backend.forward(piece, state).copy() for piece in (IDS, [5], [6, 7, 8])])


CASES = [
    ("genai/llama-int4", "model.onnx", ("last_logits",)),
    ("genai/qwen3-int8", "model.onnx", ("last_logits",)),
    ("genai/gemma3-int4", "model.onnx", ("last_logits",)),
    ("hub/llama", "onnx/model_q4.onnx", ("accuracy_level",)),
    ("hub/gemma3", "onnx/model_q4f16.onnx", ("accuracy_level",)),
    ("hub/falcon_h1", "onnx/model_q4.onnx", ("accuracy_level",)),
    ("hub/gpt2", "onnx/model_fp16.onnx", ("last_logits",)),
    ("hub/gpt2", "onnx/model_quantized.onnx", ("last_logits",)),
    ("legacy/gpt2", "onnx/decoder_model_merged.onnx", ("last_logits",)),
    ("hub/llama", "onnx/model_quantized.onnx", ()),
]


@pytest.mark.parametrize(("folder", "name", "passes"), CASES, ids=[f"{f}-{n}" for f, n, _ in CASES])
def test_passes_leave_the_answers_as_they_are(folder, name, passes, tmp_path):
    folder, path = FIXTURES / folder, FIXTURES / folder / name
    hints = hints_of(folder)
    model = read_graph(path)
    facts = inspect_graph(model, hints)
    assert apply_passes(model) == passes
    own = write_graph(model, tmp_path / "graph.onnx")
    data = {file: path.parent / file for file in facts.data} | ({own.name: own} if own else {})
    before, after = logits_of(path, hints), logits_of(tmp_path / "graph.onnx", hints, data=data)
    # int8 activations round once more; cutting positions off changes the order of sums at most
    tolerance = 0.05 if passes == ("accuracy_level",) else 1e-3 if "fp16" in name else 1e-5
    np.testing.assert_allclose(after, before, atol=np.abs(before).max() * tolerance)
    assert (after.argmax(-1) == before.argmax(-1)).all()


def test_every_pass_is_among_these_cases():
    assert {name for *_, passes in CASES for name in passes} == set(PASSES)


@pytest.mark.parametrize("bits", [4, 8])
def test_accuracy_level_leaves_the_answers_in_both_widths(bits, tmp_path):
    model = precisions.nbits(onnx.load(FIXTURES / "hub/llama/onnx/model.onnx"), bits)
    before, after = tmp_path / "before.onnx", tmp_path / "after.onnx"
    onnx.save(model, before)
    assert apply_passes(model) == ("accuracy_level",)
    onnx.save(model, after)
    old, new = (logits_of(path, StateHints()) for path in (before, after))
    np.testing.assert_allclose(new, old, atol=np.abs(old).max() * 0.02)
    assert (new.argmax(-1) == old.argmax(-1)).all()


def test_shared_buffers_give_the_logits_of_plain_feeds_for_foreign_graphs():
    for name in ("llama-int4", "gemma3-int4", "qwen3-int8"):
        path, hints = GENAI / name / "model.onnx", hints_of(GENAI / name)
        assert inspect_graph(read_graph(path), hints).shared_kv
        np.testing.assert_array_equal(logits_of(path, hints, shared=True), logits_of(path, hints))


@pytest.mark.parametrize(
    ("path", "dtype", "shared", "rows"),
    [
        ("genai/llama-int4/model.onnx", "q4", True, 512),
        ("genai/qwen3-int8/model.onnx", "q8", True, 512),
        ("hub/llama/onnx/model.onnx", "fp32", True, 512),
        ("hub/llama/onnx/model_bnb4.onnx", "bnb4", True, 512),
        ("hub/llama/onnx/model_int8.onnx", "q8", True, 512),
        ("hub/gemma3/onnx/model_q4f16.onnx", "q4f16", True, 512),
        ("hub/falcon_h1/onnx/model_q4.onnx", "q4", False, None),
        ("hub/gpt2/onnx/model_fp16.onnx", "fp16", False, None),
    ],
)
def test_graphs_say_what_they_are(path, dtype, shared, rows):
    folder = FIXTURES.joinpath(*path.split("/")[:2])
    facts = inspect_graph(read_graph(FIXTURES / path), hints_of(folder))
    assert (facts.dtype, facts.shared_kv, facts.rotary_rows) == (dtype, shared, rows)


def test_ring_buffers_are_told_by_the_graph_alone():
    facts = inspect_graph(read_graph(GENAI / "gemma3-int4" / "model.onnx"), StateHints({"kv_cache_dim": 32}))
    parts = [f"past_key_values.{layer}.{part}" for layer in (0, 2) for part in ("key", "value")]
    assert facts.windows == dict.fromkeys(parts, 16)


def test_split_weights_are_named_in_order():
    facts = inspect_graph(read_graph(FIXTURES / "hub/llama/onnx/model.onnx"))
    assert facts.data == ("model.onnx_data", "model.onnx_data_1")


def test_state_without_a_size_is_named():
    with pytest.raises(UnsupportedModelError, match="axis 3 .kv_cache_dim"):
        inspect_graph(read_graph(GENAI / "llama-int4" / "model.onnx"))


def test_damaged_graph_is_a_clear_error(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(ModelFileError, match="not a readable ONNX graph"):
        read_graph(path)


# ---- single passes on graphs made for them ------------------------------------------------------


def small_model(nodes, *, weights=(), logits=("b", "s", 4), more_outputs=()):
    inputs = [helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["b", "s", 3])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, list(logits))]
    outputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in more_outputs]
    tensors = [numpy_helper.from_array(values, name) for name, values in weights]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


MATRIX = ("w", np.arange(12, dtype=np.float32).reshape(3, 4))
SCALE = ("scale", np.array([0.5, 1, 2, 3], np.float32))
HEAD = helper.make_node("MatMul", ["hidden", "w"], ["raw"])


@pytest.mark.parametrize(
    ("nodes", "more_outputs", "changed"),
    [
        ([helper.make_node("MatMul", ["hidden", "w"], ["logits"])], (), 1),
        ([HEAD, helper.make_node("Mul", ["scale", "raw"], ["logits"])], (), 1),
        (
            [
                HEAD,
                helper.make_node("Tanh", ["raw"], ["t"]),
                helper.make_node("Mul", ["t", "scale"], ["logits"]),
            ],
            (),
            1,
        ),
        ([HEAD, helper.make_node("Softmax", ["raw"], ["logits"])], (), 0),
        ([HEAD, helper.make_node("Mul", ["raw", "raw"], ["logits"])], (), 0),
        ([HEAD, helper.make_node("Identity", ["raw"], ["logits"])], ("raw",), 0),
        ([helper.make_node("Identity", ["hidden"], ["logits"])], (), 0),
    ],
    ids=["head", "scaled", "soft_capped", "unknown_op", "two_paths", "other_reader", "no_head"],
)
def test_last_logits_only_where_that_is_safe(nodes, more_outputs, changed):
    model = small_model(nodes, weights=[MATRIX, SCALE], more_outputs=more_outputs)
    before = model.SerializeToString()
    assert keep_last_logits(model) == changed
    if not changed:
        assert model.SerializeToString() == before
        return
    hidden = np.random.default_rng(0).standard_normal((1, 5, 3)).astype(np.float32)
    (all_of_it,) = onnxruntime.InferenceSession(before).run(["logits"], {"hidden": hidden})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in (1, 3, 5):
        (last,) = session.run(["logits"], {"hidden": hidden, "num_logits_to_keep": np.array([rows])})
        assert last.shape == (1, rows, 4)
        np.testing.assert_allclose(last[0], all_of_it[0, -rows:], rtol=1e-6)


def nbits(level=None, bits=4, zeros=()):
    attributes = {"K": 32, "N": 1, "bits": bits, "block_size": 32}
    attributes |= {} if level is None else {"accuracy_level": level}
    inputs = ["hidden", "codes", "scales", *zeros]
    return helper.make_node("MatMulNBits", inputs, ["logits"], domain="com.microsoft", **attributes)


@pytest.mark.parametrize(
    ("node", "level"),
    [
        (nbits(), 4),
        (nbits(level=0, bits=8), 4),
        (nbits(level=1), 1),
        (nbits(bits=2), None),
        (nbits(zeros=["scale"]), None),
    ],
    ids=["left_out", "unset", "chosen", "two_bits", "float_zero_points"],
)
def test_accuracy_level_only_where_it_was_left_out(node, level):
    model = small_model([node], weights=[SCALE])
    set_accuracy_level(model)
    found = [a.i for a in model.graph.node[0].attribute if a.name == "accuracy_level"]
    assert found == ([] if level is None else [level])


def test_accuracy_level_is_set_inside_branches():
    value = helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)
    branches = {
        f"{side}_branch": helper.make_graph([nbits()], side, [], [value]) for side in ("then", "else")
    }
    model = small_model([helper.make_node("If", ["hidden"], ["logits"], **branches)])
    assert set_accuracy_level(model) == 2


def test_passes_know_when_there_is_nothing_to_do():
    model = onnx.load(FIXTURES / "hub/llama/onnx/model_bnb4.onnx")
    assert {name: PASSES[name](model) for name in PASSES} == {"accuracy_level": 0, "last_logits": 0}
