from pathlib import Path

import pytest

from tinykit import settings
from tinykit.errors import OptionError


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    path = tmp_path / "config.toml"
    monkeypatch.setenv("TINYKIT_CONFIG", str(path))
    return path


def test_argument_beats_environment_beats_file_beats_default(config, monkeypatch):
    assert settings.get("cache_bytes") == 256 * 1024 * 1024
    config.write_text("cache_bytes = 1\n")
    assert settings.get("cache_bytes") == 1
    monkeypatch.setenv("TINYKIT_CACHE_BYTES", "2")
    assert settings.get("cache_bytes") == 2
    assert settings.get("cache_bytes", 3) == 3


def test_settings_are_read_at_each_use(monkeypatch):
    for value in ("cpu", "auto"):
        monkeypatch.setenv("TINYKIT_DEVICE", value)
        assert settings.get("device") == value


@pytest.mark.parametrize("value", ["", "  ", "default", "Default"])
def test_empty_and_default_count_as_unset(config, monkeypatch, value):
    config.write_text('device = "cpu"\n')
    monkeypatch.setenv("TINYKIT_DEVICE", value)
    assert settings.get("device") == "cpu"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("threads", "4", 4),
        ("offline", "1", True),
        ("offline", "YES", True),
        ("offline", "off", False),
        ("progress", "plain", "plain"),
        ("model", "smollm2-135m", "smollm2-135m"),
        ("home", "/somewhere/else", Path("/somewhere/else").absolute()),
    ],
)
def test_text_is_converted(monkeypatch, name, text, expected):
    monkeypatch.setenv(f"TINYKIT_{name.upper()}", text)
    assert settings.get(name) == expected


@pytest.mark.parametrize(
    ("name", "text", "valid"),
    [
        ("threads", "0", "a whole number from 1"),
        ("threads", "two", "a whole number from 1"),
        ("threads", "1.5", "a whole number from 1"),
        ("cache_bytes", "-1", "a whole number from 0"),
        ("offline", "maybe", "one of 1, 0, true"),
        ("progress", "loud", "one of auto, off, plain"),
    ],
)
def test_bad_variable_is_named_with_the_valid_values(monkeypatch, name, text, valid):
    monkeypatch.setenv(f"TINYKIT_{name.upper()}", text)
    with pytest.raises(
        OptionError, match=f"variable TINYKIT_{name.upper()} is '{text}', but must be {valid}"
    ):
        settings.get(name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", True),
        ("threads", 2.0),
        ("threads", float("nan")),
        ("offline", 2),
        ("model", 3),
        ("home", 3),
    ],
)
def test_bad_argument_is_an_error(name, value):
    with pytest.raises(OptionError, match=f"The argument {name} is") as caught:
        settings.get(name, value)
    assert caught.value.name == name


def test_bad_value_in_the_file_names_the_file(config):
    config.write_text('threads = "many"\n')
    with pytest.raises(OptionError, match=f"threads in {config} is 'many'"):
        settings.get("threads")


def test_unknown_setting_in_the_file_suggests_the_nearest(config):
    config.write_text("thread = 3\n")
    with pytest.raises(OptionError, match="unknown setting 'thread'") as caught:
        settings.get("threads")
    assert caught.value.hint == "Did you mean 'threads'?"


@pytest.mark.parametrize("content", [b"threads = \n", b"model = '\xff'\n"], ids=["syntax", "encoding"])
def test_unreadable_file_is_an_error(config, content):
    config.write_bytes(content)
    with pytest.raises(OptionError, match="cannot be read"):
        settings.get("threads")


@pytest.mark.parametrize(
    ("own", "hub", "expected"),
    [(None, None, False), (None, "1", True), ("0", "1", False), ("1", "0", True), ("", "ON", True)],
)
def test_offline_follows_the_hub_variable_unless_ours_is_set(monkeypatch, own, hub, expected):
    for variable, value in (("TINYKIT_OFFLINE", own), ("HF_HUB_OFFLINE", hub)):
        monkeypatch.delenv(variable, raising=False)
        if value is not None:
            monkeypatch.setenv(variable, value)
    assert settings.get("offline") is expected


def test_home_is_in_the_cache_folder_of_the_user(monkeypatch):
    import platformdirs

    monkeypatch.delenv("TINYKIT_HOME", raising=False)
    assert settings.get("home") == Path(platformdirs.user_cache_dir("tinykit", appauthor=False))


def test_home_may_start_with_a_tilde(monkeypatch):
    monkeypatch.setenv("TINYKIT_HOME", "~/models")
    assert settings.get("home") == Path.home() / "models"


def test_table_has_a_row_for_each_setting():
    lines = settings.table().splitlines()
    assert len(lines) == 2 + len(settings.SETTINGS)
    assert all(line.count("|") == 5 for line in lines)
    assert any("`TINYKIT_PROGRESS` | one of auto, off, plain | `auto`" in line for line in lines)
