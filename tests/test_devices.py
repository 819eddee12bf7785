import os

import pytest

from tinykit import devices
from tinykit.errors import OptionError


@pytest.mark.parametrize("name", [None, "", "  ", "cpu", "CPU ", "auto"])
def test_everything_known_is_the_cpu(name):
    assert devices.choose_device(name) == "cpu"


@pytest.mark.parametrize("name", ["quantum", "cuda", "cpu:0"])
def test_unknown_device_is_named(name):
    with pytest.raises(OptionError, match=f"Unknown device {name!r}; known are auto, cpu") as caught:
        devices.choose_device(name)
    assert (caught.value.name, caught.value.value) == ("device", name)


@pytest.mark.parametrize(
    ("usable", "siblings", "threads"),
    [
        ({0, 1, 2, 3}, {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, 2),
        ({0, 1, 2, 3}, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}, 2),
        ({1, 3}, {1: "0-1", 3: "2-3"}, 2),
        ({0, 1}, {0: "0-1", 1: "0-1"}, 1),
        ({0, 1, 2}, {}, 3),
    ],
    ids=["two_a_core", "interleaved", "some", "one_core", "no_topology"],
)
def test_threads_are_physical_cores(monkeypatch, usable, siblings, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: usable, raising=False)
    monkeypatch.setattr(devices, "_siblings", lambda cpu: siblings.get(cpu, str(cpu)))
    assert devices.default_threads() == threads


@pytest.mark.parametrize(("processors", "threads"), [(6, 6), (None, 1)])
def test_systems_without_affinity_count_processors(monkeypatch, processors, threads):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    assert devices.default_threads() == threads
