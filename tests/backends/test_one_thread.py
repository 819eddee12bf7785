import threading

import pytest

from tinykit.backends.one_thread import Abandoned, OneThread


def test_everything_runs_on_one_thread_whoever_asks():
    thread, seen = OneThread("only"), []

    def ask():
        thread.call(lambda: seen.append(threading.current_thread()))

    callers = [threading.Thread(target=ask) for _ in range(5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    ask()
    assert len(seen) == 6
    assert len(set(seen)) == 1
    assert seen[0].name == "only"
    assert seen[0] is not threading.current_thread()


def test_results_and_errors_reach_the_caller():
    thread = OneThread("only")
    assert thread.call(lambda: 1 + 1) == 2
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 // 0)
    assert thread.call(lambda: "still here") == "still here"


def test_a_call_from_the_thread_itself_does_not_wait_for_itself():
    thread = OneThread("only")
    assert thread.call(lambda: thread.call(lambda: 7)) == 7


def test_an_abandoned_caller_goes_on_at_once_and_the_work_is_undone_before_the_next():
    thread, order = OneThread("only"), []
    started, go = threading.Event(), threading.Event()

    def act():
        started.set()
        go.wait(10)
        order.append("done")

    work = thread.submit(act, lambda: order.append("undone"))
    started.wait(10)
    assert work.abandon()
    with pytest.raises(Abandoned):
        work.wait()
    assert order == []
    go.set()
    thread.call(lambda: order.append("next"))
    assert order == ["done", "undone", "next"]


def test_work_with_a_result_cannot_be_abandoned():
    thread, undone = OneThread("only"), []
    work = thread.submit(lambda: 5, lambda: undone.append(True))
    assert work.wait() == 5
    assert not work.abandon()
    thread.call(lambda: None)
    assert work.wait() == 5
    assert undone == []


def test_an_idle_thread_keeps_nothing_alive():
    import gc
    import weakref

    class Model:
        pass

    thread, model = OneThread("only"), Model()
    seen = weakref.ref(model)
    thread.call(lambda model=model: None)
    del model
    thread.call(lambda: None)
    gc.collect()
    assert seen() is None
