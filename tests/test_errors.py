import ast
import inspect
import pickle
from pathlib import Path

import pytest

from tinykit import errors

BUILT_IN = {
    "OptionError": ValueError,
    "MissingPackageError": ImportError,
    "UnknownModelError": LookupError,
    "UnknownRecipeError": LookupError,
    "SourceError": RuntimeError,
    "OfflineError": ConnectionError,
    "DownloadError": ConnectionError,
    "AccessError": PermissionError,
    "ProxyError": ConnectionError,
    "CertificateError": ConnectionError,
    "TruncatedError": EOFError,
    "WrongContentError": ValueError,
    "NotFoundError": LookupError,
    "ChecksumError": ValueError,
    "DiskSpaceError": OSError,
    "CacheError": OSError,
    "ModelFileError": ValueError,
    "UnsupportedModelError": ValueError,
    "PromptTooLongError": ValueError,
    "BackendError": RuntimeError,
    "ForwardInterrupted": RuntimeError,
    "DeviceError": RuntimeError,
    "RestartNeededError": RuntimeError,
    "ClosedError": RuntimeError,
    "WorkerError": RuntimeError,
    "UnknownWorkerError": LookupError,
    "BusyError": RuntimeError,
    "WorkerDiedError": ConnectionError,
}
ALL = [
    kind
    for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, errors.TinykitError) and kind is not errors.TinykitError
]


def test_tree_is_complete():
    assert {kind.__name__ for kind in ALL} == set(BUILT_IN)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_error_is_what_a_caller_would_catch(kind):
    assert issubclass(kind, BUILT_IN[kind.__name__])
    assert kind.__doc__


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_error_is_listed_in_the_docstring_of_the_module(kind):
    assert kind.__name__ in errors.__doc__


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_message_hint_and_facts_survive_pickling(kind):
    error = pickle.loads(pickle.dumps(kind("It broke at 3", hint="Mend it", path="/a", name="n")))
    assert type(error) is kind
    assert str(error) == "It broke at 3"
    assert error.hint == "Mend it" and error.__notes__ == ["Mend it"]
    assert (error.path, error.name) == ("/a", "n")


def test_error_without_hint_has_no_note():
    error = errors.OptionError("x is 3")
    assert error.hint is None
    assert not hasattr(error, "__notes__")


def test_unknown_fact_is_an_attribute_error():
    with pytest.raises(AttributeError):
        errors.OptionError("x").nonsense


def test_fallback_warning_carries_its_facts():
    warning = errors.DeviceFallbackWarning("said", asked="cuda", used="cpu", failures=["why"])
    assert (str(warning), warning.asked, warning.used, warning.failures) == ("said", "cuda", "cpu", ("why",))


# what calls of a session raise; the lab, training and settings of other programs are not looked at
SPOKEN = ["generation/*.py", "backends/*.py", "answers.py", "call_options.py", "choosing.py", "devices.py",
          "loading.py", "many.py", "recipes.py", "session.py", "titling.py", "tokenizer.py"]  # fmt: skip


def test_error_of_an_argument_says_what_to_do():
    root = Path(errors.__file__).parent
    missing = []
    for path in sorted(path for pattern in SPOKEN for path in root.glob(pattern)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_error = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "OptionError"
            if is_error and "hint" not in [keyword.arg for keyword in node.keywords]:
                missing.append(f"{path.relative_to(root)}:{node.lineno}")
    assert missing == []
