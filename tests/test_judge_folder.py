"""From the files of a judge model to a judge."""

import pytest

from tests import tiny_judge
from tests.hub_server import COMMIT, REPO, HubServer, Repo
from tests.test_families import FIXTURES
from tests.tiny_judge import SEP
from tinykit import TinySession, loading
from tinykit.errors import (
    ClosedError,
    ModelFileError,
    OptionError,
    UnknownModelError,
    UnsupportedModelError,
)
from tinykit.generation.judging import MAX_TOKENS
from tinykit.generation.questions import YesNoQuestion
from tinykit.judge_folder import is_judge_folder, open_judge
from tinykit.model_spec import FileSource, ModelSpec
from tinykit.progress import Progress

MESSAGE = "The app crashes when I open it."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_judge.write_judge(tmp_path_factory.mktemp("judges") / "julia")


@pytest.mark.parametrize("extra", ["config.json", "genai_config.json"])
def test_tokenizer_without_a_configuration_beside_a_graph_is_a_judge(extra, folder, tmp_path):
    assert is_judge_folder(folder)
    other = tiny_judge.write_judge(tmp_path / "other")
    (other / extra).write_text("{}", encoding="utf-8")
    assert not is_judge_folder(other)
    (other / extra).unlink()
    (other / "tokenizer.json").unlink()
    assert not is_judge_folder(other)
    assert not is_judge_folder(FIXTURES / "hub" / "llama")
    assert not is_judge_folder(tmp_path / "absent")


def test_judge_runs_on_the_cpu_in_its_own_precision(folder):
    judge = open_judge(folder, "auto", threads=1)
    info = judge.backend.info
    assert (info.device, info.providers, info.dtype) == ("cpu", ("CPUExecutionProvider",), "fp32")
    assert (info.threads, info.context_length) == (1, MAX_TOKENS)
    judge.close()
    with pytest.raises(ClosedError):
        judge.answer(MESSAGE, {"urgent": YesNoQuestion("Is it urgent?")})


def test_judge_is_told_by_its_entry_or_by_its_files(folder, tmp_path):
    plain = loading.load(folder, progress=Progress(False))
    assert (plain.is_judge, plain.spec.task, plain.folder) == (True, "judge", folder)
    with_config = tiny_judge.write_judge(tmp_path / "other", config={"max_position_embeddings": 100})
    spec = ModelSpec("mine", "Mine", "julia", (FileSource(with_config),), task="judge")
    loaded = loading.load(spec, progress=Progress(False))
    assert loaded.judge.backend.info.context_length == 100
    assert loading.prepare(spec, "auto", progress=Progress(False)) == with_config
    with pytest.raises(UnsupportedModelError, match="marker_pos"):
        loading.load(with_config, progress=Progress(False))


def test_ready_event_names_the_task(folder):
    events = []
    loading.load(folder, progress=Progress(events.append)).close()
    assert [event.task for event in events if event.status == "ready"] == ["text-classification"]


def test_folder_without_graph_is_no_model(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UnknownModelError):
        TinySession(tmp_path, progress=False)


@pytest.mark.parametrize("missing", ["mask_token", "sep_token"])
def test_tokenizer_without_a_needed_token(tmp_path, missing):
    names = {name: token for name, token in tiny_judge.NAMES.items() if name != missing}
    with pytest.raises(ModelFileError, match="names no mask_token or no sep_token"):
        TinySession(tiny_judge.write_judge(tmp_path / "julia", names=names), progress=False)


@pytest.mark.parametrize(
    ("names", "class_id"),
    [
        ({"cls_token": "<eos>", "bos_token": "<unk>"}, SEP),
        ({"bos_token": "<unk>"}, tiny_judge.UNK),
        ({"bos_token": {"content": "<unk>"}}, tiny_judge.UNK),
        ({}, 2),
    ],
    ids=["class", "begin", "as_object", "neither"],
)
def test_class_token_falls_back(tmp_path, names, class_id):
    needed = {name: tiny_judge.NAMES[name] for name in ("mask_token", "sep_token")}
    session = TinySession(tiny_judge.write_judge(tmp_path / "julia", names=needed | names), progress=False)
    assert session.load().judge._marks.class_id == class_id
    assert session.load().judge._marks.pad_id == 0


def test_missing_dtype_lists_what_exists(folder):
    with pytest.raises(OptionError, match="'q4'.*there are fp32"):
        TinySession(folder, dtype="q4", progress=False)


def test_hub_repo_of_a_judge(folder, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with HubServer() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        server.repos[REPO] = Repo({COMMIT: files})
        with TinySession(REPO, progress=False) as session:
            assert session.load().is_judge
            first = session.yes_no("Is it urgent?", MESSAGE)
        server.seen.clear()
        with TinySession(REPO, progress=False) as session:
            assert session.yes_no("Is it urgent?", MESSAGE) == first
        assert server.seen == []
