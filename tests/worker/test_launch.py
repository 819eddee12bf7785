"""What makes two sessions share a worker, and what it is called."""

from dataclasses import replace

import pytest

from tinykit import settings
from tinykit.errors import OptionError
from tinykit.registry import get_model
from tinykit.worker.launch import Launch
from tinykit.worker.log_file import open_log, rotate, tail
from tinykit.worker.remote import launch_of


@pytest.fixture
def launch(worker_dir):
    return launch_of(get_model("smollm2-135m"), {})


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"device": "cuda"}},
        {"options": {"dtype": "fp32"}},
        {"home": "/elsewhere"},
        {"cache_bytes": 3},
        {"spec": {"key": "smollm2-135m", "adapter": "/a"}},
    ],
    ids=["device", "dtype", "home", "cache", "adapter"],
)
def test_what_decides_how_a_model_is_loaded_makes_another_worker(launch, change):
    other = replace(launch, **change)
    assert other.digest != launch.digest and other.name != launch.name
    assert other.transport.path != launch.transport.path


def test_what_does_not_is_the_same_worker(launch):
    other = replace(launch, idle_s=3, log="/elsewhere.log", version="9")
    assert (other.digest, other.name) == (launch.digest, launch.name)
    assert other.tag != launch.tag  # of another version: to be replaced


def test_settings_count_as_they_are_when_the_worker_is_wanted(launch, monkeypatch):
    assert launch.name.startswith("smollm2-135m-w8a8-") and launch.idle_s == 900
    assert launch.options["device"] is None
    monkeypatch.setenv("TINYKIT_DEVICE", "gpu")
    monkeypatch.setenv("TINYKIT_WORKER_IDLE_S", "7")
    other = launch_of(get_model("smollm2-135m"), {})
    assert other.name.startswith("smollm2-135m-gpu-w8a8-") and other.idle_s == 7
    assert launch_of(get_model("smollm2-135m"), {"device": "cpu"}).options["device"] == "cpu"
    monkeypatch.setenv("TINYKIT_WORKER_IDLE_S", "0")
    with pytest.raises(OptionError, match="WORKER_IDLE_S"):
        launch_of(get_model("smollm2-135m"), {})


def test_launch_comes_back_from_text_and_file(launch):
    assert Launch.of_text(launch.text) == launch
    path = launch.save()
    assert path.stat().st_mode & 0o777 == 0o600
    assert Launch.load(path) == launch
    assert len(str(launch.transport.path)) < 100


def test_log_is_in_the_cache(launch):
    assert launch.log == str(settings.get("home") / "logs" / f"worker-{launch.name}.log")


def test_long_log_is_put_aside_and_its_end_can_be_read(tmp_path):
    path = tmp_path / "logs" / "worker.log"
    assert tail(path) == ""
    handle = open_log(path)
    with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write("first\n" * 500 + "2026 INFO tinykit worker listens: m, pid 3\nlast words\n")
    assert tail(path).endswith("first\nlast words") and len(tail(path)) <= 500
    rotate(path, 10_000)
    assert path.exists()
    rotate(path, 1_000)
    assert not path.exists() and (tmp_path / "logs" / "worker.log.1").exists()
