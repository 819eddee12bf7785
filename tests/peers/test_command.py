import json
from dataclasses import replace

import pytest

from tests.peers.conftest import scripted
from tinykit.errors import BackendError, OptionError
from tinykit.peers import bystanders, command
from tinykit.peers.command import Options


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setattr(bystanders, "current_share", lambda: 0.0)


@pytest.fixture
def two(script_peers, monkeypatch):
    peers, _ = script_peers(tinykit=scripted("tinykit"), openvino=scripted("openvino"))
    monkeypatch.setattr(command, "DEFAULT", tuple(peers))
    return peers


def small(**more):
    return Options(rounds=2, messages=2, batches={2: 2}, gate=0, threads=1, **more)


def test_a_run_measures_all_that_are_there(two, quiet, tmp_path):
    said, shown = [], []
    outcome = command.run(small(), say=said.append)
    assert outcome.figures.engines() == ["tinykit", "openvino"] and outcome.passes
    assert len(said) == 2 * 2 + 2
    command.tell(outcome, shown.append, plot=tmp_path / "peers.html")
    found = json.loads(shown[-1])
    assert {one["theirs"] for one in found["ratios"]} == {"openvino"} and found["threads"] == 1
    assert "<svg" in (tmp_path / "peers.html").read_text(encoding="utf-8")
    shown.clear()
    command.tell(outcome, shown.append, as_json=True)
    assert len(shown) == 1 and json.loads(shown[0])["rounds"] == 2


def test_what_is_not_installed_is_left_out_and_said(two, quiet, monkeypatch):
    monkeypatch.setitem(command.PEERS, "openvino", replace(two["openvino"], packages=("no_such_package",)))
    outcome = command.run(small())
    assert outcome.figures.engines() == ["tinykit"]
    assert outcome.figures.failed == {
        "openvino": "no_such_package is not installed (pip install no-such-package; docs/peers.md has all that it needs)"
    }


def test_an_interpreter_that_is_not_there_is_said(two, quiet, monkeypatch):
    monkeypatch.setitem(command.PEERS, "openvino", replace(two["openvino"], packages=("json",)))
    _, missing = command.present(small(pythons={"openvino": "/nowhere/python"}))
    assert "/nowhere/python" in missing["openvino"]
    found, missing = command.present(small())
    assert list(found) == ["tinykit", "openvino"] and not missing


def test_weights_that_cannot_be_had_leave_only_that_engine_out(two, quiet):
    outcome = command.run(small(files={"openvino": "/nowhere/model"}))
    assert outcome.figures.engines() == ["tinykit"]
    assert "There is no /nowhere/model" in outcome.figures.failed["openvino"]


def test_a_busy_machine_is_refused_unless_that_is_all_right(two, monkeypatch):
    monkeypatch.setattr(bystanders, "current_share", lambda: 0.4)
    with pytest.raises(BackendError, match="Others use 40% of this machine") as caught:
        command.run(small())
    assert "--busy-ok" in caught.value.hint
    said = []
    command.refuse_busy(True, said.append)
    assert "no measurement" in said[0]
    monkeypatch.setattr(bystanders, "current_share", lambda: None)
    command.refuse_busy(False, said.append)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"engines": ["nope"]}, "no engine 'nope'"),
        ({"files": {"nope": "x"}}, "no engine 'nope'"),
        ({"rounds": 1}, "rounds must be 2 or more"),
        ({"messages": 1}, "messages must be 2 or more"),
        ({"gate": -1}, "gate must be 0 or more"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(options, match):
    with pytest.raises(OptionError, match=match):
        Options(**options).check()


def test_quick_is_less_of_all():
    full, less = Options(), command.quick(Options())
    assert less.rounds < full.rounds and less.gate < full.gate and less.messages < full.messages


def test_pairs():
    assert command.pairs(["a=/x", "b=y=z"], "files") == {"a": "/x", "b": "y=z"}
    with pytest.raises(OptionError, match="--files takes ENGINE=PATH"):
        command.pairs(["a"], "files")


def test_a_page_that_cannot_be_written_is_said(two, quiet, tmp_path):
    outcome = command.Outcome(command.Figures(), ())
    with pytest.raises(OptionError, match="cannot be written"):
        command.tell(outcome, print, plot=tmp_path / "no" / "peers.html")
