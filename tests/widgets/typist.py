"""A session without a model, that types what it is told, as slowly as a test wants it."""

import threading
import time
from dataclasses import replace
from pathlib import Path

from tests import tiny_models as tiny
from tinykit.backends.scripted import ScriptedBackend
from tinykit.convert.vocabulary import build_tokenizer
from tinykit.generation.engine import Engine
from tinykit.loaded_model import Loaded
from tinykit.recipes import RECIPES
from tinykit.session import TinySession
from tinykit.tokenizer import Tokenizer

IM_START, IM_END = 1, 2
TYPED = replace(RECIPES["titles"], name="typed", max_tokens=80)  # its tokens are single letters
WAIT_S = 120  # far more than any machine needs; a test that waits this long has failed


def tokenizer():
    """One token for each byte, nearly."""
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tiny.VOCABULARY,
        "tokenizer.ggml.token_type": [3 if token in tiny.SPECIALS else 1 for token in tiny.VOCABULARY],
        "tokenizer.ggml.merges": tiny.MERGES,
    }
    return Tokenizer(build_tokenizer(metadata), {}, tiny.TEMPLATE)


class Typist(ScriptedBackend):
    """Says `answer`, token by token.

    Attributes:
        begun: Is set once `hold_at` tokens of an answer were said, and then waits for `go_on`.
    """

    def __init__(self, answer, *, hold_at=None, pause_s=0.0):
        super().__init__(self.say, vocab_size=len(tiny.VOCABULARY))
        self.tokenizer = tokenizer()
        self.answer = [*self.tokenizer.encode(f"{answer}</title>"), IM_END]
        self.title_start = self.tokenizer.encode("<title>")
        self.turn_start = self.tokenizer.encode("assistant\n")
        self.hold_at, self.pause_s = hold_at, pause_s
        self.begun, self.go_on = threading.Event(), threading.Event()

    def say(self, ids):
        turns = [at for at, token_id in enumerate(ids) if token_id == IM_START]
        said = ids[turns[-1] + 1 :] if turns else []
        for start in (self.turn_start, self.title_start):
            if said[: len(start)] == start:
                said = said[len(start) :]
        if self.pause_s:
            time.sleep(self.pause_s)
        if len(said) == self.hold_at:
            self.begun.set()
            assert self.go_on.wait(WAIT_S)
        return self.answer[len(said)] if len(said) < len(self.answer) else IM_END


def type_for_all(answer, *, pause_s=0.0):
    """Let every session of this process type an answer, whatever model it asks for; gives the typist."""
    import tinykit.session

    typist = Typist(answer, pause_s=pause_s)
    engine = Engine(typist, typist.tokenizer, [IM_END], cache_bytes=1 << 20)
    tinykit.session.load = lambda spec, **_: Loaded(spec, engine, Path("nowhere"), 0.0)
    return typist


def typing_session(answer, *, recipe=TYPED, hold_at=None, pause_s=0.0):
    """A session that is loaded, and the typist behind it."""
    session = TinySession(recipe=recipe, lazy=True, offline=True)
    typist = Typist(answer, hold_at=hold_at, pause_s=pause_s)
    engine = Engine(typist, typist.tokenizer, [IM_END], cache_bytes=1 << 20)
    for key in (session.spec.key, session.spec.chat_model):
        session._loaded[key] = Loaded(session.spec, engine, Path("nowhere"), 0.0)
    return session, typist
