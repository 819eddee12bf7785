"""Sessions on other libraries than ONNX Runtime: what they read, what is asked of them, what if they are not there."""

import sys

import pytest

from tests import tiny_models as tiny
from tinykit import TinySession, checkpoints, loading, residents, store
from tinykit.errors import (
    DeviceError,
    DeviceFallbackWarning,
    OptionError,
    RestartNeededError,
    UnsupportedModelError,
)
from tinykit.loading import FAILURES
from tinykit.optional import installed
from tinykit.progress import Progress
from tinykit.registry import get_model

BACKEND = '''
"""A backend of a user's own: it answers the token after the last one."""

from tinykit.backends.scripted import ScriptedBackend

SEEN = []


def make(folder, *, device, dtype, context_length, threads):
    SEEN.append((sorted(path.name for path in folder.iterdir()), device, dtype, context_length))
    return ScriptedBackend(lambda seen: (seen[-1] + 1) % 261, vocab_size=261, context_length=context_length)


def broken(folder, **options):
    raise ZeroDivisionError("my mistake")


def nothing(folder, **options):
    return 5


class Leaky(ScriptedBackend):
    """Its library does not give the memory back."""

    def close(self):
        raise OSError("device is busy")


def leaky(folder, *, device, dtype, context_length, threads):
    SEEN.append("leaky")
    return Leaky(lambda seen: 5, vocab_size=261, context_length=context_length)
'''
FILES = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@pytest.fixture(autouse=True)
def forget():
    yield
    FAILURES.clear()


@pytest.fixture
def model(tmp_path):
    return tiny.write_gguf(tmp_path / "tiny.gguf", "llama", tiny.random_weights("llama"))


@pytest.fixture
def package(monkeypatch, tmp_path):
    """An installed package that brings backends by entry point."""
    site = tmp_path / "site"
    info = site / "counting-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "counting_backend.py").write_text(BACKEND, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1.0\n", encoding="utf-8")
    points = "".join(f"{name} = counting_backend:{to}\n" for name, to in
                     {"counting": "make", "broken": "broken", "nothing": "nothing", "leaky": "leaky", "onnx": "broken"}.items())  # fmt: skip
    (info / "entry_points.txt").write_text(f"[tinykit.backends]\n{points}", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.modules.pop("counting_backend", None)


def test_a_backend_from_outside_is_found_and_used(package, model):
    assert set(checkpoints.other_backends()) == {"counting", "broken", "nothing", "leaky"}
    with TinySession(model, backend="counting", progress=False) as session:
        assert session.info.backend == "scripted"
        assert session.complete("the", max_tokens=3).usage.completion_tokens == 3
    import counting_backend

    assert [(["complete.json", *FILES], "cpu", "auto", tiny.CONTEXT)] == counting_backend.SEEN


@pytest.mark.parametrize(
    ("name", "said"),
    [("broken", "ZeroDivisionError: my mistake"), ("nothing", "returned 5, which is no backend")],
)
def test_a_backend_that_fails_falls_back_with_its_reason(name, said, package, model):
    with pytest.warns(
        DeviceFallbackWarning, match=f"cpu with {name} was asked for, cpu .onnx. is used.*{said}"
    ):
        session = TinySession(model, backend=name, progress=False)
    assert session.info.backend == "onnx"
    session.close()
    FAILURES.clear()
    with pytest.raises(DeviceError, match=said):
        TinySession(model, backend=name, fallback=False, progress=False)


def test_a_backend_whose_release_fails_is_not_loaded_again_and_harms_no_other(package, model, monkeypatch):
    monkeypatch.setattr(residents, "_poisoned", {})
    session = TinySession(model, backend="leaky", progress=False)
    assert session.complete("the", max_tokens=2).usage.completion_tokens == 2
    with pytest.raises(RestartNeededError, match=r"The leaky library failed .*\(device is busy\)") as caught:
        session.close()
    assert isinstance(caught.value.__cause__, OSError)
    assert [one for one in residents.loaded() if one.model == session.spec.key] == []
    for fallback in (True, False):  # what asks for a restart is no reason to use another device
        with pytest.raises(RestartNeededError, match="no other can be loaded"):
            TinySession(model, backend="leaky", fallback=fallback, progress=False)
    import counting_backend

    assert counting_backend.SEEN == ["leaky"]
    for backend in ("counting", "onnx"):
        with TinySession(model, backend=backend, progress=False) as another:
            assert another.complete("the", max_tokens=2).usage.completion_tokens == 2


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("device", "quantum", "Unknown device 'quantum'; known are auto, gpu, cpu, cuda"),
        ("backend", "torch", "Unknown backend 'torch'; known are auto, onnx, mlx, transformers"),
        ("dtype", "q5", "Unknown dtype 'q5'; known are auto, fp32"),
    ],
)
def test_bad_name_says_which_variable_or_file_has_it(name, value, said, model, monkeypatch, tmp_path):
    def error(**options):
        with pytest.raises(OptionError) as caught:
            TinySession(model, lazy=True, progress=False, **options)
        assert (caught.value.name, caught.value.value) == (name, value)
        return str(caught.value)

    monkeypatch.setenv(f"TINYKIT_{name.upper()}", value)
    assert error().startswith(f"The variable TINYKIT_{name.upper()} cannot be used. {said}")
    assert error(**{name: value}).startswith(said)  # the argument counts, and the variable has no part in it
    monkeypatch.setenv(f"TINYKIT_{name.upper()}", " default ")
    config = tmp_path / "config.toml"
    config.write_text(f"{name} = '{value}'\n", encoding="utf-8")
    monkeypatch.setenv("TINYKIT_CONFIG", str(config))
    assert error().startswith(f"{name} in {config} cannot be used. {said}")


def test_unknown_backend_lists_what_there_is(package, model):
    with pytest.raises(OptionError, match="known are auto, onnx, mlx, transformers, .*counting"):
        TinySession(model, backend="torch", progress=False)


def test_float_weights_are_written_once(package, model, monkeypatch):
    def load():
        return loading.load(model, backend="counting", progress=Progress(False)).folder

    folder = load()
    monkeypatch.setattr(checkpoints, "_write", lambda *a: pytest.fail("written again"))
    assert load() == folder
    assert [entry.path for entry in store.entries()] == [folder]


def test_a_folder_with_safetensors_is_read_where_it_lies(package, model, tmp_path):
    written = loading.load(model, backend="counting", progress=Progress(False)).folder
    own = tmp_path / "own"
    own.mkdir()
    for name in FILES:
        (own / name).write_bytes((written / name).read_bytes())
    assert loading.load(own, backend="counting", progress=Progress(False)).folder == own


def test_model_without_weights_for_it_is_refused():
    with pytest.raises(UnsupportedModelError, match="has no weights that transformers can read"):
        checkpoints.open_other(
            get_model("lfm2.5-230m"), checkpoints.plan("cpu").attempts[0]._replace(backend="transformers"), "auto",
            threads=None, fingerprint=str, check=print, progress=Progress(False), offline=True,
        )  # fmt: skip


def test_a_judge_stays_on_the_cpu(monkeypatch):
    monkeypatch.setenv("TINYKIT_DEVICE", "cuda")
    wish = checkpoints.checked_plan(None, None, get_model("julia-1"))
    assert [(one.device.name, one.backend) for one in wish.attempts] == [("cpu", "onnx")]
    assert not wish.is_a_wish


@pytest.mark.parametrize(("backend", "module"), [("mlx", "mlx_lm"), ("transformers", "transformers")])
def test_library_that_is_not_installed_says_how_to_install_it(backend, module, model):
    if installed(module):
        pytest.skip(f"{module} is installed")
    match = f"{module} is not installed. Install it with: pip install 'tinykit.{backend}.'"
    with pytest.warns(DeviceFallbackWarning, match=match):
        session = TinySession(model, backend=backend, progress=False)
    assert session.info.backend == "onnx"
    session.close()


@pytest.mark.filterwarnings(
    "ignore:.*:DeprecationWarning", "ignore:.*:FutureWarning", "ignore:.*:UserWarning:torch"
)
@pytest.mark.parametrize(("backend", "module"), [("mlx", "mlx_lm"), ("transformers", "torch")])
def test_session_on_another_library_writes_what_onnx_writes(backend, module, model):
    if not (installed(module) and installed("transformers")):
        pytest.skip(f"{module} is not installed")
    with (
        TinySession(model, dtype="fp32", progress=False) as plain,
        TinySession(model, backend=backend, dtype="fp32", fallback=False, progress=False) as session,
    ):
        assert (session.info.backend, session.info.device, session.info.dtype) == (backend, "cpu", "fp32")
        assert session.info.weights_bytes > 100_000
        for prompt in ("the cat", "why does it rain", "a b c"):
            assert session.complete(prompt, max_tokens=16).text == plain.complete(prompt, max_tokens=16).text
        assert f"on cpu ({backend}" in repr(session)
