import shutil

import pytest

from tests.test_families import FIXTURES, PAIRS, SYSTEM
from tinykit import TinySession, folders, loading, store
from tinykit.errors import ModelFileError, OptionError, UnsupportedModelError
from tinykit.folders import has_graphs
from tinykit.progress import Progress

HUB = FIXTURES / "hub"


@pytest.fixture
def llama(tmp_path):
    """A copy to damage."""
    return shutil.copytree(HUB / "llama", tmp_path / "llama")


def load(folder, dtype=None, **options):
    return loading.load(folder, dtype=dtype, progress=Progress(False), **options)


def test_folder_path_makes_a_session():
    with TinySession(str(HUB / "llama"), progress=False) as session:
        chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PAIRS[0][0]}]
        assert str(session.chat(chat)) == f"<title>{PAIRS[0][1]}</title>"


def test_explicit_dtype_that_is_missing_lists_what_exists():
    with pytest.raises(OptionError, match=r"'fp16'.*there are q4, q8, q4f16"):
        load(HUB / "lfm2", "fp16")


def test_eight_bits_by_another_suffix_answer_for_q8():
    assert load(HUB / "qwen2", "q8").engine.backend.info.dtype == "uint8"


def test_graph_whose_name_does_not_tell_its_dtype_is_looked_into():
    folder = FIXTURES / "genai" / "qwen3-int8"
    assert load(folder, "q8").engine.backend.info.dtype == "q8"
    with pytest.raises(OptionError, match="there as q8 only, not as 'q4'"):
        load(folder, "q4")


def test_auto_skips_what_fails_and_keeps_the_reason(llama):
    (llama / "onnx" / "model_q4.onnx").write_bytes(b"damaged")
    (llama / "onnx" / "model_quantized.onnx").write_bytes(b"")
    loaded = load(llama)
    assert loaded.engine.backend.info.dtype == "int8"
    assert [skipped.dtype for skipped in loaded.skipped] == ["q4", "q8"]
    assert "model_q4.onnx is not a readable ONNX graph" in loaded.skipped[0].reason
    with pytest.raises(ModelFileError, match=r"model_q4\.onnx is not a readable"):
        load(llama, "q4")


def test_graph_that_fails_only_when_it_runs_is_skipped(monkeypatch):
    checked = []

    def check(backend, choice):
        checked.append(choice.dtype)
        if len(checked) == 1:
            raise ModelFileError("no finite logits")

    monkeypatch.setattr(folders, "_check_steps", check)
    loaded = load(HUB / "lfm2")
    assert (loaded.engine.backend.info.dtype, loaded.skipped) == ("q8", (("q4", "no finite logits"),))
    assert checked == ["q4", "q8"]


def test_nothing_that_runs_is_one_error_with_all_reasons(tmp_path):
    folder = shutil.copytree(HUB / "qwen2", tmp_path / "m")
    for graph in (folder / "onnx").glob("*.onnx"):
        graph.write_bytes(b"damaged")
    with pytest.raises(ModelFileError, match=r"uint8: .*q4f16: ") as caught:
        load(folder)
    assert [skipped.dtype for skipped in caught.value.skipped] == ["uint8", "q4f16"]


def test_missing_tokenizer_is_named_and_no_precision_is_blamed(llama):
    (llama / "tokenizer.json").unlink()
    with pytest.raises(ModelFileError, match="has no tokenizer.json") as caught:
        load(llama)
    assert "precision" not in str(caught.value) and caught.value.path == llama
    assert caught.value.hint == f"Copy it from the page of the model into {llama}."
    (llama / "tokenizer.model").touch()
    with pytest.raises(ModelFileError) as caught:
        load(llama)
    assert "or make it of tokenizer.model: AutoTokenizer" in caught.value.hint


def test_multimodal_decoder_is_refused_by_name(llama):
    import onnx

    path = llama / "onnx" / "model_q4.onnx"
    model = onnx.load(path)
    next(value for value in model.graph.input if value.name == "input_ids").name = "inputs_embeds"
    onnx.save(model, path)
    with pytest.raises(UnsupportedModelError, match="multimodal"):
        load(llama, "q4")


def test_hub_cache_of_symbolic_links(tmp_path):
    """The hub's own cache: names in a snapshot folder that point at files named by their hash."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    for number, file in enumerate(path for path in (HUB / "llama").rglob("*") if path.is_file()):
        shutil.copy(file, blobs / str(number))
        place = snapshot / file.relative_to(HUB / "llama")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(blobs / str(number))
    for dtype in ("fp32", "q4f16"):
        assert load(snapshot, dtype).engine.backend.info.dtype == dtype


def test_genai_folder_inside_a_hub_repo(tmp_path):
    repo = shutil.copytree(HUB / "qwen3", tmp_path / "repo", ignore=shutil.ignore_patterns("onnx"))
    inner = repo / "onnxruntime" / "cpu-int8"
    shutil.copytree(FIXTURES / "genai" / "qwen3-int8", inner)
    assert load(repo).engine.backend.info.dtype == "q8"


def test_legacy_and_plain_graphs_load_by_path():
    assert load(FIXTURES / "legacy" / "gpt2").engine.backend.info.dtype == "fp32"
    assert load(HUB / "gpt2").engine.backend.info.dtype == "q8"


def test_has_graphs(tmp_path):
    assert has_graphs(HUB / "llama")
    assert not has_graphs(tmp_path)
    assert not has_graphs(tmp_path / "absent")


def test_prepare_serves_the_download_command():
    from tinykit.registry import get_model

    folder = HUB / "llama"
    assert loading.prepare(get_model(folder), "q4", progress=Progress(False)) == folder.resolve()
    assert len(store.entries()) == 1
