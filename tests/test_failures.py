from tinykit.failures import FailureMemory


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_failure_is_found_for_exactly_what_failed():
    memory = FailureMemory(clock=Clock())
    memory.add("m", "cuda", "q8", "no such device")
    assert memory.find("m", "cuda", "q8").reason == "no such device"
    assert (
        memory.find("m", "cuda", "q4")
        is memory.find("m", "cpu", "q8")
        is memory.find("n", "cuda", "q8")
        is None
    )


def test_a_failure_is_forgotten_after_its_time():
    clock = Clock()
    memory = FailureMemory(keep_s=10, clock=clock)
    memory.add("m", "cuda", "q8", "first")
    clock.now = 9.0
    memory.add("m", "dml", "q8", "second")
    assert [run.reason for run in memory.all()] == ["first", "second"]
    clock.now = 10.0
    assert [run.reason for run in memory.all()] == ["second"]


def test_the_last_failure_counts_and_starts_its_time_anew():
    clock = Clock()
    memory = FailureMemory(keep_s=10, clock=clock)
    memory.add("m", "cuda", "q8", "first")
    clock.now = 8.0
    memory.add("m", "cuda", "q8", "second")
    clock.now = 15.0
    assert [run.reason for run in memory.all("m")] == ["second"]


def test_failures_can_be_cleared_by_model_by_device_and_all():
    memory = FailureMemory(clock=Clock())
    for model in "mn":
        for device in ("cuda", "dml"):
            memory.add(model, device, "q8", "why")
    memory.clear("m", "cuda")
    assert [run[:2] for run in memory.all()] == [("m", "dml"), ("n", "cuda"), ("n", "dml")]
    memory.clear(device="dml")
    assert [run[:2] for run in memory.all()] == [("n", "cuda")]
    memory.clear()
    assert memory.all() == ()
