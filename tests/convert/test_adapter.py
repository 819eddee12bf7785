import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests import tiny_models as tiny
from tinykit import RECIPES, TinySession
from tinykit.backends.onnx import OnnxBackend
from tinykit.convert.adapter import AdaptedCheckpoint, Adapter
from tinykit.convert.gguf import GgufFile
from tinykit.convert.importer import import_model
from tinykit.errors import ModelFileError, UnsupportedModelError

RANK, ALPHA = 4, 8
NAMES = ("model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.k_proj", "model.layers.1.mlp.down_proj")


def random_pairs(weights, seed=5):
    rng = np.random.default_rng(seed)
    pairs = {}
    for name in NAMES:
        rows, columns = weights[f"{name}.weight"].shape
        a = (rng.standard_normal((RANK, columns)) / np.sqrt(columns)).astype(np.float32)
        b = (rng.standard_normal((rows, RANK)) / 2).astype(np.float32)
        pairs[name] = (a, b)
    return pairs


def write_adapter(folder, pairs, dtype=np.float32, drop=None, **config):
    """A folder as peft's save_pretrained writes it."""
    folder.mkdir(exist_ok=True)
    tensors = {}
    for name, (a, b) in pairs.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = a.astype(dtype)
        tensors[f"base_model.model.{name}.lora_B.weight"] = b.astype(dtype)
    tensors.pop(drop, None)
    save_file(tensors, folder / "adapter_model.safetensors")
    fields = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": ALPHA,
        "bias": "none",
        "base_model_name_or_path": "x/y",
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields | config), encoding="utf-8")
    return folder


@pytest.fixture
def weights():
    return tiny.random_weights("llama")


@pytest.fixture
def base(weights, tmp_path):
    return GgufFile(tiny.write_gguf(tmp_path / "base.gguf", "llama", weights))


def test_merged_graph_computes_the_changed_weights(base, weights, tmp_path):
    pairs = random_pairs(weights)
    adapter = Adapter(write_adapter(tmp_path / "adapter", pairs))
    graph = import_model(base, tmp_path, dtype="fp32", adapter=adapter)
    backend = OnnxBackend(graph, dtype="fp32", context_length=tiny.CONTEXT, threads=1)
    changed = dict(weights)
    for name, (a, b) in pairs.items():
        changed[f"{name}.weight"] = weights[f"{name}.weight"] + ALPHA / RANK * (b @ a)
    ids = [1, 40, 41, 200, 7]
    logits = backend.forward(ids, backend.new_state())[0]
    np.testing.assert_allclose(logits, tiny.reference_logits(changed, ids)[-1], atol=3e-4)
    assert np.abs(logits - tiny.reference_logits(weights, ids)[-1]).max() > 0.1


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_adapters_are_read(dtype, weights, tmp_path):
    pairs = random_pairs(weights)
    adapter = Adapter(write_adapter(tmp_path / "adapter", pairs, dtype))
    a, b = pairs[NAMES[0]]
    np.testing.assert_allclose(adapter.delta(f"{NAMES[0]}.weight"), 2 * b @ a, atol=0.05)


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 2.0),
        ({"lora_alpha": 4}, 1.0),
        ({"use_rslora": True}, 4.0),
        ({"alpha_pattern": {"q_proj": 40}}, 10.0),
        ({"alpha_pattern": {"k_proj": 40}}, 2.0),
        ({"alpha_pattern": {r"layers\.0\.self_attn\.q_proj": 12}}, 3.0),
    ],
    ids=["alpha_over_rank", "alpha", "rank_stabilised", "pattern", "other_pattern", "regular_expression"],
)
def test_scale_is_pefts(config, scale, weights, tmp_path):
    pairs = random_pairs(weights)
    adapter = Adapter(write_adapter(tmp_path / "adapter", pairs, **config))
    a, b = pairs[NAMES[0]]
    np.testing.assert_allclose(adapter.delta(f"{NAMES[0]}.weight"), scale * (b @ a), rtol=1e-5, atol=1e-6)


def test_only_changed_matrices_lose_their_own_blocks(weights, tmp_path):
    base = GgufFile(tiny.write_gguf(tmp_path / "q8.gguf", "llama", weights, "Q8_0"))
    adapted = AdaptedCheckpoint(base, Adapter(write_adapter(tmp_path / "adapter", random_pairs(weights))))
    assert adapted.packed(f"{NAMES[0]}.weight") is None
    assert adapted.packed("model.layers.0.mlp.up_proj.weight") is not None
    assert "model.norm.weight" in adapted


def test_wrong_base_is_named(base, weights, tmp_path):
    pairs = random_pairs(weights)
    pairs[NAMES[0]] = (pairs[NAMES[0]][0][:, :32], pairs[NAMES[0]][1])
    adapter = Adapter(write_adapter(tmp_path / "adapter", pairs))
    with pytest.raises(ModelFileError, match=r"does not fit.*q_proj.*\(128, 32\).*\(128, 64\)") as caught:
        AdaptedCheckpoint(base, adapter)
    assert caught.value.hint == "It was made for x/y."


def test_layer_that_the_model_lacks_is_named(base, weights, tmp_path):
    pairs = {"model.layers.9.self_attn.q_proj": random_pairs(weights)[NAMES[0]]}
    with pytest.raises(ModelFileError, match=r"layers\.9.*does not have"):
        AdaptedCheckpoint(base, Adapter(write_adapter(tmp_path / "adapter", pairs)))


def test_halves_of_different_rank_are_named(base, weights, tmp_path):
    pairs = random_pairs(weights)
    pairs[NAMES[0]] = (pairs[NAMES[0]][0][:2], pairs[NAMES[0]][1])
    with pytest.raises(ModelFileError, match="ranks 2 and 4"):
        AdaptedCheckpoint(base, Adapter(write_adapter(tmp_path / "adapter", pairs)))


def test_missing_half_is_named(weights, tmp_path):
    gone = f"base_model.model.{NAMES[1]}.lora_B.weight"
    with pytest.raises(ModelFileError, match=f"lora_B of {NAMES[1]}"):
        Adapter(write_adapter(tmp_path / "adapter", random_pairs(weights), drop=gone))


@pytest.mark.parametrize(
    "config",
    [
        {"use_dora": True},
        {"bias": "all"},
        {"modules_to_save": ["lm_head"]},
        {"peft_type": "IA3"},
        {"fan_in_fan_out": True},
        {"layer_replication": [[0, 2]]},
    ],
    ids=lambda config: next(iter(config)),
)
def test_other_kinds_of_adapters_are_refused_by_name(config, weights, tmp_path):
    with pytest.raises(UnsupportedModelError, match=next(iter(config))):
        Adapter(write_adapter(tmp_path / "adapter", random_pairs(weights), **config))


def test_damaged_folders_are_named(weights, tmp_path):
    with pytest.raises(ModelFileError, match=r"adapter_config\.json cannot be read"):
        Adapter(tmp_path)
    folder = write_adapter(tmp_path / "adapter", random_pairs(weights))
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelFileError, match="not a readable safetensors file"):
        Adapter(folder)
    (folder / "adapter_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(ModelFileError, match="not valid JSON"):
        Adapter(folder)
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelFileError, match="no lora_alpha"):
        Adapter(folder)


@pytest.mark.parametrize(
    "config",
    [
        {"alpha_pattern": ["x"]},
        {"alpha_pattern": {"q_proj": "big"}},
        {"alpha_pattern": {"(": 8}},
        {"lora_alpha": "8"},
        {"lora_alpha": float("nan")},
    ],
    ids=["pattern_list", "pattern_text", "pattern_broken", "alpha_text", "alpha_nan"],
)
def test_damaged_fields_are_named(config, weights, tmp_path):
    folder = write_adapter(tmp_path / "adapter", random_pairs(weights), **config)
    with pytest.raises(ModelFileError, match=rf"adapter_config\.json: the field {next(iter(config))} is"):
        Adapter(folder)


@pytest.mark.parametrize("shape", [(64,), (0, 64), (4, 8, 8)], ids=repr)
def test_tensor_that_is_no_matrix_is_named(shape, weights, tmp_path):
    pairs = random_pairs(weights)
    pairs[NAMES[0]] = (np.zeros(shape, np.float32), pairs[NAMES[0]][1])
    with pytest.raises(ModelFileError, match=r"adapter: the tensor .*q_proj\.lora_A\.weight has shape"):
        Adapter(write_adapter(tmp_path / "adapter", pairs))


def test_chats_use_the_users_adapter_unless_it_is_one_for_titles(weights, base, tmp_path):
    folder = write_adapter(tmp_path / "mine", random_pairs(weights))
    session = TinySession(base.path, adapter=folder, progress=False, lazy=True)
    session.complete("hello", max_tokens=1)
    assert list(session._loaded) == ["base+mine"]
    RECIPES["titles"].save(folder / "recipe.json")
    session = TinySession(base.path, adapter=folder, progress=False, lazy=True)
    assert session.recipe == RECIPES["titles"]
    assert session.spec.chat_model == "base"


def test_session_takes_an_adapter_and_keeps_builds_apart(weights, base, tmp_path):
    first = write_adapter(tmp_path / "first", random_pairs(weights, seed=1))
    second = write_adapter(tmp_path / "second", random_pairs(weights, seed=2))
    sessions = [
        TinySession(base.path, adapter=adapter, dtype="fp32", progress=False)
        for adapter in (None, first, second)
    ]
    answers = [session.complete("hello", max_tokens=12).token_ids for session in sessions]
    assert len(set(answers)) == 3
    assert len({session.load().folder for session in sessions}) == 3
    again = TinySession(base.path, adapter=str(first), dtype="fp32", progress=False)
    assert again.complete("hello", max_tokens=12).token_ids == answers[1]
    assert again.load().folder == sessions[1].load().folder
