"""Ctrl-C anywhere in a call of a session: it comes out with what there is, and the next call is a good one."""

import contextlib
import dataclasses
import threading
from pathlib import Path

import pytest

import tinykit
from tests.generation.test_engine import tokenizer
from tests.interrupting import interrupted
from tests.test_titling import IM_END, IM_START, Ranked
from tinykit import Completion, TinySession
from tinykit.generation.engine import Engine
from tinykit.loaded_model import Loaded
from tinykit.reasons import Reason
from tinykit.recipes import RECIPES
from tinykit.titling import Title

WATCHED = (str(Path(tinykit.__file__).parent), contextlib.__file__, threading.__file__)
MESSAGE = "fix the flaky login test"
RECIPE = dataclasses.replace(RECIPES["titles"], max_tokens=20)
# where all is there and on its way to the caller
ENDS = ("names_options", "with_partial", "Entitling.title", "Answers.c")


class Talker(Ranked):
    """Titles as it is told; to anything else it says some letters."""

    def rank(self, ids):
        logits = super().rank(ids)
        if not logits.any():
            turn = len(ids) - 1 - ids[::-1].index(IM_START)
            logits[60 + ids[-1] % 50 if len(ids) - turn < 20 else IM_END] = 1
        return logits


@pytest.fixture(scope="module")
def new_session():
    text = tokenizer()

    def load(spec, **_):
        backend = Talker(["Flaky login test", "Login test"], text)
        return Loaded(spec, Engine(backend, text, [IM_END], cache_bytes=1 << 20), Path(), 0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tinykit.session.load", load)
        yield lambda: TinySession(recipe=RECIPE, lazy=True, offline=True, progress=False)


def title(session):
    return session.title(MESSAGE, timeout_s=1000)


def titles(session):
    return session.titles([MESSAGE, "hi", MESSAGE], batch_size=2)


def titles_alone(session):
    return session.titles([MESSAGE, MESSAGE], batch_size=1)


def titles_as_done(session):
    return {index: title.text for index, title in session.titles_as_done([MESSAGE, "hi"], batch_size=2)}


def complete(session):
    return session.complete("a color", max_tokens=4, slot="x", draft=True)


def complete_several(session):
    return session.complete("a color", max_tokens=3, n=2, temperature=1.0, seed=3)


def complete_many(session):
    return session.complete_many(["a color", "", "a fruit"], max_tokens=3, batch_size=2)


def stream(session):
    return "".join(session.stream("a color", max_tokens=4, slot="x", timeout_s=1000))


def choose(session):
    return session.choose("a color", ["red", "blue"], calibrate=True).probabilities


def yes_no(session):
    return session.yes_no("Is it?").probability


def elsewhere(act, session):
    found = []
    other = threading.Thread(target=lambda: found.append(act(session)), daemon=True)
    other.start()
    other.join(60)
    return found


# every so many places, to be quick: those within the engine have a test of their own
@pytest.mark.parametrize(
    ("act", "step", "partial"),
    [
        (title, 97, Title), (titles, 197, list), (titles_alone, 197, list), (titles_as_done, 197, None),
        (complete, 13, Completion), (complete_several, 23, list), (complete_many, 31, list),
        (stream, 13, None), (choose, 19, None), (yes_no, 13, None),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_interrupt_anywhere(new_session, act, step, partial):
    wanted = act(new_session())
    session, at, has_begun, kept = new_session(), 0, False, None
    while True:
        at += step
        come, error = interrupted(at, lambda: act(session), WATCHED)
        if not come:
            break
        place = f"place {at}, in {come[0]}"
        assert isinstance(error, KeyboardInterrupt), place
        found = getattr(error, "partial", None)
        has_begun = has_begun or found is not None
        is_edge = not has_begun or come[0].startswith(ENDS)
        assert partial is None or is_edge or isinstance(found, partial), place
        assert act(session) == wanted, place
        assert session.cancel() == 0, place
        kept = error  # as a notebook keeps it, with its frames
    assert kept is not None and at > 20 * step
    assert has_begun or partial is None
    assert elsewhere(act, session) == [wanted]


@pytest.mark.parametrize("step", ["extract", "count_words"])
@pytest.mark.parametrize("batch_size", [None, 1, 2])
def test_interrupt_while_an_answer_is_read_keeps_the_answer(new_session, monkeypatch, step, batch_size):
    session = new_session()
    whole = session.title_result(MESSAGE)
    with monkeypatch.context() as patch:
        patch.setattr(f"tinykit.titling.{step}", pressed)
        with pytest.raises(KeyboardInterrupt) as caught:
            if batch_size is None:
                session.title(MESSAGE)
            else:
                session.titles([MESSAGE, MESSAGE], batch_size=batch_size)
    found = caught.value.partial
    first = found if batch_size is None else next(one for one in found if one is not None)
    assert (first.text, first.raw, first.why[-1].reason) == (None, whole.raw, Reason.CANCELLED)
    assert first.completion.finish_reason == "stop"
    assert session.title_result(MESSAGE).text == whole.text


def pressed(*_, **__):
    raise KeyboardInterrupt


def test_interrupt_while_a_model_is_loaded_has_a_partial_too(new_session, monkeypatch):
    monkeypatch.setattr("tinykit.session.load", pressed)
    session = new_session()
    found = []
    for act in (title, titles, complete, complete_several, complete_many):
        with pytest.raises(KeyboardInterrupt) as caught:
            act(session)
        found.append(caught.value.partial)
    assert found[0].why[-1].reason is Reason.CANCELLED
    assert found[1] == found[4] == [None] * 3
    assert [one.cancelled_by for one in (found[2], *found[3])] == ["interrupt"] * 3
