"""`tinykit serve --shared`: the model is in a worker, which has several requests at once."""

import os
import signal
import threading

import pytest

from tests.serve.serving import official_client, running
from tests.worker.conftest import (  # noqa: F401  # fixtures
    PATIENCE_S,
    backend,
    control,
    in_thread,
    model_path,
    module_folder,
    options,
    shared,
    wait_until,
    worker_dir,
)
from tinykit.serve import SHARED_AT_ONCE

openai = pytest.importorskip("openai")


@pytest.fixture
def server(shared):  # noqa: F811
    with running(shared, at_once=SHARED_AT_ONCE) as server:
        yield server


def ask(server, text, **options):  # noqa: F811
    """The answer, from a client of its own."""
    messages = [{"role": "user", "content": text}]
    with official_client(server) as client:
        return client.chat.completions.create(
            model=server.app.model, messages=messages, max_tokens=8, **options
        )


def test_several_requests_are_with_the_worker_at_once(server, shared, backend, in_thread):  # noqa: F811
    alone = [shared.complete(text, max_tokens=8).text for text in ("a", "bc")]
    backend.on("hold")
    asked = [in_thread(lambda text=text: ask(server, text)) for text in ("a", "bc")]
    wait_until(lambda: shared.worker.running + shared.worker.waiting == 2)
    backend.off("hold")
    assert [one.get().choices[0].message.content for one in asked] == alone


def test_logprobs_are_refused(server):
    with pytest.raises(openai.BadRequestError, match="vocabulary is in another process") as caught:
        ask(server, "a", logprobs=True)
    assert (caught.value.param, caught.value.code) == ("logprobs", "unsupported_parameter")


def test_worker_that_dies_is_503_and_the_next_request_has_another(server, shared, backend, in_thread):  # noqa: F811
    pid = shared.start()
    backend.on("hold")
    asked = in_thread(lambda: ask(server, "a"))
    backend.wait_for("held")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(openai.InternalServerError) as caught:
        asked.get()
    assert (caught.value.status_code, caught.value.code) == (503, "worker_failed")
    backend.off("hold")
    assert ask(server, "a").choices[0].finish_reason


def test_client_that_leaves_ends_its_own_request_alone(server, shared, backend, in_thread):  # noqa: F811
    backend.on("hold")
    stays = in_thread(lambda: ask(server, "a"))
    backend.wait_for("held")
    with official_client(server) as client:
        gone = threading.Event()

        def leave():
            with pytest.raises(openai.APITimeoutError):
                client.chat.completions.create(
                    model=server.app.model, messages=[{"role": "user", "content": "b"}], timeout=1
                )
            gone.set()

        leaves = in_thread(leave)
        assert gone.wait(PATIENCE_S)
        leaves.get()
    wait_until(lambda: server.app.active == 1)
    backend.off("hold")
    assert stays.get().choices[0].finish_reason
