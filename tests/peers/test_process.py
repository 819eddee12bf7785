import pytest

from tests.peers.conftest import scripted
from tinykit.errors import BackendError
from tinykit.peers.process import EngineProcess, Place, environment
from tinykit.peers.work import Ask

NOWHERE = Place("")


def start(peer, place=NOWHERE, **options):
    return EngineProcess("rote", peer, place, threads=1, **options)


def test_a_process_answers_though_its_library_prints():
    with start(scripted()) as process:
        assert process.cold_s > process.load_s >= 0
        found = process.ask(Ask(("plan a trip to Lisbon", "bake bread")))
        assert [one["text"] for one in found["answers"]] == ["plan a trip to", "bake bread"]
        assert all(one["total_s"] >= 0 for one in found["answers"])
        assert found["peak_bytes"] > 2**20
        fixed = process.ask(Ask(("bake bread",), 8, ()))
        assert fixed["answers"][0]["tokens"] == 8


def test_prompts_at_once_have_one_time():
    with start(scripted(), batch=2) as process:
        found = process.ask(Ask(("a b", "c d", "e f"), batch=2))
        assert len(found["answers"]) == 3 and "total_s" not in found["answers"][0]
        assert found["elapsed_s"] >= 0


@pytest.mark.parametrize(
    ("fails", "why"),
    [
        ("load", "RuntimeError: no such weights"),
        ("title", "RuntimeError: out of tokens"),
        ("exit", "ended with 9"),
    ],
)
def test_a_process_that_fails_says_why(fails, why):
    with pytest.raises(BackendError, match=f"rote failed: .*{why}") as caught:
        start(scripted(fails=fails))
    assert caught.value.hint


def test_an_interpreter_that_is_no_python_says_what_it_said(tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho 'no module named json' >&2\nexit 3\n")
    script.chmod(0o755)
    with pytest.raises(BackendError, match=r"ended with 3 \(no module named json\)"):
        start(scripted(), Place("", str(script)))


def test_what_is_asked_of_a_dead_process_fails():
    process = start(scripted())
    process._process.kill()
    process._process.wait(60)
    with pytest.raises(BackendError, match="rote failed"):
        process.ask(Ask(("a",)))
    process.close()
    assert process._process.returncode is not None


def test_bytecode_is_written_where_the_others_have_theirs(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "PYTHONDONTWRITEBYTECODE" not in environment()


def test_engines_do_not_report_to_their_makers():
    found = environment()
    assert (found["ORT_DISABLE_TELEMETRY"], found["NNCF_CI"]) == ("1", "1")
