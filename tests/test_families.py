"""Every family in every layout and precision gives its six answers exactly.

The models in `tests/fixtures` are tiny and trained on six chats; `tests/fixtures/make_fixtures.py` makes
them, and with ``--all`` in every precision. What is not there is made here from what is: the precisions of
`precisions.py`, and the operators of opset 23.
"""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.fixtures import opset23, precisions
from tinykit import loading
from tinykit.errors import BackendError
from tinykit.folders import open_folder
from tinykit.generation.cache import shared_prefix
from tinykit.generation.engine import Engine
from tinykit.generation.request import GenerationOptions, Request
from tinykit.model_files import SUFFIXES, onnx_choices
from tinykit.progress import Progress
from tinykit.tokenizer import Message

FIXTURES = Path(__file__).parent / "fixtures"
SYSTEM = "Write a short title."
PAIRS = json.loads((FIXTURES / "pairs.json").read_text(encoding="utf-8"))
# The first ONNX Runtime that has the operators of the builder's newer exports.
NEEDS = {"genai/lfm2-int4": (1, 29), "genai/qwen3_5-int4": (1, 30)}
RUNTIME = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
RECURRENT = {"lfm2", "falcon_h1", "qwen3_5"}
# From which file of a family the others are made, by suffix: the one that lost least.
SOURCES = {
    "llama": "", "qwen2": "_q4f16", "qwen3": "_q4", "gemma3": "_q4f16", "lfm2": "_q4", "falcon_h1": "_q4",
    "gpt2": "_fp16",
}  # fmt: skip
# Graphs in the operators of opset 23, by whether Attention keeps the past itself; and their precisions.
OPSET23 = {"opset23/llama": False, "opset23/llama-own-past": True}
OPSET23_DTYPES = ("fp32", "fp16", "int8", "q4")


def held():
    """Model folder and precision of everything that the repository holds."""
    for folder in sorted(path for path in FIXTURES.glob("*/*") if path.is_dir()):
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
        for choice in onnx_choices(names):
            yield folder.relative_to(FIXTURES).as_posix(), choice.dtype


def made():
    """The same of what is made here."""
    for name in SOURCES:
        there = {dtype for folder, dtype in HELD if folder == f"hub/{name}"}
        for suffix in precisions.MADE:
            if suffix == "_q8" or SUFFIXES[suffix] not in there:
                yield f"hub/{name}", SUFFIXES[suffix]
    yield from ((folder, dtype) for folder in OPSET23 for dtype in OPSET23_DTYPES)


HELD = sorted(held())
MADE = list(made())


def make(folder, dtype, place):
    """A model folder with one graph in this precision."""
    name = Path(folder).name.split("-")[0]
    source = FIXTURES / "hub" / name
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("onnx"))
    model = precisions.as_float32(onnx.load(source / "onnx" / f"model{SOURCES[name]}.onnx"))
    if folder in OPSET23:
        model = opset23.as_opset23(model, own_past=OPSET23[folder])
    suffix = next(suffix for suffix in precisions.MADE if SUFFIXES[suffix] == dtype)
    (place / "onnx").mkdir()
    (place / "onnx" / f"model{suffix}.onnx").write_bytes(precisions.MADE[suffix](model).SerializeToString())
    return place


SHARED = {"llama", "qwen2", "qwen3", "gemma3", "lfm2", "qwen3_5"}


def family(folder):
    return Path(folder).name.split("-")[0]


@pytest.fixture(scope="module", params=HELD, ids=[f"{folder}-{dtype}" for folder, dtype in HELD])
def opened(request, tmp_path_factory):
    folder, dtype = request.param
    if NEEDS.get(folder, (0, 0)) > RUNTIME:
        pytest.skip(f"needs onnxruntime {NEEDS[folder]}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYKIT_HOME", str(tmp_path_factory.mktemp("home")))
        model = open_folder(FIXTURES / folder, dtype, key=family(folder), threads=1)
        yield folder, model
        model.backend.close()


def prompts(tokenizer):
    chats = [[Message("system", SYSTEM), Message("user", message)] for message, _ in PAIRS]
    return [tuple(tokenizer.encode_chat(chat)) for chat in chats]


def answers(model, *, prefix_tokens=None, cache_bytes=1 << 24, times=1):
    engine = Engine(model.backend, model.tokenizer, model.eos_ids, cache_bytes=cache_bytes)
    options = GenerationOptions(max_tokens=60)
    requests = [Request(ids, options, prefix_tokens) for ids in prompts(model.tokenizer)] * times
    return [engine.generate(request) for request in requests]


WANTED = [f"<title>{title}</title>" for _, title in PAIRS]


@pytest.mark.parametrize("piece", [128, 7, 1], ids=["one_shot", "pieces_of_7", "token_by_token"])
def test_six_answers(opened, piece, monkeypatch):
    _, model = opened
    monkeypatch.setattr(model.backend, "info", replace(model.backend.info, chunk_tokens=piece))
    found = answers(model, cache_bytes=0)
    assert [completion.text for completion in found] == WANTED
    assert {completion.finish_reason for completion in found} == {"stop"}
    assert {completion.usage.kv_reused_tokens for completion in found} == {0}


def test_six_answers_with_the_recipes_prefix_reused(opened):
    _, model = opened
    prefix = shared_prefix(*prompts(model.tokenizer)[:2])
    fresh = answers(model, cache_bytes=0)
    cached = answers(model, prefix_tokens=prefix, times=2)
    assert [completion.text for completion in cached] == WANTED * 2
    assert [completion.token_ids for completion in cached] == [c.token_ids for c in fresh] * 2
    assert {completion.usage.kv_reused_tokens for completion in cached[1:]} == {prefix}


@pytest.mark.parametrize(("folder", "dtype"), MADE, ids=[f"{folder}-{dtype}" for folder, dtype in MADE])
def test_six_answers_in_a_precision_made_here(folder, dtype, tmp_path, monkeypatch):
    place = make(folder, dtype, tmp_path / "made")
    model = open_folder(place, dtype, key=family(folder), threads=1, progress=Progress(False))
    assert model.backend.new_state().shared == (family(folder) in SHARED and folder not in OPSET23)
    assert model.backend.info.dtype == dtype
    assert ("accuracy_level" in model.passes) == (dtype in ("q4", "q4f16", "q8"))  # exports left it out
    fresh = answers(model, cache_bytes=0)
    monkeypatch.setattr(model.backend, "info", replace(model.backend.info, chunk_tokens=7))
    prefix = shared_prefix(*prompts(model.tokenizer)[:2])
    for found in (fresh, answers(model, cache_bytes=0), answers(model, prefix_tokens=prefix)):
        assert [completion.text for completion in found] == WANTED
        assert [completion.token_ids for completion in found] == [c.token_ids for c in fresh]
    assert {completion.usage.kv_reused_tokens for completion in found[1:]} == {prefix}
    model.backend.close()


def test_states_are_what_the_family_has(opened):
    folder, model = opened
    state = model.backend.new_state()
    has_ring_buffers = folder == "genai/gemma3-int4"
    assert state.can_truncate == (family(folder) not in RECURRENT and not has_ring_buffers)
    assert state.shared == (family(folder) in SHARED)
    assert model.backend.info.context_length == 512
    assert set(model.eos_ids) == {0, 2}


def test_copy_of_a_state_goes_its_own_way(opened):
    _, model = opened
    ids = prompts(model.tokenizer)[0]
    state = model.backend.new_state()
    model.backend.forward(ids[:20], state)
    twin = state.copy()
    model.backend.forward([9] * 5, state)
    with_twin = model.backend.forward(ids[20:], twin).argmax()
    fresh = model.backend.new_state()
    model.backend.forward(ids[:20], fresh)
    assert with_twin == model.backend.forward(ids[20:], fresh).argmax()


# their graphs take what the mask hides for tokens that were seen
ONE_AT_A_TIME = {"gpt2", "falcon_h1"}


def greedy(model, ids, steps):
    """The state after `ids`, what follows it token by token, and the last logits."""
    state, found = model.backend.new_state(), []
    model.backend.forward(ids, state)
    copy = state.copy()
    for token_id in [ids[-1], *[None] * (steps - 1)]:
        logits = model.backend.forward([found[-1] if token_id is None else token_id], state)[0].copy()
        found.append(int(logits.argmax()))
    return copy, found, logits


def test_rows_of_a_batch_go_on_as_they_do_alone(opened):
    folder, model = opened
    assert model.backend.info.can_batch == (family(folder) not in ONE_AT_A_TIME)
    if not model.backend.info.can_batch:
        with pytest.raises(BackendError, match="several sequences"):
            model.backend.new_batch()
        return
    chats = [ids[: len(ids) - 3 * n] for n, ids in enumerate(prompts(model.tokenizer))]
    chats.append(chats[0] * 3)  # past the window of ring buffers
    batch, alone = model.backend.new_batch(), [greedy(model, ids, 5) for ids in chats]
    for state, _, _ in alone:
        batch.add(state)
    feed, found = [ids[-1] for ids in chats], []
    for _ in range(5):
        logits = batch.forward(feed)
        feed = logits.argmax(axis=1).tolist()
        found.append(feed)
    assert np.transpose(found).tolist() == [tokens for _, tokens, _ in alone]
    if model.backend.info.dtype == "fp32":
        np.testing.assert_allclose(logits, [last for _, _, last in alone], atol=1e-4)


def test_dumped_state_goes_on_as_before(opened):
    _, model = opened
    ids = prompts(model.tokenizer)[0]
    state = model.backend.new_state()
    model.backend.forward(ids, state)
    model.backend.forward(ids[-1:], state)
    arrays = {name: array.copy() for name, array in state.dump().items()}
    loaded = model.backend.load_state(arrays, state.length)
    for piece in (ids[:1], ids[:4], ids[5:6]):
        expected = model.backend.forward(piece, state).copy()
        np.testing.assert_array_equal(model.backend.forward(piece, loaded), expected)


def test_rows_of_logits_are_those_of_single_steps(opened):
    _, model = opened
    ids = prompts(model.tokenizer)[0]
    state, twin = model.backend.new_state(), model.backend.new_state()
    rows = model.backend.forward(ids, state, rows=4).argmax(axis=1).tolist()
    model.backend.forward(ids[:-4], twin)
    single = [int(model.backend.forward([i], twin).argmax()) for i in ids[-4:]]
    # one scale for all tokens of a call: what goes in together changes the logits a little
    doubtful = 1 if model.backend.info.dtype in ("q8", "int8", "uint8") else 0
    assert sum(a != b for a, b in zip(rows, single, strict=True)) <= doubtful
    assert state.length == twin.length == len(ids)


GGUF = sorted(path.stem for path in (FIXTURES / "gguf").glob("*.gguf"))


@pytest.mark.parametrize("dtype", ["q8", "fp32"])
@pytest.mark.parametrize("name", GGUF)
def test_six_answers_after_an_import(name, dtype):
    loaded = loading.load(FIXTURES / "gguf" / f"{name}.gguf", dtype=dtype, progress=Progress(False))
    engine = loaded.engine
    ids = prompts(engine.tokenizer)
    prefix = shared_prefix(*ids[:2])
    for prefix_tokens in (None, prefix, prefix):
        found = [engine.generate(Request(i, GenerationOptions(60), prefix_tokens)) for i in ids]
        assert [completion.text for completion in found] == WANTED
        if prefix_tokens is None:
            engine.cache.clear()
    assert {completion.usage.kv_reused_tokens for completion in found} == {prefix}
    assert engine.backend.new_state().can_truncate == (family(name) not in RECURRENT)


def test_every_family_and_layout_is_in_the_table():
    for name in SOURCES:
        found = {dtype for folder, dtype in HELD + MADE if folder == f"hub/{name}"}
        assert {"fp32", "fp16", "q4", "q4f16", "q8", "int8"} <= found
    folders = {folder for folder, _ in HELD}
    wanted = {f"hub/{name}" for name in ("llama", "qwen2", "qwen3", "gemma3", "lfm2", "falcon_h1", "gpt2")}
    wanted |= {
        f"genai/{name}" for name in ("llama-int4", "qwen3-int8", "gemma3-int4", "lfm2-int4", "qwen3_5-int4")
    }
    assert wanted | {"legacy/gpt2"} <= folders
    assert {family(name) for name in GGUF} >= {"gemma3", "lfm2"}


def test_auto_takes_what_suits_a_cpu(monkeypatch):
    loaded = loading.load(FIXTURES / "hub" / "llama", progress=Progress(False))
    assert (loaded.engine.backend.info.dtype, loaded.skipped) == ("q4", ())
    assert loading.load(FIXTURES / "genai" / "qwen3-int8").engine.backend.info.dtype == "q8"
