"""A tiny random model, pairs, and a recipe for them."""

import pytest

from tests import tiny_models as tiny
from tinykit.recipes import Preparation, Recipe
from tinykit.tune.pairs import Pair

FEW = [
    Pair("please fix the red door", "red door"),
    Pair("my cat eats blue paper", "cat eats paper"),
    Pair("call the bank about a loan", "bank loan"),
    Pair("write a song for rainy days", "rainy song"),
    Pair("which tea helps me sleep", "tea for sleep"),
    Pair("ok then, see you around", None),
]


@pytest.fixture(scope="session")
def weights():
    return tiny.random_weights("llama")


@pytest.fixture(scope="session")
def gguf(tmp_path_factory, weights):
    return tiny.write_gguf(tmp_path_factory.mktemp("tune") / "tiny.gguf", "llama", weights)


@pytest.fixture(scope="session")
def recipe():
    return Recipe(
        name="short",
        system="T",
        template="{message}",
        max_tokens=40,
        no_task_answer="-",
        preparation=Preparation(style="focus", max_chars=200),
    )


@pytest.fixture(scope="session")
def many_pairs():
    """Forty pairs whose titles are the last two words."""
    things = ["lamp", "roof", "book", "road", "bike", "soup", "code", "film", "tree", "cake"]
    verbs = ["paint", "mend", "draw", "clean"]
    return [(f"help me {verb} this {thing}", f"{verb} {thing}") for verb in verbs for thing in things]


@pytest.fixture(scope="session")
def few_pairs():
    return FEW
