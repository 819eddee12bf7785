import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import tinykit.tune.tuning
from tinykit.tune.command import tune
from tinykit.tune.result import TuneResult


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"message": "a", "title": "b"}), encoding="utf-8")
    return path


@pytest.fixture
def calls(monkeypatch):
    """What the command asks for; nothing is trained."""
    seen = []

    def record(cases, **options):
        seen.append((cases, options))
        return TuneResult(Path("mine"), "smollm2-135m", "titles", 24, 9, 60.0, stopped="resume" in str(cases))

    monkeypatch.setattr(tinykit.tune.tuning, "tune", record)
    return seen


def test_options_reach_the_training(pairs, calls, tmp_path):
    arguments = [str(pairs), "--minutes", "5", "--out", str(tmp_path / "o"), "--rank", "8", "--resume"]
    result = CliRunner().invoke(tune, arguments)
    assert result.exit_code == 0, result.output
    cases, options = calls[0]
    assert cases == str(pairs)
    wanted = {"minutes": 5, "out": str(tmp_path / "o"), "rank": 8, "resume": True, "base": "smollm2-135m"}
    assert wanted.items() <= options.items()
    assert options["offline"] is None
    assert result.stdout.startswith("mine: 9 steps on 24 pairs in 1.0 min")
    assert "TinySession('smollm2-135m', adapter='mine')" in result.stderr


def test_stopped_training_says_how_to_go_on(calls, tmp_path):
    path = tmp_path / "resume.jsonl"
    path.write_text("", encoding="utf-8")
    result = CliRunner().invoke(tune, [str(path)])
    assert f"tinykit tune {path} --out mine --resume" in result.stderr


@pytest.mark.parametrize("arguments", [[], ["nowhere.jsonl"], ["--minutes", "0"]], ids=str)
def test_wrong_use_is_an_error(arguments, calls, pairs):
    given = [str(pairs), *arguments] if arguments[:1] == ["--minutes"] else arguments
    assert CliRunner().invoke(tune, given).exit_code == 2
    assert calls == []


def test_help_shows_every_option():
    text = CliRunner().invoke(tune, ["--help"]).output
    assert "chat export" in text
    assert "--held-out" in text
