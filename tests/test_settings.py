from pathlib import Path

import numpy as np
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
        ("threads", "100000", "a whole number from 1 to 64"),
        ("home", "~no-such-user/x", "a path"),
        ("cache_bytes", "-1", "a whole number from 0"),
        ("offline", "maybe", "one of 1, 0, true"),
        ("progress", "loud", "one of auto, off, plain"),
    ],
)
def test_bad_variable_is_named_with_the_valid_values(monkeypatch, name, text, valid):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
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
        ("threads", 10**9),
        ("offline", 2),
        ("model", 3),
        ("home", 3),
        ("home", b"bytes"),
        ("home", "nul\0"),
    ],
)
def test_bad_argument_is_an_error(name, value):
    with pytest.raises(OptionError, match=f"The argument {name} is") as caught:
        settings.get(name, value)
    assert caught.value.name == name


@pytest.mark.parametrize(("processors", "most"), [(None, 64), (2, 64), (16, 64), (100, 400)])
def test_most_threads_follow_the_processors(monkeypatch, processors, most):
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    assert settings.get("threads", most) == most
    with pytest.raises(OptionError, match=f"(?m)is {most + 1}, but must be a whole number from 1 to {most}$"):
        settings.get("threads", most + 1)


def test_whole_numbers_of_numpy_are_taken():
    assert settings.get("threads", np.int64(2)) == 2


@pytest.mark.parametrize("name", ["threads", "home"])
def test_config_file_of_an_unknown_user_is_named(monkeypatch, name):
    monkeypatch.delenv("TINYKIT_HOME", raising=False)
    monkeypatch.setenv("TINYKIT_CONFIG", "~no-such-user/x.toml")
    with pytest.raises(OptionError, match="TINYKIT_CONFIG is '~no-such-user/x.toml', but must be a path"):
        settings.get(name)


def test_bad_value_in_the_file_names_the_file(config):
    config.write_text('threads = "many"\n')
    with pytest.raises(OptionError, match=f"threads in {config} is 'many'"):
        settings.get("threads")


def test_unknown_setting_in_the_file_suggests_the_nearest(config):
    config.write_text("thread = 3\n")
    with pytest.raises(OptionError, match="unknown setting 'thread'") as caught:
        settings.get("threads")
    assert caught.value.hint == "Did you mean 'threads'?"


@pytest.mark.parametrize(
    "content",
    [b"threads = \n", b"model = '\xff'\n", b"model = " + b"[" * 100_000],
    ids=["syntax", "encoding", "nesting"],
)
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
