from pathlib import Path

import numpy as np
import pytest

from tests import tiny_models as tiny
from tinykit.backends.onnx import OnnxBackend
from tinykit.convert.decoder import write_decoder
from tinykit.convert.gguf import GgufFile
from tinykit.convert.rotation import RotatedCheckpoint, Rotation, spread

GGUF = Path(__file__).parents[1] / "fixtures" / "gguf"
IDS = [1, 40, 41, 42, 200, 258, 259, 260, 7, 9, 3, 77]


@pytest.mark.parametrize("size", [32, 64, 96, 576, 960])
def test_a_rotation_keeps_all_lengths_and_angles(size):
    rotated = Rotation(size)(np.eye(size, dtype=np.float32))
    np.testing.assert_allclose(rotated @ rotated.T, np.eye(size), atol=1e-5)
    assert np.abs(rotated).max() < 0.5  # no channel stays what it was


def test_spreading_twice_gives_back_what_was_there():
    x = np.random.default_rng(0).standard_normal((3, 192)).astype(np.float32)
    once = spread(x, 64)
    assert not np.allclose(once, x)
    np.testing.assert_allclose(spread(once, 64), x, atol=1e-5)


def logits_of(checkpoint, path):
    write_decoder(checkpoint, path, dtype="fp32")
    backend = OnnxBackend(path, dtype="fp32", context_length=tiny.CONTEXT, threads=1)
    return backend.forward(IDS, backend.new_state(), rows=len(IDS)).copy()


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_rotated_model_computes_the_same(family, tied, tmp_path):
    weights = tiny.random_weights(family, tied=tied)
    file = GgufFile(tiny.write_gguf(tmp_path / "m.gguf", family, weights))
    rotated = RotatedCheckpoint(file)
    plain, turned = logits_of(file, tmp_path / "a.onnx"), logits_of(rotated, tmp_path / "b.onnx")
    np.testing.assert_allclose(turned, plain, atol=2e-4)
    name = "model.layers.0.self_attn.v_proj.weight"
    assert not np.allclose(rotated.floats(name), file.floats(name), atol=0.01)
    assert rotated.packed(name) is None


def test_a_rotated_model_with_convolutions_computes_the_same(tmp_path):
    file = GgufFile(GGUF / "lfm2-Q8_0.gguf")
    plain, turned = (
        logits_of(checkpoint, tmp_path / f"{name}.onnx")
        for name, checkpoint in (("a", file), ("b", RotatedCheckpoint(file)))
    )
    np.testing.assert_allclose(turned, plain, atol=1e-3 * np.abs(plain).max())
