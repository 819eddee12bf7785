import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

import tinykit
from tests import tiny_judge
from tests import tiny_models as tiny
from tests.convert.test_adapter import random_pairs, write_adapter
from tinykit import TinySession, loading, residents
from tinykit.errors import ClosedError, ModelFileError, RestartNeededError
from tinykit.generation.questions import ChoiceQuestion
from tinykit.generation.request import GenerationOptions, Request


@pytest.fixture(autouse=True)
def sound(monkeypatch):
    """No test leaves a library that is believed broken."""
    monkeypatch.setattr(residents, "_poisoned", {})


@pytest.fixture
def model(tmp_path):
    return tiny.write_gguf(tmp_path / "tiny.gguf", "llama", tiny.random_weights("llama"))


def mine(model):
    return [one for one in tinykit.loaded() if one.model == model.stem]


def test_loaded_models_are_listed_with_their_bytes(model):
    assert mine(model) == []
    with TinySession(model, progress=False) as session:
        (one,) = mine(model)
        assert (one.backend, one.device, one.dtype) == ("onnx", "cpu", session.info.dtype)
        assert 100_000 < one.size_bytes == session.info.weights_bytes
        session.complete("the cat", max_tokens=4)
        assert mine(model)[0].size_bytes > one.size_bytes
    assert mine(model) == []


def test_unload_frees_the_native_session_though_somebody_keeps_the_engine(model):
    session = TinySession(model, progress=False)
    session.complete("the cat", max_tokens=4, slot=1)
    engine = session.load().engine
    native = weakref.ref(engine.backend._graph._session._sess)
    session.unload()
    gc.collect()
    assert native() is None
    session.close()


def test_memory_is_given_back_for_large_models_only(model, monkeypatch):
    given = []
    monkeypatch.setattr(residents, "give_back", lambda: given.append(1))
    TinySession(model, progress=False).close()
    assert given == []
    monkeypatch.setattr(residents, "_LARGE_BYTES", 1)
    TinySession(model, progress=False).close()
    assert given == [1]


@pytest.mark.real
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_memory_returns_after_each_of_five_rounds(use_real_home):
    script = Path(tinykit.__file__).parents[1] / "benchmarks" / "memory.py"
    done = subprocess.run(
        [sys.executable, str(script), "--model", "smollm2-135m", "--dtype", "q8", "--rounds", "5"],
        env={**os.environ, "PYTHONPATH": str(script.parents[1])}, capture_output=True, text=True, timeout=850, check=True,
    )  # fmt: skip
    rows = json.loads(done.stdout.splitlines()[-1])
    assert len(rows) == 5
    for row in rows:
        assert row["loaded_bytes"] > 100e6  # the weights are 145 MB
        assert row["released_bytes"] < 60e6  # 3 MB when this was written
    assert rows[-1]["released_bytes"] - rows[0]["released_bytes"] < 30e6


def test_unloaded_session_loads_again(model):
    session = TinySession(model, progress=False)
    before = session.complete("the", max_tokens=4).text
    session.unload()
    session.unload()
    assert mine(model) == []
    assert "not loaded" in repr(session)
    assert session.complete("the", max_tokens=4).text == before
    session.close()
    with pytest.raises(ClosedError):
        session.complete("the")


def test_the_library_releases_before_the_session_lets_go(model):
    session, seen = TinySession(model, progress=False), []
    backend = session.load().engine.backend
    close = backend.close

    def closing():
        seen.append(list(session._loaded))
        close()

    backend.close = closing
    session.unload()
    assert seen == [[session.spec.key]]
    assert session._loaded == {}


def broken(session):
    calls = []

    def fail():
        calls.append(1)
        raise OSError("munmap failed\n  badly")

    session.load().engine.backend.close = fail
    return calls


def test_failed_release_lets_go_all_the_same_and_asks_for_a_restart(model):
    session = TinySession(model, progress=False)
    calls = broken(session)
    with pytest.raises(
        RestartNeededError, match=r"onnx library failed to release a model \(munmap failed badly\)"
    ) as caught:
        session.close()
    assert isinstance(caught.value.__cause__, OSError)
    assert "Restart the kernel" in caught.value.hint
    assert mine(model) == []
    assert repr(session) == f"<TinySession {session.spec.key}, closed>"
    session.close()
    assert len(calls) == 1


def test_nothing_is_loaded_over_what_was_not_released(model):
    session = TinySession(model, progress=False)
    broken(session)
    with pytest.raises(RestartNeededError):
        session.unload()
    for _ in range(2):
        with pytest.raises(RestartNeededError, match="no other can be loaded in this process"):
            session.load()
        with pytest.raises(RestartNeededError):
            TinySession(model, device="auto", progress=False)
    assert mine(model) == []


def test_every_model_of_a_session_is_released_though_one_fails(model, tmp_path):
    other = tiny.write_gguf(tmp_path / "other.gguf", "llama", tiny.random_weights("llama", seed=1))
    session = TinySession(model, progress=False)
    broken(session)
    session._loaded["other"] = second = loading.load(other, progress=session._progress)
    with pytest.raises(RestartNeededError):
        session.close()
    with pytest.raises(ClosedError):
        second.engine.backend.forward([1], second.engine.backend.new_state())
    assert mine(model) == mine(other) == []


def test_failed_load_is_forgotten(model):
    data = model.read_bytes()
    model.write_bytes(data[: len(data) // 2])
    session = TinySession(model, lazy=True, progress=False)
    with pytest.raises(ModelFileError):
        session.load()
    model.write_bytes(data)
    assert session.load().engine
    session.close()


def test_threads_that_need_a_model_at_once_load_it_once(model, monkeypatch):
    session, loads = TinySession(model, lazy=True, progress=False), []
    real = loading.load

    def counted(*arguments, **options):
        loads.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr("tinykit.session.load", counted)
    found = []
    threads = [threading.Thread(target=lambda: found.append(session.load())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1
    assert len({id(one) for one in found}) == 1
    session.close()


def test_a_session_that_is_dropped_is_no_resident(model):
    session = TinySession(model, progress=False)
    assert mine(model)
    del session
    gc.collect()
    assert mine(model) == []


def backend_of(session):
    return session.load().runner.backend


def test_sessions_that_ask_alike_share_the_weights_and_the_last_releases_them(model):
    a, b = (TinySession(model, progress=False) for _ in range(2))
    backend = backend_of(a)
    assert backend_of(b) is backend
    assert a.load().engine is not b.load().engine
    (one,) = mine(model)
    assert (one.sessions, one.size_bytes) == (2, backend.info.weights_bytes)
    said = a.complete("the cat", max_tokens=4).text
    a.close()
    assert mine(model)[0].sessions == 1
    assert b.complete("the cat", max_tokens=4).text == said
    b.close()
    assert mine(model) == []
    with pytest.raises(ClosedError):
        backend.forward([1], backend.new_state())


def test_what_sessions_keep_of_prompts_is_their_own(model):
    with TinySession(model, progress=False) as a, TinySession(model, progress=False) as b:
        a.complete("the cat sat", max_tokens=4, slot="mine")
        assert "mine" in a.load().engine.slots
        assert "mine" not in b.load().engine.slots
        assert b.complete("the cat sat", max_tokens=4).usage.kv_reused_tokens == 0
        assert a.complete("the cat sat", max_tokens=4, slot="mine").usage.kv_reused_tokens > 0


@pytest.mark.parametrize("options", [{"dtype": "fp32"}, {"threads": 3}], ids=str)
def test_other_options_are_another_resident_model(options, model):
    with TinySession(model, progress=False) as a, TinySession(model, progress=False, **options) as b:
        assert backend_of(a) is not backend_of(b)
        assert [one.sessions for one in mine(model)] == [1, 1]
        info = b.info
        assert [getattr(info, name) for name in options] == list(options.values())


def test_another_adapter_is_another_resident_model(model, tmp_path):
    pairs = random_pairs(tiny.random_weights("llama"))
    one = write_adapter(tmp_path / "one", pairs)
    two = write_adapter(tmp_path / "two", dict(list(pairs.items())[:1]))
    with (
        TinySession(model, progress=False) as plain,
        TinySession(model, adapter=one, progress=False) as a,
        TinySession(model, adapter=two, progress=False) as b,
        TinySession(model, adapter=one, progress=False) as c,
    ):
        assert len({id(backend_of(session)) for session in (plain, a, b)}) == 3
        assert backend_of(c) is backend_of(a)


def test_a_file_that_changed_is_another_resident_model(model):
    with TinySession(model, progress=False) as before:
        tiny.write_gguf(model, "llama", tiny.random_weights("llama", seed=5))
        with TinySession(model, progress=False) as after:
            assert backend_of(before) is not backend_of(after)
            assert len(mine(model)) == 2


def test_sessions_of_several_threads_open_a_model_once(model, monkeypatch):
    TinySession(model, progress=False).close()  # the import is of no interest here
    real, opened, gate = loading.open_build, [], threading.Barrier(4)

    def counted(*arguments, **options):
        opened.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(loading, "open_build", counted)
    sessions = []

    def start():
        gate.wait(60)
        sessions.append(TinySession(model, progress=False))

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(opened) == 1
    assert mine(model)[0].sessions == len(sessions) == 4
    for session in sessions:
        session.close()
    assert mine(model) == []


def test_an_opening_that_fails_is_forgotten_by_all_who_waited(model, monkeypatch):
    TinySession(model, progress=False).close()
    real, tries = loading.open_build, []

    def fails_once(*arguments, **options):
        tries.append(1)
        if len(tries) == 1:
            raise ModelFileError("half written")
        return real(*arguments, **options)

    monkeypatch.setattr(loading, "open_build", fails_once)
    with pytest.raises(ModelFileError, match="half written"):
        TinySession(model, progress=False)
    with TinySession(model, progress=False) as session:
        assert session.complete("the", max_tokens=2).usage.completion_tokens == 2


def test_only_the_last_release_can_fail(model):
    a, b = (TinySession(model, progress=False) for _ in range(2))
    calls = broken(a)
    a.close()
    assert calls == []
    with pytest.raises(RestartNeededError, match="munmap failed"):
        b.close()
    assert calls == [1]
    with pytest.raises(RestartNeededError):
        TinySession(model, progress=False)


def test_session_that_was_dropped_holds_nothing(model):
    a, b = (TinySession(model, progress=False) for _ in range(2))
    backend = backend_of(b)
    del a
    gc.collect()
    b.close()
    with pytest.raises(ClosedError):
        backend.forward([1], backend.new_state())


def test_cancel_and_close_reach_only_the_session_itself(model):
    a, b = (TinySession(model, progress=False) for _ in range(2))
    alone = b.complete("why", max_tokens=12)
    doomed, other = a.stream("the cat", max_tokens=12), b.stream("why", max_tokens=12)
    next(doomed), next(other)
    assert a.cancel() == 1
    for _ in doomed:
        pass
    assert doomed.result.finish_reason == "cancelled"
    engine = a.load().engine
    a.close()
    for _ in other:
        pass
    assert other.result == alone
    with pytest.raises(ClosedError):
        engine.generate(Request((1, 40, 41), GenerationOptions(4)))
    b.close()


def test_two_sessions_at_once_say_what_each_says_alone(model):
    a, b = (TinySession(model, progress=False) for _ in range(2))
    prompts = ["the cat", "why does it rain", "a b c"]
    alone = [a.complete(prompt, max_tokens=12, reuse=False).text for prompt in prompts]
    found = {}

    def ask(name, session):
        found[name] = [session.complete(prompt, max_tokens=12, reuse=False).text for prompt in prompts * 3]

    threads = [threading.Thread(target=ask, args=pair) for pair in (("a", a), ("b", b))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == {"a": alone * 3, "b": alone * 3}
    a.close()
    b.close()


def test_judges_are_shared_too(tmp_path):
    folder = tiny_judge.write_judge(tmp_path / "julia")
    a, b = (TinySession(folder, progress=False) for _ in range(2))
    assert backend_of(a) is backend_of(b)
    asked = ("Is it raining?", "It pours.")
    expected = a.yes_no(*asked)
    judge = a.load().judge
    a.close()
    assert b.yes_no(*asked) == expected
    with pytest.raises(ClosedError):
        judge.answer("x", {"q": ChoiceQuestion("Q", ["a", "b"])})
    b.close()


def test_model_that_was_closed_behind_its_session_says_so(model):
    with TinySession(model, progress=False) as session, TinySession(model, progress=False) as other:
        answer = other.complete("the cat", max_tokens=4)
        session.load().close()
        for call in (
            lambda: session.complete("the cat", max_tokens=4),
            lambda: session.title_result("please fix the red door", recipe="plain"),
            lambda: session.stream("the cat"),
            lambda: session.choose("the cat", ["a", "b"]),
            lambda: session.info,
        ):
            with pytest.raises(ClosedError, match="This model was closed") as caught:
                call()
            assert caught.value.hint == "Make a new TinySession."
        assert other.complete("the cat", max_tokens=4) == answer  # shares its weights
        assert len(mine(model)) == 1 and mine(model)[0].sessions == 1
        session.unload()
        assert session.complete("the cat", max_tokens=4) == answer
