"""What the documents say of recipe files, rows and metrics is what there is."""

import dataclasses
import json
import re
import tomllib
from pathlib import Path

from tinykit.lab.metrics import METRICS
from tinykit.lab.rating import KEYS
from tinykit.lab.rows import Row
from tinykit.lab.votes import Vote
from tinykit.recipes import Preparation, Recipe

DOCS = Path(__file__).parents[2] / "docs"
RECIPES = (DOCS / "recipes.md").read_text(encoding="utf-8")
LAB = (DOCS / "lab.md").read_text(encoding="utf-8")


def test_every_field_of_a_recipe_has_its_line():
    named = re.findall(r"^\| `(\w+)` \|", RECIPES, re.MULTILINE)
    assert named == [field.name for kind in (Recipe, Preparation) for field in dataclasses.fields(kind)]


def test_the_example_is_a_recipe_and_survives_both_formats(tmp_path):
    recipe = Recipe.from_dict(tomllib.loads(re.search(r"```toml\n(.*?)```", RECIPES, re.DOTALL)[1]))
    for name in ("mine.json", "mine.toml"):
        recipe.save(tmp_path / name)
        assert Recipe.load(tmp_path / name) == recipe
    assert json.loads((tmp_path / "mine.json").read_text(encoding="utf-8"))["preparation"]["style"] == "focus"


def test_every_metric_has_its_line():
    table = LAB.partition("| metric |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == list(METRICS)


def test_every_field_of_a_row_is_named():
    line = next(line for line in LAB.split("\n") if line.startswith("Fields of a row"))
    assert {field.name for field in dataclasses.fields(Row)} <= set(re.findall(r"`(\w+)`", line))


def test_every_key_and_field_of_a_vote_is_named():
    section = LAB.partition("## Blind rating")[2].partition("\n## ")[0]
    table = section.partition("| key |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w)`", table)) == set(KEYS)
    assert {field.name for field in dataclasses.fields(Vote)} <= set(re.findall(r"`(\w+)`", section))
