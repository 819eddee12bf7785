from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import tiny_models as tiny
from tinykit.backends.onnx import OnnxBackend
from tinykit.convert.gguf import GgufFile
from tinykit.convert.importer import import_model
from tinykit.errors import UnsupportedModelError
from tinykit.generation.steadiness import rows_are_exact

GGUF = Path(__file__).parents[1] / "fixtures" / "gguf"
IDS = [1, 40, 41, 42, 200, 258, 259, 260, 7, 9, 3, 77]


def build(tmp_path, family="llama", tied=True, threads=1):
    weights = tiny.random_weights(family, tied=tied)
    file = GgufFile(tiny.write_gguf(tmp_path / "m.gguf", family, weights))
    graph = import_model(file, tmp_path, dtype="w8a8")
    return file, OnnxBackend(graph, dtype="w8a8", context_length=tiny.CONTEXT, threads=threads)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_integer_graph_stays_near_the_weights(family, tied, tmp_path):
    file, backend = build(tmp_path, family, tied)
    weights = {name: file.floats(name) for name in tiny.random_weights(family, tied=tied)}
    expected = tiny.reference_logits(weights, IDS)[-1]
    error = np.abs(backend.forward(IDS, backend.new_state())[0] - expected)
    assert error.mean() < 0.05 * expected.std(), error.mean() / expected.std()


def test_integer_graph_with_convolutions_stays_near_the_float_graph(tmp_path):
    found = []
    for dtype in ("fp32", "w8a8"):
        (folder := tmp_path / dtype).mkdir()
        graph = import_model(GgufFile(GGUF / "lfm2-Q8_0.gguf"), folder, dtype=dtype)
        backend = OnnxBackend(graph, dtype=dtype, context_length=tiny.CONTEXT, threads=1)
        found.append(backend.forward(IDS, backend.new_state(), rows=len(IDS)).copy())
    assert np.abs(found[0] - found[1]).mean() < 0.05 * found[0].std()


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_a_batch_get_the_bits_that_each_gets_alone(threads, tmp_path):
    _, backend = build(tmp_path, threads=threads)
    assert rows_are_exact(backend)


def test_products_are_exact_for_the_largest_numbers(tmp_path):
    _, backend = build(tmp_path)
    path = tmp_path / "onnx" / "model_w8a8.onnx"
    model = onnx.load(path)
    kinds = set()
    for node in model.graph.node:
        if node.op_type == "MatMulIntegerToFloat":
            held = {
                t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name in node.input
            }
            weights, zeros = held[node.input[1]], held[node.input[5]]
            kinds.add(weights.dtype)
            for sign in (-1, 1):
                check_product(
                    node, held, np.where(sign * (weights.astype(int) - zeros) > 0, 255, 0), tmp_path
                )
    assert kinds == {np.dtype(np.uint8)}
    backend.close()


def check_product(node, held, extreme, tmp_path):
    """One operator of the graph, fed what makes its sums as large as they can be."""
    import onnxruntime

    floats = onnx.TensorProto.FLOAT
    size, rows = held[node.input[1]].shape
    codes = extreme.T[: min(rows, 24)].astype(np.uint8)
    ports = [onnx.helper.make_tensor_value_info(node.input[0], onnx.TensorProto.UINT8, ["rows", size])]
    made = [onnx.helper.make_tensor_value_info(node.output[0], floats, ["rows", rows])]
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = onnx.helper.make_graph([node], "one", ports, made, initializers)
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    weights = held[node.input[1]].astype(np.int64) - held[node.input[5]]
    scale = held[node.input[2]] * held[node.input[3]]
    for count in (1, 2, len(codes)):
        expected = ((codes[:count].astype(np.int64) - 128) @ weights).astype(np.float32) * scale
        found = session.run(None, {node.input[0]: codes[:count]})[0]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_family_with_norms_in_the_way_is_refused(tmp_path):
    file = GgufFile(GGUF / "gemma3-Q8_0.gguf")
    with pytest.raises(UnsupportedModelError, match="cannot be imported as w8a8") as caught:
        import_model(file, tmp_path, dtype="w8a8")
    assert "q8" in str(caught.value.hint)
