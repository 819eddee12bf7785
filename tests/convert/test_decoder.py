import numpy as np
import pytest

from tests import tiny_models as tiny
from tinykit.backends.onnx import OnnxBackend
from tinykit.convert.gguf import GgufFile
from tinykit.convert.importer import import_model, needed_bytes, resolve_dtype
from tinykit.errors import OptionError

IDS = [1, 40, 41, 42, 200, 258, 259, 260, 7, 9, 3, 77]


def build(tmp_path, family, kind="F32", dtype="fp32", tied=True):
    weights = tiny.random_weights(family, tied=tied)
    file = GgufFile(tiny.write_gguf(tmp_path / "m.gguf", family, weights, kind))
    graph = import_model(file, tmp_path, dtype=dtype)
    return file, OnnxBackend(graph, dtype=dtype, context_length=tiny.CONTEXT, threads=1)


def last_logits(backend, ids, chunks=1):
    state = backend.new_state()
    for part in np.array_split(ids, chunks):
        logits = backend.forward([int(i) for i in part], state)
    return logits[0].copy()


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_float_graph_computes_what_the_textbook_says(family, tied, tmp_path):
    file, backend = build(tmp_path, family, tied=tied)
    weights = {name: file.floats(name) for name in tiny.random_weights(family, tied=tied)}
    expected = tiny.reference_logits(weights, IDS)
    for length in (1, 2, 7, len(IDS)):
        np.testing.assert_allclose(last_logits(backend, IDS[:length]), expected[length - 1], atol=2e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_0", "Q4_1"])
def test_int8_graph_stays_near_the_files_own_weights(family, kind, tmp_path):
    file, backend = build(tmp_path, family, kind, "q8")
    weights = {name: file.floats(name) for name in tiny.random_weights(family)}
    expected = tiny.reference_logits(weights, IDS)[-1]
    error = np.abs(last_logits(backend, IDS) - expected)
    assert error.mean() < 0.03 * expected.std(), error.mean() / expected.std()


def test_int4_graph_of_a_q4_0_file_keeps_its_weights(tmp_path):
    file, backend = build(tmp_path, "llama", "Q4_0", "q4")
    weights = {name: file.floats(name) for name in tiny.random_weights("llama")}
    expected = tiny.reference_logits(weights, IDS)[-1]
    error = np.abs(last_logits(backend, IDS) - expected)
    assert error.mean() < 0.03 * expected.std()  # rounding again would give some 0.2


@pytest.mark.parametrize("dtype", ["fp32", "q8"])
def test_chunks_and_single_steps_give_the_logits_of_one_call(dtype, tmp_path):
    _, backend = build(tmp_path, "llama", "F32", dtype)
    whole = last_logits(backend, IDS)
    tolerance = 1e-5 if dtype == "fp32" else 0.02
    for chunks in (2, 3, len(IDS)):
        np.testing.assert_allclose(last_logits(backend, IDS, chunks), whole, atol=tolerance)


@pytest.mark.parametrize(
    ("kind", "dtype", "expected"),
    [("Q4_1", "auto", "q8"), ("Q4_0", "auto", "q4"), ("Q8_0", "auto", "q8"), ("Q4_1", "fp32", "fp32")],
)
def test_resolve_dtype(kind, dtype, expected, tmp_path):
    file = GgufFile(tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.random_weights("llama"), kind))
    assert resolve_dtype(file, dtype) == expected


@pytest.mark.parametrize("dtype", ["q4", "fp16", "q1"])
def test_resolve_dtype_names_what_is_possible(dtype, tmp_path):
    file = GgufFile(tiny.write_gguf(tmp_path / "m.gguf", "llama", tiny.random_weights("llama"), "Q4_1"))
    with pytest.raises(OptionError, match="q8, w8a8, fp32"):
        resolve_dtype(file, dtype)


@pytest.mark.parametrize("dtype", ["fp32", "q8", "w8a8"])
def test_needed_bytes_covers_what_is_written(dtype, tmp_path):
    file, _ = build(tmp_path, "llama", "F32", dtype, tied=False)
    written = sum(
        path.stat().st_size for path in tmp_path.rglob("*") if path.suffix != ".gguf" and path.is_file()
    )
    assert written <= needed_bytes(file, dtype) <= written + 17 * 2**20
