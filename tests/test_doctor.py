import json
import os
import re
import sys

import pytest

from tests.hub_server import PAGE, HubServer
from tests.index_server import Fault
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
    assert facts["onnxruntime_telemetry"] == "off"
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


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("THREADS", "zero", "'zero', but must be a whole number from 1 to"),
        (
            "PROGRESS",
            "loud",
            "'loud', but must be one of auto, off, plain. Set it to one of auto, off, plain,",
        ),
        ("WORKER_IDLE_S", "0", "'0', but must be a whole number from 1. Set it to"),
        ("STABLE", "maybe", "'maybe', but must be one of 1, 0, true"),
        ("DEVICE", "cudda", "cannot be used. Unknown device 'cudda'; known are"),
        ("BACKEND", "onyx", "cannot be used. Unknown backend 'onyx'; known are"),
        ("DTYPE", "w8a9", "cannot be used. Unknown dtype 'w8a9'; known are"),
        (
            "MODEL",
            "smolm2-135m",
            "cannot be used. There is no model 'smolm2-135m'. Did you mean smollm2-135m",
        ),
        ("RECIPE", "plane", "cannot be used. No recipe 'plane'; the recipes are"),
        ("THREAD", "2", "means nothing. Did you mean TINYKIT_THREADS?"),
        ("QUERTZ", "2", "means nothing. Remove it."),
    ],
)
def test_wrong_settings_are_found_with_what_to_do(monkeypatch, variable, value, said):
    monkeypatch.setenv(f"TINYKIT_{variable}", value)
    report = doctor()
    (found,) = report.facts["wrong_settings"]
    assert found.startswith(f"The variable TINYKIT_{variable} ") and said in found
    assert found in str(report)


def test_settings_that_can_be_used_are_not_wrong(monkeypatch):
    for name, value in {
        "model": "smollm2-135m", "recipe": "plain", "device": "cuda", "backend": "transformers",
        "dtype": "q8", "threads": "2", "token": "secret",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"TINYKIT_{name.upper()}", value)
    assert doctor().facts["wrong_settings"] == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nonsense", ["The config file {path} cannot be read: "]),
        ("thread = 2", ["The config file {path} has an unknown setting 'thread'. Did you mean 'threads'?"]),
        (
            "threads = 0\nmodel = 3",
            ["threads in {path} is 0, but must be", "model in {path} is 3, but must be"],
        ),
        ("[models.mine]", ["{path}"]),
    ],
    ids=["unreadable", "unknown", "values", "models"],
)
def test_wrong_config_file_is_found(monkeypatch, tmp_path, content, said):
    path = tmp_path / "config.toml"
    path.write_text(content, encoding="utf-8")
    monkeypatch.setenv("TINYKIT_CONFIG", str(path))
    found = doctor().facts["wrong_settings"]
    assert len(found) == len(said)
    for text, part in zip(sorted(found), sorted(said), strict=True):
        assert part.format(path=path) in text


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


def test_notebooks_get_a_plain_table_in_which_all_is_escaped():
    shown = Report({"<b>": "a & b", "providers": ["<script>", "b"]})._repr_html_()
    assert "<caption>tinykit doctor</caption>" in shown
    assert shown.count('scope="col"') == 2
    assert re.search(r'<tr><th scope="row"[^>]*>&lt;b&gt;</th><td[^>]*>a &amp; b</td></tr>', shown)
    assert ">&lt;script&gt;, b</td>" in shown
    assert not [word for word in ("color", "background", "class=", "<script>") if word in shown]
    assert "text-align: left" in shown  # a notebook's own style has long texts at the right
    assert doctor()._repr_html_().count("<tr>") == len(NAMES) + 1


class TestHub:
    @pytest.fixture(autouse=True)
    def server(self, monkeypatch):
        for name in list(os.environ):
            if name.lower().endswith("_proxy"):
                monkeypatch.delenv(name)
        with HubServer() as server:
            monkeypatch.setenv("HF_ENDPOINT", server.url)
            yield server

    def test_hub_is_asked_only_when_that_is_wanted(self, server):
        assert "hub_answer" not in doctor().facts
        assert server.seen == []
        facts = doctor(hub=True).facts
        assert list(facts) == [*NAMES, "hub_answer"]
        assert facts["hub_answer"].startswith("in ")
        assert [seen.path for seen in server.seen if "harness" not in seen.path] == ["/api/models"]

    def test_hub_is_not_asked_offline(self, server, monkeypatch):
        monkeypatch.setenv("TINYKIT_OFFLINE", "1")
        assert doctor(hub=True).facts["hub_answer"] == "not asked, as the network is switched off"
        assert server.seen == []

    @pytest.mark.parametrize(
        ("fault", "said"),
        [
            (Fault(status=503), "DownloadError: {url} answers with status 503"),
            (Fault(status=401), "DownloadError: {url} answers with status 401"),
            (Fault(body=PAGE), "WrongContentError: {url} does not answer as a hub does"),
            (Fault(body=b"{}"), "WrongContentError: {url} does not answer as a hub does"),
        ],
        ids=["out of order", "login", "page", "other"],
    )
    def test_what_is_wrong_with_the_hub_is_its_answer(self, server, fault, said):
        server.search_faults.append(fault)
        assert doctor(hub=True).facts["hub_answer"].startswith(said.format(url=server.url))

    def test_hub_that_is_not_there_is_named_without_its_password(self, monkeypatch):
        monkeypatch.setenv("HF_ENDPOINT", "http://user:secret@127.0.0.1:1")
        report = doctor(hub=True)
        said = "OfflineError: http://***@127.0.0.1:1 cannot be reached"
        assert report.facts["hub_answer"].startswith(said)
        assert "secret" not in str(report)
