"""Checkpoints of transformers compute the same after an import. Needs torch and transformers (`make test-extra`)."""

import sys

import numpy as np
import pytest

from tests.test_families import FIXTURES
from tinykit.backends.onnx import OnnxBackend
from tinykit.convert.gguf import GgufFile
from tinykit.convert.huggingface import HuggingFaceFolder
from tinykit.convert.importer import import_model

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")
PROMPT = [1, *range(60, 100), 7, 8]  # longer than the sliding window of 16


@pytest.fixture(scope="module")
def scripts():
    """The scripts beside the fixtures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FIXTURES))
        import gguf_files

        import training

        yield training, gguf_files
        for name in ("training", "gguf_files"):
            sys.modules.pop(name, None)


def random_checkpoint(training, family, folder):
    torch.manual_seed(1)
    model = training.build(family).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.mul_(4)
            else:
                parameter.add_(0.1 * torch.randn_like(parameter))
    folder.mkdir()
    model.save_pretrained(folder)
    training.write_tokenizer(folder)
    with torch.no_grad():
        return model(input_ids=torch.tensor([PROMPT])).logits[0].numpy()


@pytest.mark.parametrize("source", ["safetensors", "gguf"])
@pytest.mark.parametrize("family", ["gemma3", "lfm2"])
def test_same_logits_as_transformers(family, source, scripts, tmp_path):
    training, gguf_files = scripts
    expected = random_checkpoint(training, family, tmp_path / "checkpoint")
    if source == "gguf":
        gguf_files.write_gguf(family, tmp_path / "checkpoint", tmp_path / "m.gguf", "F32")
        checkpoint = GgufFile(tmp_path / "m.gguf")
    else:
        checkpoint = HuggingFaceFolder(tmp_path / "checkpoint")
    graph = import_model(checkpoint, tmp_path, dtype="fp32")
    backend = OnnxBackend(graph, dtype="fp32", context_length=512, threads=1)
    scale = np.abs(expected).max()
    for pieces in ([len(PROMPT)], [20, len(PROMPT)], list(range(1, len(PROMPT) + 1))):
        state = backend.new_state()
        for start, end in zip([0, *pieces], pieces, strict=False):
            logits = backend.forward(PROMPT[start:end], state)
            np.testing.assert_allclose(logits[0], expected[end - 1], atol=1e-4 * scale)
