"""A model hub on this machine, with switches for everything that can go wrong."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from tests.index_server import Fault

REPO = "tiny-org/tiny-ONNX"
COMMIT = "c" * 40
NEWER = "d" * 40
LFS_SUFFIXES = (".onnx", ".onnx_data", ".safetensors", ".gguf", ".bin")
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 100000\n"
PAGE = b"<!DOCTYPE html><html><body>Please log in to the network</body></html>"


def make_files(*, seed=1, graph_bytes=40_000, data_bytes=120_000):
    """A repo in the layout of transformers.js, with random graphs."""
    noise = random.Random(seed)
    return {
        "README.md": b"# Tiny\n",
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b"{}",
        "onnx/model_q4.onnx": noise.randbytes(graph_bytes),
        "onnx/model_q4.onnx_data": noise.randbytes(data_bytes),
        "onnx/model_fp16.onnx": noise.randbytes(graph_bytes),
    }


NEEDED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "onnx/model_q4.onnx_data",
    "onnx/model_q4.onnx",
)


@dataclass(frozen=True)
class Seen:
    """A request that arrived."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class Repo:
    """Files by commit, and where `main` stands; `gguf_family` is the architecture that the hub tells."""

    commits: dict[str, dict[str, bytes]]
    main: str = COMMIT
    tags: dict[str, str] = field(default_factory=dict)
    gguf_family: str = ""

    def resolve(self, revision):
        return {"main": self.main, **self.tags}.get(revision, revision if revision in self.commits else None)


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class HubServer:
    """Serves repos as the hub does.

    Attributes:
        seen: The requests so far.
        faults: By file name, what happens to the requests for it, first come first served.
        listing_faults: The same for lists of files.
        search_faults: The same for lists of repos.
        token: If set, files (and lists, if `is_private`) need it.
        allowed: False refuses even the right token, as a gated repo does before one is let in.
        redirect: True sends requests for large files on to the address `cdn`, by default on this server.
    """

    def __init__(self, files=None):
        self.repos = {REPO: Repo({COMMIT: files or make_files()})}
        self.seen: list[Seen] = []
        self.faults: dict[str, list[Fault]] = {}
        self.listing_faults: list[Fault] = []
        self.search_faults: list[Fault] = []
        self.token: str | None = None
        self.is_private = False
        self.allowed = True
        self.redirect = False
        self.cdn = ""
        self.stalled = threading.Event()
        self.go_on = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
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
    def url(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def file_requests(self):
        return [seen for seen in self.seen if "/resolve/" in seen.path]

    def _handler(server):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                path = unquote(urlsplit(self.path).path)
                server.seen.append(
                    Seen(self.command, path, self.headers["Range"], self.headers["Authorization"])
                )
                if path == "/api/models":
                    fault = server.search_faults.pop(0) if server.search_faults else Fault()
                    self._answer(json.dumps([{"id": name} for name in server.repos]).encode(), fault)
                elif path == "/api/agent-harnesses":  # the hub library asks this once a day
                    self._answer(b"{}", Fault())
                elif path.startswith("/api/models/"):
                    self._list(path.removeprefix("/api/models/"))
                else:
                    self._file(path.removeprefix("/cdn").removeprefix("/"), is_cdn=path.startswith("/cdn/"))

            do_HEAD = do_GET

            def _list(self, path):
                name, _, revision = path.partition("/revision/")
                if name.endswith("/refs"):
                    repo = server.repos[name.removesuffix("/refs")]
                    refs = [
                        {"name": n, "ref": f"refs/tags/{n}", "targetCommit": c} for n, c in repo.tags.items()
                    ]
                    main = [{"name": "main", "ref": "refs/heads/main", "targetCommit": repo.main}]
                    self._answer(
                        json.dumps({"branches": main, "converts": [], "tags": refs}).encode(), Fault()
                    )
                    return
                fault = server.listing_faults.pop(0) if server.listing_faults else Fault()
                repo = server.repos.get(name)
                commit = repo.resolve(revision or "main") if repo else None
                refusal = self._refusal() if server.is_private else None
                if refusal or fault.status is not None:
                    self._refuse(*(refusal or (fault.status, "")))
                elif repo is None:
                    self._refuse(404, "RepoNotFound")
                elif commit is None:
                    self._refuse(404, "RevisionNotFound")
                else:
                    siblings = [self._sibling(*item) for item in repo.commits[commit].items()]
                    info = {"id": name, "modelId": name, "sha": commit, "siblings": siblings}
                    info |= {"gguf": {"architecture": repo.gguf_family}} if repo.gguf_family else {}
                    self._answer(json.dumps(info).encode(), fault)

            def _sibling(self, name, content):
                facts = {"rfilename": name, "size": len(content), "blobId": git_sha1(content)}
                if name.endswith(LFS_SUFFIXES):
                    sha256 = hashlib.sha256(content).hexdigest()
                    facts["lfs"] = {"size": len(content), "sha256": sha256, "pointerSize": 134}
                return facts

            def _file(self, path, *, is_cdn):
                repo, _, rest = path.partition("/resolve/")
                commit, _, name = rest.partition("/")
                if not is_cdn and (refusal := self._refusal()):
                    self._refuse(*refusal)
                    return
                commit = server.repos[repo].resolve(commit)
                content = server.repos[repo].commits[commit].get(name)
                if content is None:
                    self._refuse(404, "EntryNotFound")
                elif server.redirect and not is_cdn and name.endswith(LFS_SUFFIXES):
                    self.send_response(302)
                    self.send_header("Location", f"{server.cdn}/cdn/{path}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    faults = server.faults.get(name)
                    checksum = (
                        hashlib.sha256(content).hexdigest()
                        if name.endswith(LFS_SUFFIXES)
                        else git_sha1(content)
                    )
                    self._answer(content, faults.pop(0) if faults else Fault(), commit, checksum)

            def _refusal(self):
                if server.token is None:
                    return None
                if self.headers["Authorization"] != f"Bearer {server.token}":
                    return 401, "GatedRepo" if not server.is_private else ""
                return None if server.allowed else (403, "GatedRepo")

            def _refuse(self, status, code):
                self.send_response(status)
                if code:
                    self.send_header("X-Error-Code", code)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def _answer(self, body, fault, commit=None, checksum=None):
                body = body if fault.body is None else fault.body
                start = 0
                if self.headers["Range"] and not fault.ignore_range and fault.status is None:
                    start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
                if start and start >= len(body):
                    fault = Fault(status=416)
                if fault.status is not None:
                    self._refuse(fault.status, "")
                    return
                self.send_response(206 if start else 200)
                if start:
                    self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
                if commit:
                    self.send_header("X-Repo-Commit", commit)
                    self.send_header("ETag", f'"{checksum}"')
                self.send_header("Content-Type", fault.content_type)
                self.send_header("Content-Length", str(len(body) - start))
                self.end_headers()
                if self.command == "GET":
                    self._send(body[start:], fault)

            def _send(self, body, fault):
                self.close_connection = True
                if fault.stall_at is not None:
                    self.wfile.write(body[: fault.stall_at])
                    self.wfile.flush()
                    body = body[fault.stall_at :]
                    server.stalled.set()
                    server.go_on.wait(60)
                body = body if fault.send_bytes is None else body[: fault.send_bytes]
                with contextlib.suppress(OSError):  # the client may have gone
                    self.wfile.write(body)

            def log_message(self, *_):
                pass

        return Handler
