"""Recipes without one of their lines, and what of a prompt comes back."""

import pytest

from tests.lab.conftest import MESSAGES, short
from tinykit import lab
from tinykit.lab.ablation import pieces
from tinykit.lab.copybait import PROBES, _copied
from tinykit.lab.rows import Row
from tinykit.recipes import RECIPES
from tinykit.titles import has_task


def test_pieces_of_one_line_are_sentences_and_of_many_lines():
    one = pieces(short(system="Be brief. Be good.", prefill="<title>"))
    assert [(p.part, p.text) for p in one] == [
        ("system", "Be brief."),
        ("system", "Be good."),
        ("prefill", "<title>"),
    ]
    assert [p.without.system for p in one] == ["Be good.", "Be brief.", "Be brief. Be good."]
    assert one[2].without.prefill == ""
    many = pieces(short(system="First. Second.\nThird.", template="<a>\n{message}\nGo on."))
    assert [p.text for p in many] == ["First. Second.", "Third.", "<a>", "Go on."]
    assert [p.without.template for p in many[2:]] == ["{message}\nGo on.", "<a>\n{message}"]
    assert [p.without.name for p in many] == ["short -1", "short -2", "short -3", "short -4"]


def test_every_recipe_without_any_piece_is_a_recipe_and_differs():
    for recipe in RECIPES.values():
        for piece in pieces(recipe):
            assert piece.without.diff(recipe).keys() - {"name"}


def test_ablate_compares_the_whole_with_each_piece_left_out(gguf, tmp_path):
    rows = [{"message": m, "references": [m]} for m in MESSAGES[:4]]
    found = lab.ablate(
        short(system="Be brief. Be good."),
        rows,
        model=gguf,
        out=tmp_path / "run",
        progress=False,
        cache=False,
    )
    assert found.run.variants == ("first-words", "short", "short -1", "short -2")
    table = found.table()
    assert [row[0] for row in table.rows] == ["system: Be brief.", "system: Be good."]
    assert all(float(row[1]) > 0 for row in table.rows)  # fewer tokens
    assert "first-words" not in str(table)


def test_probes_are_tasks_for_the_models():
    assert all(map(has_task, PROBES)) and len(set(PROBES)) == len(PROBES) >= 12


COPIES = {
    "a phrase": ("Read the message now", ["read the message"]),
    "an example": ("Gardening", ["gardening"]),
    "small words": ("in the", []),
    "from the message": ("my blue parrot", []),
    "nothing": ("Doorbell imitation", []),
    "two": ("Name it. Read the message", ["name it", "read the message"]),
}


@pytest.mark.parametrize(("raw", "phrases"), COPIES.values(), ids=COPIES)
def test_copied_phrases(raw, phrases):
    recipe = short(system='Read the message. Name it in the way of "Gardening" or my blue parrot.')
    assert _copied(Row("k", "c", "v", 0, "r", "title", raw=raw), "about my blue parrot", recipe) == phrases


def test_copy_bait_counts_replies(gguf, tmp_path):
    found = lab.copy_bait(
        short(system="zz yy xx"), model=gguf, probes=["water the plants", "paint a wall"],
        out=tmp_path / "run", progress=False, cache=False,
    )  # fmt: skip
    assert (found.replies, found.copied, found.share) == (2, 0, 0.0)
    assert "0 of 2 replies" in str(found) and "No phrase" in found._repr_html_()
