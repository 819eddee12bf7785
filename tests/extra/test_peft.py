"""Our adapters in peft, peft's adapters in ours. Needs torch, transformers and peft (`make test-extra`)."""

import dataclasses
import json

import numpy as np
import pytest

from tests import tiny_models as tiny
from tinykit import RECIPES, TinySession, sources, titles, titling
from tinykit.backends.onnx import OnnxBackend
from tinykit.convert.adapter import Adapter
from tinykit.convert.gguf import GgufFile
from tinykit.convert.huggingface import HuggingFaceFolder
from tinykit.convert.importer import import_model
from tinykit.registry import get_model

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
peft = pytest.importorskip("peft", reason="peft is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")
MESSAGES = [
    "the login test is flaky on slow CI runners, can you fix it?",
    "why does my docker container exit with code 137",
    "Plan a three day trip to Lisbon with two kids, we like beaches and trains",
    "write a short polite letter to my landlord about the broken heating",
    "SELECT is slow on a table with 400 million rows, which index should I add?",
    "explain the difference between a mutex and a semaphore with an example in Rust",
    "My sourdough stays flat and gummy. I feed the starter once a day, what am I doing wrong?",
    "convert this list of dates from DD/MM/YYYY to ISO 8601 in pandas",
]


@pytest.mark.real
@pytest.mark.timeout(1800)  # transformers generates without a prefix cache; a busy machine needs minutes
def test_our_adapter_gives_the_same_titles_in_peft(use_real_home):
    spec = get_model("smollm2-135m-titles")
    gguf = sources.locate(spec)
    base = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype="float32"
    )
    model = peft.PeftModel.from_pretrained(base, spec.adapter).eval()
    recipe = dataclasses.replace(RECIPES["titles"], candidates=1, branches=0)  # the greedy answer as it is
    with TinySession(spec.key, dtype="fp32", progress=False) as session:
        engine = session.load().engine
        prefix = titling.fixed_prefix(engine.tokenizer, recipe)
        for message in MESSAGES:
            prompt = titling.title_prompt(engine.tokenizer, recipe, titles.user_turn(message, recipe))
            ids = torch.tensor([prompt])
            with torch.no_grad():
                out = model.generate(input_ids=ids, max_new_tokens=12, do_sample=False)[0, len(prompt) :]
            theirs = engine.tokenizer.decode(out.tolist()).partition("</title>")[0]
            ours = titling.model_title(engine, message, recipe, prefix).raw
            assert ours.startswith(theirs) or theirs.startswith(ours), message


def test_pefts_adapter_is_merged_like_peft_does(tmp_path):
    config = transformers.LlamaConfig(
        vocab_size=len(tiny.VOCABULARY),
        hidden_size=tiny.HIDDEN,
        intermediate_size=tiny.INTERMEDIATE,
        num_hidden_layers=tiny.LAYERS,
        num_attention_heads=tiny.HEADS,
        num_key_value_heads=tiny.KV_HEADS,
        head_dim=tiny.HEAD_DIM,
        max_position_embeddings=tiny.CONTEXT,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    base = transformers.LlamaForCausalLM(config)
    base.save_pretrained(tmp_path / "base")
    vocabulary = tiny.write_gguf(tmp_path / "v.gguf", "llama", tiny.random_weights("llama"))
    GgufFile(vocabulary).write_tokenizer(tmp_path / "base")
    lora = peft.LoraConfig(
        r=4, lora_alpha=12, target_modules=["q_proj", "v_proj", "down_proj"], use_rslora=True
    )
    model = peft.get_peft_model(base, lora)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path / "adapter")
    assert json.loads((tmp_path / "adapter/adapter_config.json").read_text())["use_rslora"]

    graph = import_model(
        HuggingFaceFolder(tmp_path / "base"), tmp_path, dtype="fp32", adapter=Adapter(tmp_path / "adapter")
    )
    backend = OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1)
    ids = [1, 40, 41, 200, 7]
    with torch.no_grad():
        expected = model(input_ids=torch.tensor([ids])).logits[0, -1].numpy()
    np.testing.assert_allclose(backend.forward(ids, backend.new_state())[0], expected, atol=2e-4)
