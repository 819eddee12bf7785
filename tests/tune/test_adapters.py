import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra tune)")

from tests.tune.test_decoder import TOKENS, all_logits, decoder_of, merged, randomize  # noqa: E402
from tinykit.convert.adapter import AdaptedCheckpoint, Adapter  # noqa: E402
from tinykit.convert.importer import open_source  # noqa: E402
from tinykit.errors import ModelFileError  # noqa: E402
from tinykit.tune.adapters import AdapterShape, adapter_shape, load_adapter, save_adapter  # noqa: E402


@pytest.fixture(params=[0, 1], ids=["all_layers", "upper_layers"])
def saved(gguf, tmp_path, request):
    """A decoder and the folder of its adapter, with values that bfloat16 holds exactly."""
    decoder = decoder_of(gguf, first_layer=request.param)
    randomize(decoder)
    with torch.no_grad():
        for tensor in decoder.parameters:
            tensor.copy_(tensor.bfloat16().float())
    save_adapter(decoder, tmp_path / "adapter", base_name="tiny")
    return decoder, tmp_path / "adapter"


def test_saved_adapter_merges_to_the_same_weights(saved, gguf, weights):
    decoder, folder = saved
    adapter = Adapter(folder)
    assert adapter.changes == {f"{name}.weight" for name in decoder.adapter}
    checkpoint = AdaptedCheckpoint(open_source(gguf), adapter)
    for name, expected in merged(weights, decoder).items():
        np.testing.assert_allclose(checkpoint.floats(name), expected, atol=1e-6, err_msg=name)


def test_adapter_comes_back(saved, gguf):
    decoder, folder = saved
    rank, alpha, first_layer = adapter_shape(folder)
    assert (rank, alpha, first_layer) == AdapterShape(4, 8, decoder.first_layer)
    other = decoder_of(gguf, rank=rank, alpha=alpha, first_layer=first_layer, seed=9)
    load_adapter(other, folder)
    assert all(torch.equal(a, b) for a, b in zip(decoder.parameters, other.parameters, strict=True))
    assert all(tensor.requires_grad for tensor in other.parameters)


def test_folder_holds_the_two_files_of_peft_and_no_more(saved):
    assert sorted(path.name for path in saved[1].iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_adapter_of_other_layers_is_refused(saved, gguf):
    decoder, folder = saved
    with pytest.raises(ModelFileError, match="other layers"):
        load_adapter(decoder_of(gguf, first_layer=1 - decoder.first_layer), folder)


def test_adapter_on_other_matrices_is_refused(saved):
    path = saved[1] / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"target_modules": ["q_proj"]}))
    with pytest.raises(ModelFileError, match="does not change the matrices"):
        adapter_shape(saved[1])


@pytest.mark.filterwarnings("ignore")  # of packages that are not ours
def test_peft_computes_the_same_with_our_adapter(saved, weights):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    decoder, folder = saved
    config = decoder.architecture.config() | {"attention_bias": False, "mlp_bias": False}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    missing, unexpected = model.load_state_dict(
        {name: torch.from_numpy(values) for name, values in weights.items()}, strict=False
    )
    assert (missing, unexpected) == (["lm_head.weight"], [])
    model.tie_weights()
    adapted = peft.PeftModel.from_pretrained(model, str(folder)).eval()
    with torch.no_grad():
        logits = adapted(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(logits[3:], all_logits(decoder, TOKENS), atol=2e-3)
