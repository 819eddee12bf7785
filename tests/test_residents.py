import gc
import threading

import pytest

import tinykit
from tests import tiny_models as tiny
from tinykit import TinySession, loading, residents
from tinykit.errors import ClosedError, ModelFileError, RestartNeededError


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
