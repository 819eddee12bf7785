"""Random models exported by onnxruntime-genai's builder say what transformers says, token by token.

Needs torch, transformers and onnxruntime-genai with onnx-ir (`make test-extra`).
"""

import sys

import numpy as np
import pytest

from tests.test_families import FIXTURES
from tinykit.folders import open_folder

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("onnxruntime_genai", reason="onnxruntime-genai is not installed")
pytest.importorskip("onnx_ir", reason="onnx-ir is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")
FAMILIES = ["llama", "qwen2", "qwen3", "gemma3", "lfm2", "qwen3_5"]
PROMPTS = [[1, 40, 41, 42], [1, *range(60, 100)], [1, 7]]
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def recipe():
    """The scripts beside the fixtures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FIXTURES))
        import make_fixtures

        import training

        yield make_fixtures, training
        for name in ("make_fixtures", "training", "hub_graphs", "plain_graphs"):
            sys.modules.pop(name, None)


def random_model(training, family):
    """Weights large enough that the most likely token is clear of the others."""
    torch.manual_seed(1)
    model = training.build(family).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2 and "conv" not in name:
                parameter.mul_(8)
    return model


def greedy(model, prompt):
    """Tokens, and the logits of the first."""
    ids, first = list(prompt), None
    with torch.no_grad():
        for _ in range(NEW_TOKENS):
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].numpy()
            first = logits if first is None else first
            ids.append(int(logits.argmax()))
    return ids[len(prompt) :], first


@pytest.mark.parametrize("family", FAMILIES)
def test_token_by_token_like_transformers(family, recipe, tmp_path):
    make_fixtures, training = recipe
    checkpoint, folder = tmp_path / "checkpoint", tmp_path / "exported"
    model = random_model(training, family)
    checkpoint.mkdir()
    model.save_pretrained(checkpoint)
    training.write_tokenizer(checkpoint)
    make_fixtures._run_builder(checkpoint, folder, "fp32", tmp_path, {})
    for name in make_fixtures.TOKENIZER:
        (folder / name).write_bytes((checkpoint / name).read_bytes())
    backend = open_folder(folder, "auto", key=family, threads=1).backend
    for prompt in PROMPTS:
        expected, logits = greedy(model, prompt)
        state = backend.new_state()
        ours = backend.forward(prompt, state)[0]
        np.testing.assert_allclose(ours, logits, atol=1e-3 * np.abs(logits).max())
        found = []
        for _ in range(NEW_TOKENS):
            found.append(int(ours.argmax()))
            ours = backend.forward(found[-1:], state)[0]
        assert found == expected
