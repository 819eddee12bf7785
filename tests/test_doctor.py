import json
import sys

import pytest

from tinykit.doctor import Report, doctor

module = sys.modules["tinykit.doctor"]  # the package has the function of that name
NAMES = list(module._FACTS)


def test_facts_of_this_machine():
    facts = doctor().facts
    assert list(facts) == NAMES
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["threads"] >= 1
    assert "CPUExecutionProvider" in facts["providers"]
    assert facts["home_bytes"] == 0
    assert facts["disk_free_bytes"] > 0
    assert facts["environment"] == ["TINYKIT_CONFIG", "TINYKIT_HOME"]
    assert not [name for name, value in facts.items() if "Error" in str(value)]


@pytest.mark.parametrize(
    ("variable", "value", "broken"),
    [
        ("TINYKIT_THREADS", "many", {"threads"}),
        ("TINYKIT_OFFLINE", "maybe", {"offline"}),
        ("TINYKIT_HOME", "~no-such-user/x", {"home", "home_bytes", "disk_free_bytes"}),
        ("TINYKIT_CONFIG", "~no-such-user/x", {"config", "threads", "offline"}),
    ],
)
def test_bad_setting_is_the_value_of_its_fact(monkeypatch, variable, value, broken):
    monkeypatch.setenv(variable, value)
    report = doctor()
    assert list(report.facts) == NAMES
    said = f"OptionError: The variable {variable} is {value!r}, but must be"
    assert {name for name, found in report.facts.items() if str(found).startswith(said)} == broken
    assert len(str(report).splitlines()) == len(NAMES) + 1
    assert json.loads(json.dumps(report.facts)) == report.facts


def test_unreadable_config_file_is_reported(monkeypatch, tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("nonsense", encoding="utf-8")
    monkeypatch.setenv("TINYKIT_CONFIG", str(path))
    facts = doctor().facts
    assert facts["config"] == str(path)
    assert f"{path} cannot be read" in facts["threads"]


def test_package_that_cannot_be_imported_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert "onnxruntime" in doctor().facts["providers"]


@pytest.mark.parametrize("name", NAMES)
def test_one_fact_that_fails_leaves_the_others(monkeypatch, name):
    def fail():
        raise OSError(5, "broken\n  disk")

    monkeypatch.setitem(module._FACTS, name, fail)
    report = doctor()
    assert report.facts[name] == "OSError: [Errno 5] broken disk"
    assert sum("broken disk" in line for line in str(report).splitlines()) == 1


def test_values_are_shown_in_words():
    facts = {
        "home_bytes": 92_900_000,
        "torch": None,
        "processor": None,
        "providers": [],
        "environment": ["a", "b"],
    }
    shown = [line.split(maxsplit=1)[1] for line in str(Report(facts)).splitlines()[1:]]
    assert shown == ["92.9 MB", "not installed", "unknown", "none", "a, b"]


def test_home_below_a_file_is_said(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TINYKIT_HOME", str(tmp_path / "file" / "home"))
    said = doctor().facts["home"]
    assert said == f"{tmp_path / 'file' / 'home'} (cannot be used: {tmp_path / 'file'} is not a folder)"
