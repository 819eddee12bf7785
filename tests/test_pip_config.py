import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.index_server import isolate_pip
from tinykit import pip_config
from tinykit.errors import OptionError
from tinykit.pip_config import PipConfig, read_pip_config, redact


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """The places of config files, all below one folder: a function that writes one of them."""
    isolate_pip(monkeypatch)
    monkeypatch.delenv("PIP_CONFIG_FILE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "site"))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "machine"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    machine = pip_config._machine_folders
    monkeypatch.setattr(pip_config, "_machine_folders", lambda: [p for p in machine() if p != Path("/etc")])
    places = {
        "machine": "machine/pip/pip.conf",
        "user-old": "user/.pip/pip.conf",
        "user": "user/.config/pip/pip.conf",
        "site": "site/pip.conf",
        "named": "named.conf",
    }

    def write(place, text, encoding="utf-8"):
        path = tmp_path / places[place]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding=encoding)
        return path

    return write


def test_nothing_configured_means_the_public_index():
    assert read_pip_config() == PipConfig(index_urls=("https://pypi.org/simple",))


def test_later_files_win(files, monkeypatch):
    for place in ("machine", "user-old", "user", "site"):
        files(place, f"[global]\nindex-url = https://{place}.example/simple\n")
        assert read_pip_config().index_urls == (f"https://{place}.example/simple",)
    monkeypatch.setenv(
        "PIP_CONFIG_FILE", str(files("named", "[global]\nindex_url = https://named.example/\n"))
    )
    assert read_pip_config().index_urls == ("https://named.example/",)
    monkeypatch.setenv("PIP_INDEX_URL", "https://variable.example/")
    assert read_pip_config().index_urls == ("https://variable.example/",)


def test_named_file_replaces_those_of_the_user(files, monkeypatch):
    files("user", "[global]\ntimeout = 3\n")
    files("machine", "[global]\nproxy = http://proxy.example:8080\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(files("named", "[global]\ncert =\n")))
    config = read_pip_config()
    assert config.timeout_s == 15
    assert config.proxy == "http://proxy.example:8080"


def test_null_device_switches_all_files_off(files, monkeypatch):
    files("site", "[global]\nindex-url = https://site.example/\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert read_pip_config() == PipConfig()


def test_section_of_a_command_wins_over_global_wherever_it_stands(files):
    files("machine", "[install]\nindex-url = https://install.example/\n")
    files("site", "[global]\nindex-url = https://global.example/\n")
    assert read_pip_config().index_urls == ("https://install.example/",)
    files(
        "user",
        "[download]\nindex-url = https://download.example/\n[freeze]\nindex-url = https://no.example/\n",
    )
    assert read_pip_config().index_urls == ("https://download.example/",)


def test_lists_are_split_and_replaced_as_a_whole(files, monkeypatch):
    files(
        "user",
        "[global]\nextra-index-url =\n    https://a.example/\n    https://b.example/\n"
        "find-links = ~/wheels /srv/wheels\ntrusted-host = a.example b.example:8443\n",
    )
    config = read_pip_config()
    assert config.index_urls == ("https://pypi.org/simple", "https://a.example/", "https://b.example/")
    assert config.find_links == (str(Path.home() / "wheels"), "/srv/wheels")
    assert config.trusted_hosts == ("a.example", "b.example:8443")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://c.example/")
    assert read_pip_config().index_urls == ("https://pypi.org/simple", "https://c.example/")


@pytest.mark.parametrize(("value", "count"), [("1", 0), ("true", 0), ("no", 1), ("", 1)])
def test_no_index_keeps_only_find_links(monkeypatch, value, count):
    monkeypatch.setenv("PIP_NO_INDEX", value)
    monkeypatch.setenv("PIP_FIND_LINKS", "/srv/wheels")
    config = read_pip_config()
    assert len(config.index_urls) == count
    assert config.find_links == ("/srv/wheels",)


def test_all_variables_count(tmp_path, monkeypatch):
    (tmp_path / "c.pem").write_text("")
    for name, value in {
        "CERT": tmp_path / "c.pem",
        "CLIENT_CERT": tmp_path / "c.pem",
        "TRUSTED_HOST": "a b",
        "PROXY": "http://p.example",
        "DEFAULT_TIMEOUT": "2.5",
    }.items():
        monkeypatch.setenv(f"PIP_{name}", str(value))
    assert read_pip_config() == PipConfig(
        cert=str(tmp_path / "c.pem"),
        client_cert=str(tmp_path / "c.pem"),
        trusted_hosts=("a", "b"),
        proxy="http://p.example",
        timeout_s=2.5,
    )


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PIP_NO_INDEX", "maybe", "PIP_NO_INDEX sets no-index to 'maybe', but must be yes or no"),
        ("PIP_DEFAULT_TIMEOUT", "soon", "PIP_DEFAULT_TIMEOUT sets timeout to 'soon'"),
        ("PIP_TIMEOUT", "nan", "PIP_TIMEOUT sets timeout to 'nan'"),
        ("PIP_CERT", "/no/such.pem", "PIP_CERT sets cert to '/no/such.pem', which does not exist"),
    ],
)
def test_bad_values_name_their_place(monkeypatch, variable, value, message):
    monkeypatch.setenv(variable, value)
    with pytest.raises(OptionError, match=message):
        read_pip_config()


@pytest.mark.parametrize(
    "text",
    ["index-url = https://me:s3cret@a.example/\n", "[global]\nx\nhttps://me:s3cret@b/\n"],
    ids=["head", "body"],
)
def test_broken_file_is_named_and_its_passwords_are_not(files, text):
    path = files("user", text)
    with pytest.raises(OptionError, match=str(path)) as caught:
        read_pip_config()
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_file_in_another_encoding_is_an_error(files, monkeypatch):
    monkeypatch.setattr(pip_config.locale, "getencoding", lambda: "utf-8")
    path = files("user", "[global]\nproxy = ü\n", encoding="latin-1")
    with pytest.raises(OptionError, match=str(path)):
        read_pip_config()


def test_other_systems_have_their_own_places(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert tmp_path / "user/.config/pip/pip.conf" in pip_config.config_files()
    library = tmp_path / "user/Library/Application Support/pip"
    library.mkdir(parents=True)
    assert library / "pip.conf" in pip_config.config_files()
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("APPDATA", str(tmp_path / "appdata"))
    assert tmp_path / "appdata/pip/pip.ini" in pip_config.config_files()
    assert tmp_path / "user/pip/pip.ini" in pip_config.config_files()


def test_local_only():
    config = PipConfig(
        index_urls=("https://a.example/", "file:///srv/simple"),
        find_links=("/srv/wheels", "https://b.example/"),
    )
    assert config.local_only() == PipConfig(index_urls=("file:///srv/simple",), find_links=("/srv/wheels",))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see https://me:pw@a.example/x", "see https://***@a.example/x"),
        ("https://token@a.example", "https://***@a.example"),
        ("https://a.example/me@here", "https://a.example/me@here"),
        ("http://u:p%40@a/ and http://u:q@b/", "http://***@a/ and http://***@b/"),
    ],
)
def test_redact(text, expected):
    assert redact(text) == expected


def test_same_answers_as_pip(files, monkeypatch):
    """pip itself reads the same files here, if it is installed."""
    pytest.importorskip("pip", reason="pip is not installed")
    files("machine", "[global]\nindex-url = https://machine.example/\n")
    files("user-old", "[global]\nindex-url = https://old.example/\nproxy = http://old.example\n")
    files("user", "[global]\nindex-url = https://user.example/\ntimeout = 7\n")
    monkeypatch.setenv("PIP_PROXY", "http://variable.example")
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    config = read_pip_config()
    assert f"global.index-url='{config.index_urls[0]}'" in listed
    assert f":env:.proxy='{config.proxy}'" in listed
    assert f"global.timeout='{config.timeout_s:.0f}'" in listed
