import numpy as np
import pytest

from tests import tiny_models as tiny
from tinykit.peers import accuracy


def test_divergence_by_hand():
    exact, other = np.log([[0.5, 0.5], [0.9, 0.1]]), np.log([[0.5, 0.5], [0.5, 0.5]])
    expected = [0.0, 0.9 * np.log(1.8) + 0.1 * np.log(0.2)]
    assert accuracy.divergence(exact + 3.0, other - 1.0) == pytest.approx(expected)  # logits have no zero


def test_a_build_is_compared_with_its_floats(tmp_path):
    path = tiny.write_gguf(tmp_path / "tiny.gguf", "llama", tiny.random_weights("llama"), "F32")
    same = accuracy.measure(str(path), "fp32", messages=3)
    assert (same.kl, same.top1, same.messages) == (0.0, 1.0, 3) and same.tokens > 3 and same.passes
    rounded = accuracy.measure(str(path), "q8", messages=3)
    assert (rounded.dtype, rounded.tokens) == ("q8", same.tokens)
    assert 0 < rounded.kl < 0.02 and rounded.kl <= rounded.kl_p95
