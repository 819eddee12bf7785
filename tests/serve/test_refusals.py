import inspect

import pytest

from tinykit import errors
from tinykit.errors import OptionError
from tinykit.serve.refusals import RefusedError, refusal

STATUS = {
    errors.OptionError: 400,
    errors.PromptTooLongError: 400,
    errors.UnknownModelError: 404,
    errors.ClosedError: 503,
    errors.RestartNeededError: 503,
    errors.SourceError: 503,
    errors.WorkerError: 503,
    errors.WorkerDiedError: 503,
    errors.MissingPackageError: 501,
    errors.UnsupportedModelError: 501,
    errors.BackendError: 500,
    errors.ModelFileError: 500,
}


@pytest.mark.parametrize(
    ("kind", "status"), STATUS.items(), ids=lambda value: getattr(value, "__name__", None)
)
def test_status_of_each_class(kind, status):
    found = refusal(kind("It broke at 3.", hint="Mend it."))
    assert found.status == status
    assert found.body["error"]["message"] == "It broke at 3. Mend it."
    is_theirs = status in (400, 404, 501)
    assert found.body["error"]["type"] == ("invalid_request_error" if is_theirs else "server_error")


def test_every_error_of_ours_has_a_status():
    kinds = [
        one for one in vars(errors).values() if inspect.isclass(one) and issubclass(one, errors.TinykitError)
    ]
    assert len(kinds) > 20
    for kind in kinds:
        found = refusal(kind("It broke."))
        assert 400 <= found.status < 600 and found.body["error"]["code"]


def test_parameter_is_named_as_the_request_named_it():
    error = OptionError("x is 3.", name="schema", value=3)
    assert refusal(error).body["error"]["param"] == "schema"
    assert refusal(error, {"schema": "response_format"}).body["error"]["param"] == "response_format"
    assert refusal(error, {}).body["error"]["param"] is None


def test_own_status_and_code():
    found = refusal(RefusedError("No.", status=401, code="who"))
    assert (found.status, found.body["error"]["code"]) == (401, "who")
    assert found.headers == {"WWW-Authenticate": 'Bearer realm="tinykit"'}


def test_busy_model_is_a_limit():
    found = refusal(RefusedError("Busy.", status=429, code="busy"))
    assert (found.body["error"]["type"], found.headers) == ("rate_limit_error", {"Retry-After": "1"})


def test_busy_worker_is_a_limit():
    found = refusal(errors.BusyError("512 requests wait.", worker="tiny-q8"))
    assert (found.status, found.headers) == (429, {"Retry-After": "1"})
    assert (found.body["error"]["type"], found.body["error"]["code"]) == ("rate_limit_error", "busy")


def test_foreign_error_tells_nothing():
    found = refusal(RuntimeError("secret"))
    assert found.status == 500 and "secret" not in str(found.body)


def test_long_message_is_cut():
    message = refusal(OptionError("x" * 5000)).body["error"]["message"]
    assert len(message) == 1000 and message.endswith("…")
