"""GGUF files inside repos of the hub: one file is fetched, and it becomes the model it is."""

import numpy as np
import pytest

from tests import tiny_models as tiny
from tests.hub_server import COMMIT, REPO, HubServer, Repo
from tests.test_families import FIXTURES, PAIRS, SYSTEM
from tinykit import TinySession, hub, inventory, loading, store
from tinykit.errors import OptionError, UnsupportedModelError
from tinykit.model_facts import local_facts, remote_facts
from tinykit.model_spec import HubSource
from tinykit.progress import Progress
from tinykit.registry import get_model

GEMMA, LFM2 = ((FIXTURES / "gguf" / f"{name}-Q8_0.gguf").read_bytes() for name in ("gemma3", "lfm2"))
FILES = {
    "README.md": b"# Tiny",
    "tiny-Q8_0.gguf": GEMMA,
    "tiny-Q4_K_M.gguf": LFM2,  # a model that can be told from the other by its family
    "tiny-IQ2_M.gguf": b"damaged",
    "mmproj-f16.gguf": b"damaged",
}


@pytest.fixture(autouse=True)
def server(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.repos[REPO] = Repo({COMMIT: dict(FILES)})
        yield server


def load(name, dtype=None, **options):
    return loading.load(name, dtype=dtype, progress=Progress(False), **options)


def fetched(server):
    return [seen.path.rpartition("/")[2] for seen in server.file_requests]


def test_repo_without_graphs_is_its_best_gguf_file(server):
    with TinySession(REPO, progress=False) as session:
        chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PAIRS[0][0]}]
        assert str(session.chat(chat)) == f"<title>{PAIRS[0][1]}</title>"
    assert fetched(server) == ["tiny-Q8_0.gguf"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (f"{REPO}:Q4_K_M", None),
        (f"{REPO}:q4_k_m", "fp32"),
        (f"{REPO}@main:tiny-Q4_K_M.gguf", None),
        (REPO, "Q4_K_M"),
    ],
)
def test_number_format_or_name_chooses_the_file(server, name, dtype):
    loaded = load(name, dtype)
    assert fetched(server) == ["tiny-Q4_K_M.gguf"]
    assert not loaded.engine.backend.new_state().can_truncate  # the convolutions of LFM2
    assert loaded.engine.backend.info.dtype == ("fp32" if dtype == "fp32" else "q8")


def test_choices_do_not_get_into_each_others_way(server):
    sizes = {
        hub.fetch(HubSource(REPO, gguf=choice), progress=Progress(False)).size_bytes
        for choice in ("Q8_0", "Q4_K_M")
    }
    assert sizes == {len(GEMMA), len(LFM2)}


def test_warm_load_makes_no_request_and_no_second_build(server):
    folders = {load(REPO).folder}
    server.seen.clear()
    folders.add(load(REPO).folder)
    assert server.seen == []
    folders |= {load(REPO, dtype).folder for dtype in ("q8", "int8", "q8_0")}
    assert fetched(server) == []  # only the list of files was looked at
    assert len(folders) == 1
    assert len([entry for entry in store.entries() if entry.path.parts[-3] == "models"]) == 1


def test_wrong_choice_lists_the_files_and_fetches_nothing(server):
    for name, dtype in ((f"{REPO}:Q5_K_M", None), (REPO, "q5_k_m")):
        with pytest.raises(
            OptionError, match="no 'Q5_K_M' among its GGUF files; there are Q8_0, Q4_K_M, IQ2_M"
        ):
            load(name, dtype)
    with pytest.raises(OptionError, match="no Q4_0 file"):
        load(REPO, "q4")
    assert fetched(server) == []


def test_choice_in_a_repo_of_graphs_is_refused(server):
    server.repos[REPO] = Repo({COMMIT: {"onnx/model_q4.onnx": b"x"}})
    with pytest.raises(OptionError, match="no GGUF file here"):
        load(f"{REPO}:Q8_0")


def test_graphs_and_safetensors_go_first(server):
    files = server.repos[REPO].commits[COMMIT]
    files |= {"config.json": b"{}", "model.safetensors": b"x"}
    assert hub.plan(HubSource(REPO)).choice.data == ("model.safetensors",)
    files["onnx/model_q4.onnx"] = b"x"
    assert hub.plan(HubSource(REPO)).choice.graph == "onnx/model_q4.onnx"
    assert hub.plan(HubSource(REPO, gguf="Q8_0")).choice.data == ("tiny-Q8_0.gguf",)


def test_unknown_architecture_is_refused_before_the_download(server):
    server.repos[REPO].gguf_family = "mamba"
    with pytest.raises(UnsupportedModelError, match=f"{REPO} holds a model of family 'mamba'.*llama, qwen2"):
        load(REPO)
    assert fetched(server) == []
    server.repos[REPO].gguf_family = "gemma3"
    assert load(REPO).engine.backend.info.dtype == "q8"


def test_unknown_architecture_is_refused_after_it_where_the_hub_does_not_tell(server, tmp_path):
    weights = {"token_embd.weight": np.zeros((4, 4), np.float32)}
    path = tiny.write_gguf(
        tmp_path / "m.gguf", "mamba", {"model.embed_tokens.weight": weights["token_embd.weight"]}
    )
    server.repos[REPO] = Repo({COMMIT: {"m-F32.gguf": path.read_bytes()}})
    with pytest.raises(UnsupportedModelError, match="family 'mamba'"):
        load(REPO)


def test_copy_is_found_and_verified_and_its_import_counted():
    spec = get_model(f"{REPO}:Q8_0")
    folder = load(spec).folder
    row = inventory.model_row(spec)
    assert (row["here"], list(row["builds"])) == ("ready", [folder.name])
    assert inventory.verify_model(spec) == 2
    assert inventory.remove_model(spec).kept[0].name == "tiny-Q8_0.gguf"


def test_offline_uses_what_another_program_fetched(server):
    from huggingface_hub import hf_hub_download

    from tinykit import hub_cache

    hf_hub_download(REPO, "tiny-Q4_K_M.gguf", cache_dir=hub_cache.cache_folder(), endpoint=server.url)
    server.seen.clear()
    assert load(REPO, offline=True).engine.backend.info.dtype == "q8"
    assert server.seen == []


def test_facts_of_a_repo_and_of_the_file_that_was_fetched(server):
    server.repos[REPO].gguf_family = "lfm2"
    spec = get_model(f"{REPO}:Q4_K_M")
    facts = remote_facts(spec, None, "onnx")
    assert (facts["layout"], facts["family"], facts["tokenizer"]) == ("gguf", "lfm2", "in the file")
    assert facts["dtypes"] == {"Q8_0": len(GEMMA), "Q4_K_M": len(LFM2), "IQ2_M": len(b"damaged")}
    assert facts["files"] == ["tiny-Q4_K_M.gguf"] and fetched(server) == []
    assert local_facts(spec) == {}
    hub.fetch(spec.sources[0], progress=Progress(False))
    facts = local_facts(spec)
    assert (facts["layout"], facts["family"], "problem" in facts) == ("gguf", "lfm2", False)


def test_chosen_file_is_listed_under_its_name_and_gives_float_weights(server):
    spec = get_model(f"{REPO}:Q4_K_M")
    place = loading.float_weights(spec, progress=Progress(False))
    assert place.name == "tiny-Q4_K_M.gguf"
    assert [other.key for other in inventory.other_models()] == [spec.key]
    assert inventory.verify_model(inventory.find_model(spec.key)) == 1
