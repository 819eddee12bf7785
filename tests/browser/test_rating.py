"""Blind rating in JupyterLab, by keyboard alone."""

import json

import pytest

from tests.browser.test_jupyterlab import into_output_above, picture, run_cell, tab_to

pytestmark = pytest.mark.timeout(1200)
SETUP = """
from tinykit import Recipe, lab
recipes = [Recipe(name, method="first-words", max_chars=chars) for name, chars in (("shortest", 12), ("longest", 80))]
cases = [f"please paint {color} doors of my old house" for color in "red blue green white black".split()]
run = lab.run(cases, recipes, out="rated", baseline=False, progress=False)
print("set" + " up")
"""
RATE = 'rating = lab.rate(run, "shortest", "longest", rater="ann")\nrating'
PLOT = 'run.plot("scores", "characters")'
BRIGHTNESS = """() => {
    const [r, g, b] = getComputedStyle(document.querySelector('.jp-OutputArea figure svg text')).fill.match(/\\d+/g)
    return (Number(r) + Number(g) + Number(b)) / 3
}"""
KEYS = 'input[placeholder="1 2 0 x s u"]'


def use_theme(page, theme):
    command = "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})"
    page.evaluate(command, f"JupyterLab {theme}")
    is_light = {"Light": "true", "Dark": "false"}[theme]
    page.wait_for_function("is => document.body.dataset.jpThemeLight === is", arg=is_light)


def answer(page, cell, key, then):
    """Press a key, slower than the guard, and wait for what is shown then."""
    page.wait_for_timeout(350)
    page.keyboard.press(key)
    cell.get_by_role("status").get_by_text(then).first.wait_for()


def test_titles_are_rated_by_keys_alone(opened, lab):
    page = opened(
        "rating", SETUP, RATE, "print(rating.rated)", RATE, "print(rating.results().skipped)", PLOT, ""
    )
    run_cell(page, 0, "set up")
    cell = run_cell(page, 1)
    cell.get_by_role("button", name="1 is better").wait_for()
    for label in ("Message", "Title 1", "Title 2"):
        cell.get_by_role("group", name=label, exact=True).wait_for()
    picture(page, "rating-new")
    into_output_above(page)
    tab_to(page, KEYS)
    for key, count in (("1", 1), ("2", 2), ("0", 3), ("u", 2), ("x", 3)):
        answer(page, cell, key, f"{count} of 5 rated")
    assert page.evaluate(
        "wanted => document.activeElement.matches(wanted)", KEYS
    )  # the keyboard keeps its place
    assert page.evaluate("document.activeElement.value") == ""
    picture(page, "rating-some")
    tab_to(page, '.jupyter-button[title="Say nothing about this pair"]')
    answer(page, cell, "Enter", "4 of 5 rated")
    page.wait_for_function("wanted => document.activeElement.matches(wanted)", arg=KEYS)
    assert "shortest" not in cell.locator(".jp-OutputArea").inner_text()
    run_cell(page, 2, "4")
    cell = run_cell(page, 3)  # a new rating goes on
    cell.get_by_role("status").get_by_text("4 of 5 rated").wait_for()
    into_output_above(page)
    tab_to(page, KEYS)
    answer(page, cell, "2", "5 of 5 rated")
    cell.get_by_text("Nothing is left to rate.").wait_for()
    picture(page, "rating-done")
    run_cell(page, 4, "1")
    run_cell(page, 5).locator("figure svg").wait_for()
    for theme, is_light in (("Light", True), ("Dark", False)):  # a plot has the color of the text around it
        use_theme(page, theme)
        assert (page.evaluate(BRIGHTNESS) < 128) is is_light
    _, folder = lab
    votes = [json.loads(line) for line in (folder / "rated" / "votes.jsonl").read_text().splitlines()]
    assert [vote["choice"] for vote in votes] == ["left", "right", "tie", "undo", "both bad", "skip", "right"]
    assert {vote["rater"] for vote in votes} == {"ann"}
