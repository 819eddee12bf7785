"""Sessions without a model, and servers in a thread, for the tests of this folder."""

import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests import tiny_models as tiny
from tinykit import TinySession
from tinykit.backends.scripted import ScriptedBackend
from tinykit.convert.vocabulary import build_tokenizer
from tinykit.generation.engine import Engine
from tinykit.loaded_model import Loaded
from tinykit.serve.access import listen
from tinykit.serve.app import App
from tinykit.serve.running import Server
from tinykit.tokenizer import Tokenizer

EOS = 2
TOKEN = "a-token-for-the-tests"
MODEL = "smollm2-135m"
ANSWER = "Hello, wörld!"
WAIT_S = 120  # for what must happen; it is long for slow machines, and reached only where a test fails


def tokenizer():
    """Of the tiny models."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tiny.VOCABULARY,
        "tokenizer.ggml.token_type": [3 if t in tiny.SPECIALS else 1 for t in tiny.VOCABULARY],
        "tokenizer.ggml.merges": tiny.MERGES,
    }
    return Tokenizer(build_tokenizer(metadata), {}, tiny.TEMPLATE)


def byte_ids(text):
    """Its bytes as tokens, which come after three control tokens."""
    return [3 + byte for byte in text.encode()]


_ASSISTANT = [1, *byte_ids("assistant\n")]


def said(seen):
    """The ids of the answer so far."""
    size = len(_ASSISTANT)
    at = next(at for at in range(len(seen) - size, -1, -1) if list(seen[at : at + size]) == _ASSISTANT)
    return list(seen[at + size :])


def saying(text):
    """A script that answers every chat with `text`."""
    ids = [*byte_ids(text), EOS]
    return lambda seen: ids[min(len(said(seen)), len(ids) - 1)]


class BlockingBackend(ScriptedBackend):
    """Says one letter, then nothing until it is interrupted or `release` is set."""

    def __init__(self, **options):
        self.blocked, self.interrupted, self.release = (threading.Event() for _ in range(3))
        super().__init__(self._next, vocab_size=len(tiny.VOCABULARY), **options)

    def _next(self, seen):
        if not said(seen):
            return byte_ids("A")[0]
        self.blocked.set()
        assert self.release.wait(WAIT_S)
        return EOS

    def interrupt(self):
        super().interrupt()
        self.interrupted.set()
        self.release.set()


def scripted_session(script=None, *, backend=None, **options):
    """A session on a backend without a model."""
    backend = backend or ScriptedBackend(script or saying(ANSWER), vocab_size=len(tiny.VOCABULARY), **options)
    session = TinySession(MODEL, lazy=True, progress=False)
    engine = Engine(backend, tokenizer(), [EOS], cache_bytes=1 << 20)
    session._loaded[MODEL] = Loaded(session.spec, engine, Path(), 0.0)
    return session


def alphabet_session():
    """A session that could say any printable character next, and never ends by itself."""
    logits = np.full(len(tiny.VOCABULARY), -20, np.float32)
    logits[[3 + code for code in range(32, 127)]] = 0
    return scripted_session(lambda seen: logits)


class Running:
    """A server that runs: where, and what is behind it."""

    def __init__(self, app, server, thread):
        self.app, self.server, self.thread = app, server, thread
        self.url = server.url
        self.host, self.port = "127.0.0.1", int(server.url.split(":")[2].split("/")[0])

    def stop(self):
        self.server.should_exit = True


@contextmanager
def running(session, *, grace_s=5.0, **options):
    """Serve `session` in a thread."""
    ready = threading.Event()
    app = App(session, token=TOKEN, **options)
    server = Server(app, listen("127.0.0.1", 0), grace_s=grace_s, on_ready=ready.set)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        assert ready.wait(WAIT_S)
        yield Running(app, server, thread)
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        assert not thread.is_alive()


def official_client(server):
    """The client of the API's maker."""
    import openai  # not in the child processes, which start faster without

    return openai.OpenAI(base_url=server.url, api_key=TOKEN, max_retries=0, timeout=WAIT_S)


@contextmanager
def served(session, **options):
    """The official client of a server of one's own."""
    with running(session, **options) as server, official_client(server) as client:
        yield client
