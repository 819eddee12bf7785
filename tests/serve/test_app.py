"""The endpoint as HTTP: who is let in, what is refused, who waits, and what a vanished client leaves."""

import asyncio
import json
import socket
import threading

import httpx2
import pytest

from tests.serve.serving import (
    ANSWER,
    MODEL,
    TOKEN,
    WAIT_S,
    BlockingBackend,
    running,
    scripted_session,
)
from tinykit.serve import app as app_module
from tinykit.serve import running as running_module

CHAT = "/chat/completions"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


def error_of(response):
    """The error in a response, which has the API's form."""
    body = response.json()
    assert set(body) == {"error"} and set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["content-type"] == "application/json"
    return body["error"]


@pytest.fixture
def blocking():
    """A server whose model says one letter and then waits."""
    backend = BlockingBackend()
    with scripted_session(backend=backend) as session, running(session, waiting=1, grace_s=WAIT_S) as server:
        try:
            yield server, backend
        finally:
            backend.release.set()


class Asking(threading.Thread):
    """A request that another thread waits for."""

    def __init__(self, server, **fields):
        super().__init__()
        self.url, self.fields, self.response = f"{server.url}{CHAT}", fields, None
        self.start()

    def run(self):
        self.response = httpx2.post(self.url, headers=HEADERS, json={**BODY, **self.fields}, timeout=WAIT_S)

    def answer(self):
        self.join(WAIT_S)
        return self.response


def raw_request(server, **fields):
    """A connection that has sent a request and read nothing."""
    body = json.dumps({**BODY, **fields}).encode()
    head = (
        f"POST /v1{CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection((server.host, server.port), timeout=WAIT_S)
    connection.sendall(head.encode() + body)
    return connection


def until(server, condition):
    """Wait in the server's own time: it answers, and the condition is looked at after each answer."""
    with httpx2.Client(base_url=server.url, headers=HEADERS, timeout=WAIT_S) as client:
        for _ in range(20_000):
            if condition():
                return
            assert client.get("/models").status_code == 200
    raise AssertionError("it never came to that")


@pytest.fixture(scope="module")
def stranger(server):
    """A client without the token."""
    with httpx2.Client(base_url=server.url, timeout=WAIT_S) as client:
        yield client


class TestAccess:
    @pytest.mark.parametrize(
        "headers",
        [{}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": f"Bearer {TOKEN}x"}],
        ids=["none", "bare", "basic", "longer"],
    )  # fmt: skip
    @pytest.mark.parametrize("path", ["/models", CHAT, "/nowhere"])
    def test_without_the_token_nothing_is_told(self, stranger, headers, path):
        for method in ("GET", "POST", "OPTIONS"):
            response = stranger.request(method, path, headers=headers)
            assert response.status_code == 401
            assert error_of(response)["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"].startswith("Bearer")
            assert TOKEN not in response.text

    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("localhost", 200), ("127.0.0.1", 200), ("127.8.8.8:99", 200), ("[::1]:80", 200),
            ("evil.example", 403), ("127.0.0.1.evil.example", 403), ("localhost.evil.example:80", 403),
            ("192.168.0.7", 403), ("", 403), ("[", 403),
        ],
    )  # fmt: skip
    def test_host_header_is_a_name_of_ours(self, http, host, status):
        response = http.get("/models", headers={"Host": host})
        assert response.status_code == status
        if status == 403:
            assert error_of(response)["code"] == "unknown_host"

    def test_pages_of_other_origins_get_no_leave(self, http):
        origin = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
        for response in (http.options(CHAT, headers=origin), http.get("/models", headers=origin)):
            assert not [name for name in response.headers if name.startswith("access-control")]
        assert http.options(CHAT, headers=origin).status_code == 405

    def test_answers_are_not_kept_by_anybody(self, http):
        assert http.get("/models").headers["cache-control"] == "no-store"
        assert "server" not in http.get("/models").headers


class TestRefusals:
    def test_unknown_paths_and_methods(self, http):
        response = http.get("/embeddings")
        assert response.status_code == 404
        assert error_of(response)["code"] == "unknown_url"
        response = http.get(CHAT)
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
        assert error_of(response)["code"] == "method_not_allowed"

    def test_body_that_is_not_called_json(self, http):
        response = http.post(CHAT, content=json.dumps(BODY), headers={"Content-Type": "text/plain"})
        assert response.status_code == 415
        assert error_of(response)["code"] == "unsupported_media_type"

    @pytest.mark.parametrize(
        "content",
        [b"", b"{", b"\xff\xfe{}", b'{"n": NaN}', b"[" * 100_000, b'{"seed": ' + b"9" * 5000 + b"}", b"\x00"],
        ids=["empty", "half", "no utf-8", "nan", "deep", "number", "nul"],
    )
    def test_body_that_is_not_json(self, http, content):
        response = http.post(CHAT, content=content, headers={"Content-Type": "application/json"})
        assert response.status_code == 400
        assert error_of(response)["code"] == "invalid_json"

    def test_body_that_is_too_large(self, http, monkeypatch):
        monkeypatch.setattr(app_module, "MAX_BODY_BYTES", 1000)
        headers = {"Content-Type": "application/json"}
        whole = http.post(CHAT, content=b" " * 1001, headers=headers)
        pieces = http.post(CHAT, content=iter([b" " * 500] * 3), headers=headers)
        for response in (whole, pieces):
            assert response.status_code == 413
            assert "larger than 1,000 bytes" in error_of(response)["message"]
        fits = http.post(CHAT, content=json.dumps(BODY).ljust(1000), headers=headers)
        assert fits.json()["choices"][0]["message"]["content"] == ANSWER

    def test_body_that_does_not_come(self, server, monkeypatch):
        monkeypatch.setattr(app_module, "_BODY_S", 0.05)
        with socket.create_connection((server.host, server.port), timeout=WAIT_S) as connection:
            connection.sendall(
                f"POST /v1{CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
                "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{".encode()
            )
            assert connection.recv(100).startswith(b"HTTP/1.1 408 ")

    def test_message_is_cut_where_it_quotes_too_much(self, http):
        response = http.post(CHAT, json={**BODY, "stop": {"x": "y" * 100_000}})
        assert response.status_code == 400
        assert len(error_of(response)["message"]) <= 1000

    def test_half_a_surrogate_pair_is_read_and_told(self, http):
        bad = json.dumps({**BODY, "messages": [{"role": "\ud800", "content": "x"}]}).encode()
        response = http.post(CHAT, content=bad, headers={"Content-Type": "application/json"})
        assert response.status_code == 400
        good = json.dumps({**BODY, "messages": [{"role": "user", "content": "a\ud800b"}]}).encode()
        response = http.post(CHAT, content=good, headers={"Content-Type": "application/json"})
        assert response.json()["choices"][0]["message"]["content"] == ANSWER


class TestTurns:
    def test_one_more_than_may_wait_is_told_that_the_model_is_busy(self, blocking):
        server, backend = blocking
        first = Asking(server)
        assert backend.blocked.wait(WAIT_S)
        second = Asking(server)
        until(server, lambda: server.app.turns.waiting == 1)
        third = Asking(server).answer()
        assert (third.status_code, third.headers["retry-after"]) == (429, "1")
        assert error_of(third)["code"] == "busy"
        streamed = Asking(server, stream=True).answer()
        assert streamed.status_code == 429
        backend.release.set()
        texts = [one.answer().json()["choices"][0]["message"]["content"] for one in (first, second)]
        assert texts == ["A", "A"]
        assert server.app.active == 0

    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
    def test_client_that_leaves_stops_the_model(self, blocking, stream):
        server, backend = blocking
        connection = raw_request(server, stream=stream)
        assert backend.blocked.wait(WAIT_S)
        if stream:
            assert b"200 OK" in connection.recv(1000)
        connection.close()
        assert backend.interrupted.wait(WAIT_S)
        until(server, lambda: server.app.active == 0)
        assert Asking(server).answer().json()["choices"][0]["message"]["content"] == "A"

    def test_client_that_leaves_while_it_waits_frees_its_place(self, blocking):
        server, backend = blocking
        first = Asking(server)
        assert backend.blocked.wait(WAIT_S)
        connection = raw_request(server)
        until(server, lambda: server.app.turns.waiting == 1)
        connection.close()
        until(server, lambda: server.app.turns.waiting == 0)
        assert not backend.interrupted.is_set()  # the other one's answer goes on
        backend.release.set()
        assert first.answer().json()["choices"][0]["message"]["content"] == "A"


def test_client_that_reads_nothing_keeps_nobody_from_the_model():
    data = json.dumps({**BODY, "stream": True}).encode()
    headers = [
        (b"host", b"localhost"),
        (b"authorization", f"Bearer {TOKEN}".encode()),
        (b"content-type", b"application/json"),
    ]
    scope = {
        "type": "http", "method": "POST", "path": f"/v1{CHAT}", "root_path": "", "query_string": b"",
        "headers": headers,
    }  # fmt: skip

    def receiver():
        messages = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive():
            return messages.pop() if messages else await asyncio.Event().wait()

        return receive

    async def play():
        stuck, sent = asyncio.Event(), []

        async def never_sent(message):
            stuck.set()
            await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        first = asyncio.create_task(app(scope, receiver(), never_sent))
        await stuck.wait()
        await app(scope, receiver(), send)
        first.cancel()
        await asyncio.wait([first])
        return sent

    with scripted_session() as session:
        app = app_module.App(session, token=TOKEN)
        sent = asyncio.run(play())
        assert app.active == 0
    assert sent[0]["status"] == 200
    assert sent[-2]["body"].endswith(b"data: [DONE]\n\n")


class TestClosing:
    def test_who_waits_is_sent_away_and_who_is_answered_is_not(self, blocking):
        server, backend = blocking
        first = Asking(server)
        assert backend.blocked.wait(WAIT_S)
        second = Asking(server)
        until(server, lambda: server.app.turns.waiting == 1)
        server.stop()
        refused = second.answer()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert error_of(refused)["code"] == "closing"
        backend.release.set()
        assert first.answer().json()["choices"][0]["message"]["content"] == "A"
        server.thread.join(WAIT_S)
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(server.url)

    @pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
    def test_answer_that_takes_too_long_ends_with_an_error(self, stream, monkeypatch):
        monkeypatch.setattr(running_module, "_BACKSTOP_S", WAIT_S)
        backend = BlockingBackend()
        with scripted_session(backend=backend) as session, running(session, grace_s=0.0) as server:
            asking = Asking(server, stream=stream)
            assert backend.blocked.wait(WAIT_S)
            server.stop()
            assert backend.interrupted.wait(WAIT_S)
            response = asking.answer()
        if not stream:
            assert response.status_code == 503
            assert error_of(response)["code"] == "closing"
            return
        assert response.status_code == 200
        events = [line for line in response.text.split("\n") if line]
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "closing"
        assert '"content":"A"' in response.text and "[DONE]" not in response.text


def test_logprobs_need_the_vocabulary(monkeypatch):
    with scripted_session() as session:
        monkeypatch.setattr(session, "load", object)  # as where the model is in another process
        with running(session) as server:
            response = Asking(server, logprobs=True).answer()
            assert Asking(server).answer().json()["choices"][0]["message"]["content"] == ANSWER
    assert response.status_code == 400
    assert (error_of(response)["param"], error_of(response)["code"]) == ("logprobs", "unsupported_parameter")


def test_fault_of_ours_is_told_without_details(caplog):
    def script(seen):
        raise RuntimeError("a secret detail")

    with scripted_session(script) as session, running(session) as server:
        response = Asking(server).answer()
    assert response.status_code == 500
    assert error_of(response)["code"] == "internal_error"
    assert "secret" not in response.text
    assert "a secret detail" in caplog.text
