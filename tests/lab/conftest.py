"""A tiny random model, messages, and recipes for them: runs whose titles say nothing, but are real."""

import pytest

from tests import tiny_models as tiny
from tinykit.recipes import Preparation, Recipe

MESSAGES = [
    "please fix the red door",
    "my cat eats blue paper",
    "call the bank about a loan",
    "write a song for rainy days",
    "which tea helps me sleep",
    "hello",
]


@pytest.fixture(scope="session")
def gguf(tmp_path_factory):
    return tiny.write_gguf(
        tmp_path_factory.mktemp("lab") / "tiny.gguf", "llama", tiny.random_weights("llama")
    )


@pytest.fixture
def recipe():
    return short()


def short(name="short", **fields):
    fields = {"system": "T", "template": "{message}", "prefill": "", "max_tokens": 3, **fields}
    return Recipe(name=name, preparation=Preparation(max_chars=200), **fields)


@pytest.fixture
def asked(monkeypatch):
    """The messages that the model was asked about, in order."""
    from tinykit import entitling

    found = []
    task = entitling.title_task

    def counted(engine, message, recipe, *rest, **options):
        found.append(message)
        return task(engine, message, recipe, *rest, **options)

    monkeypatch.setattr(entitling, "title_task", counted)
    return found
