"""Recipes as data: round trips, differences, and errors that name the field."""

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinykit.errors import OptionError, UnknownRecipeError
from tinykit.recipes import RECIPES, Preparation, Recipe, get_recipe

ODD = Recipe(
    name="odd 名 \x7f",
    description='quotes " and \\ and \t tab',
    system="two\nlines",
    template="<message>{message}</message>",
    prefill="",
    stop=("</title>", "\n"),
    max_tokens=7,
    no_task_answer="-",
    preparation=Preparation(max_chars=500, head_share=0.5, fences="keep"),
    max_chars=40,
    max_words=6,
)


@pytest.mark.parametrize("ending", [".json", ".toml", ".TOML"])
@pytest.mark.parametrize("recipe", [*RECIPES.values(), ODD], ids=lambda recipe: recipe.name[:5])
def test_recipe_comes_back_from_its_file(tmp_path, recipe, ending):
    path = tmp_path / f"recipe{ending}"
    recipe.save(path)
    assert Recipe.load(path) == recipe
    assert get_recipe(str(path)) == get_recipe(path) == recipe


@settings(deadline=None)
@given(
    system=st.text(st.characters(exclude_categories=["Cs"])),
    answer=st.none() | st.text(st.characters(exclude_categories=["Cs"])),
)
def test_recipe_keeps_any_text(tmp_path_factory, system, answer):
    recipe = dataclasses.replace(ODD, system=system, no_task_answer=answer)
    for ending in ("json", "toml"):
        path = tmp_path_factory.getbasetemp() / f"any.{ending}"
        recipe.save(path)
        assert Recipe.load(path) == recipe


def test_recipe_from_dict_fills_in_defaults():
    recipe = Recipe.from_dict({"name": "mine", "preparation": {"max_chars": 300}})
    assert recipe == Recipe(name="mine", preparation=Preparation(max_chars=300))
    assert (recipe.prefill, recipe.stop, recipe.max_tokens) == ("<title>", ("</title>",), 20)
    assert (recipe.max_chars, recipe.max_words) == (80, 12)


WRONG = {
    "unknown field": ({"name": "x", "sytem": ""}, "sytem"),
    "unknown field inside": ({"name": "x", "preparation": {"max_char": 1}}, "max_char"),
    "no name": ({}, "name"),
    "not a mapping": ([], "recipe"),
    "preparation is no mapping": ({"name": "x", "preparation": 3}, "preparation"),
    "unknown method": ({"name": "x", "method": "magic"}, "method"),
    "no place for the message": ({"name": "x", "template": "hello"}, "template"),
    "system is no text": ({"name": "x", "system": 5}, "system"),
    "empty stop": ({"name": "x", "stop": [""]}, "stop"),
    "stop is text": ({"name": "x", "stop": "</title>"}, "stop"),
    "no tokens": ({"name": "x", "max_tokens": 0}, "max_tokens"),
    "tokens are half": ({"name": "x", "max_tokens": 1.5}, "max_tokens"),
    "tokens are NaN": ({"name": "x", "max_tokens": float("nan")}, "max_tokens"),
    "tokens are true": ({"name": "x", "max_tokens": True}, "max_tokens"),
    "share above one": ({"name": "x", "preparation": {"head_share": 1.1}}, "head_share"),
    "unknown fences": ({"name": "x", "preparation": {"fences": "burn"}}, "fences"),
}


@pytest.mark.parametrize(("values", "name"), WRONG.values(), ids=WRONG)
def test_wrong_recipe_names_the_field(values, name):
    with pytest.raises(OptionError) as caught:
        Recipe.from_dict(values)
    assert caught.value.name == name
    assert name in str(caught.value).casefold()


def test_unknown_field_gets_the_nearest_name():
    with pytest.raises(OptionError) as caught:
        Recipe.from_dict({"name": "x", "sytem": ""})
    assert caught.value.__notes__ == ["Did you mean 'system'?"]


@pytest.mark.parametrize("text", ["{", "[]", "null"])
def test_unreadable_file_is_an_option_error(tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(OptionError):
        Recipe.load(path)


def test_save_wants_a_known_ending(tmp_path):
    with pytest.raises(OptionError, match=r"\.json or \.toml"):
        ODD.save(tmp_path / "recipe.yaml")


def test_diff_names_the_fields_that_differ():
    other = dataclasses.replace(
        ODD, max_tokens=8, no_task_answer=None, preparation=Preparation(max_chars=500, head_share=0.5)
    )
    assert ODD.diff(other) == {
        "max_tokens": (7, 8),
        "no_task_answer": ("-", None),
        "preparation.fences": ("keep", "drop"),
    }
    assert ODD.diff(ODD) == {}


def test_get_recipe_takes_names_and_recipes():
    assert get_recipe("plain") is RECIPES["plain"]
    assert get_recipe(ODD) is ODD


def test_get_recipe_names_the_nearest(tmp_path):
    with pytest.raises(UnknownRecipeError) as caught:
        get_recipe("plian")
    assert caught.value.nearest == ["plain"]
    assert caught.value.__notes__ == ["Did you mean 'plain'?"]
    with pytest.raises(UnknownRecipeError, match="first-words, plain"):
        get_recipe(str(tmp_path / "missing"))


def test_a_recipe_file_that_is_not_there_is_told_as_such(tmp_path, monkeypatch):
    with pytest.raises(UnknownRecipeError, match=r"No recipe file is at .*missing\.json"):
        get_recipe(str(tmp_path / "missing.json"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownRecipeError) as caught:
        get_recipe("missing.toml")
    assert caught.value.__notes__ == [f"A relative path starts from {tmp_path}."]


@pytest.mark.parametrize(
    "name",
    ["~no-such-user/x.json", "x" * 5000, "x" * 5000 + ".json", "x/" * 2500 + ".toml", "a\0b.json"],
    ids=["user", "long", "long_file", "deep_folder", "nul"],
)
def test_name_that_no_file_can_have_is_unknown(name):
    with pytest.raises(UnknownRecipeError) as caught:
        get_recipe(name)
    assert caught.value.recipe == name
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("recipe", [5, None, b"plain", {"name": "x"}], ids=repr)
def test_what_is_no_recipe_is_an_option_error(recipe):
    with pytest.raises(OptionError, match="a name, a file or a Recipe, not") as caught:
        get_recipe(recipe)
    assert (caught.value.name, caught.value.value) == ("recipe", recipe)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.json", "[" * 100_000),
        ("deep.toml", "a=" + "[" * 100_000),
        ("value.json", '{"name": "x", "system": ' + "[" * 900 + "]" * 900 + "}"),
    ],
    ids=["json", "toml", "value"],
)
def test_deep_nesting_is_an_option_error(tmp_path, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(OptionError):
        get_recipe(tmp_path / name)


def test_file_that_is_not_there_is_an_option_error(tmp_path):
    with pytest.raises(OptionError, match="missing.json is not a readable recipe: No such file"):
        Recipe.load(tmp_path / "missing.json")


def test_recipes_are_listed_under_their_own_names():
    assert all(name == recipe.name for name, recipe in RECIPES.items())


LANGUAGES = [
    "english",
    "german",
    "french",
    "spanish",
    "italian",
    "portuguese",
    "russian",
    "chinese",
    "japanese",
    "korean",
    "arabic",
    "hindi",
    "turkish",
]


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_prompt_names_no_language_and_holds_no_example(recipe):
    # a language or an example in the prompt pulls a small model towards it
    prompt = recipe.system + recipe.template
    assert not set(re.findall(r"\w+", prompt.casefold())) & set(LANGUAGES)
    assert "<title>" not in prompt


def test_plain_is_the_recipe_that_was_measured():
    plain = RECIPES["plain"]
    assert (plain.method, plain.template, plain.prefill) == ("model", "<user>\n{message}\n</user>", "<title>")
    assert (plain.stop, plain.max_tokens, plain.preparation) == (("</title>",), 20, Preparation())
    assert (plain.preparation.max_chars, plain.preparation.head_share) == (2000, 2 / 3)
