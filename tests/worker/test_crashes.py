"""When a worker that died is started again."""

from dataclasses import replace

import pytest

from tinykit.errors import WorkerError
from tinykit.worker.crashes import KEEP_S, CrashMemory
from tinykit.worker.launch import Launch

LAUNCH = Launch({"key": "m"}, {"dtype": "q8"}, "/home", 1, "/run", "/log")
OTHER = replace(LAUNCH, spec={"key": "n"})


@pytest.fixture
def memory():
    found = CrashMemory(clock=lambda: found.now_s)
    found.now_s = 1000.0
    return found


def pauses(memory, launch=LAUNCH):
    found = []
    memory.check(launch, sleep=found.append)
    return found


def test_pauses_grow_and_end_in_a_refusal(memory):
    assert pauses(memory) == []
    memory.add(LAUNCH, "it died")
    assert pauses(memory) == [0.5]
    memory.now_s += 0.2
    memory.add(LAUNCH, "it died")
    memory.now_s += 0.5
    assert pauses(memory) == [1.5]
    memory.add(LAUNCH, "it died again")
    with pytest.raises(
        WorkerError, match=r"m-q8-\w{6} is not started again for now: it died again \(3 times"
    ):
        pauses(memory)
    assert pauses(memory, OTHER) == []


def test_death_while_loading_counts_at_once(memory):
    memory.add(LAUNCH, "it died while it loaded", is_of_loading=True)
    with pytest.raises(WorkerError, match="while it loaded"):
        pauses(memory)
    memory.clear(OTHER)
    assert len(memory.of(LAUNCH)) == 1
    memory.clear(LAUNCH)
    assert pauses(memory) == []


def test_deaths_are_forgotten_after_a_while(memory):
    for _ in range(3):
        memory.add(LAUNCH, "it died")
    memory.now_s += KEEP_S
    assert pauses(memory) == [] and memory.of(LAUNCH) == []
