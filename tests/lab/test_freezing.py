"""Titles frozen as a regression test, and reports of runs."""

import json
import re
from dataclasses import replace

import pytest

from tests.lab.conftest import MESSAGES, short
from tinykit import lab
from tinykit.errors import OptionError
from tinykit.recipes import Recipe


@pytest.fixture(scope="module")
def made(tmp_path_factory, gguf):
    folder = tmp_path_factory.mktemp("frozen")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYKIT_HOME", str(folder / "home"))
        rows = [{"id": f"<i>{at}", "message": m, "references": [m]} for at, m in enumerate(MESSAGES)]
        return lab.run(rows, short(), gguf, out=folder / "run", progress=False, cache=False)


def test_frozen_titles_come_out_the_same(made, tmp_path):
    folder = made.freeze("short", tmp_path / "frozen")
    check = lab.check(folder)
    assert check.is_same and check.count == 6 and not check.ingredients
    assert str(check) == "6 of 6 titles are as they were frozen."
    assert Recipe.load(folder / "recipe.json") == short()


def test_the_notebook_is_valid_and_says_what_the_check_says(made, tmp_path):
    import nbformat

    folder = made.freeze("first-words", tmp_path / "frozen")
    notebook = nbformat.read(folder / "regression.ipynb", as_version=4)
    nbformat.validate(notebook)
    (cell,) = notebook.cells
    assert cell.outputs[0].data["text/plain"] == str(lab.check(folder / "regression.json"))


def test_a_changed_title_is_shown_with_what_else_changed(made, tmp_path):
    folder = made.freeze("first-words", tmp_path / "frozen")
    values = json.loads((folder / "regression.json").read_text(encoding="utf-8"))
    values["cases"][1]["title"] = "Another"
    values["made_with"]["code"] = "0.0.1"
    (folder / "regression.json").write_text(json.dumps(values), encoding="utf-8")
    check = lab.check(folder)
    assert check.changed == (("<i>1", "Another", "Cat eats blue paper"),)
    assert "5 of 6 titles" in str(check) and "code was '0.0.1'" in str(check)


def test_partial_runs_and_other_files_cannot_be_frozen_or_checked(made, tmp_path, monkeypatch):
    monkeypatch.setattr(made, "rows", made.rows[:-1])
    with pytest.raises(OptionError, match="1 title of short is missing"):
        made.freeze("short", tmp_path)
    with pytest.raises(OptionError, match="no frozen titles"):
        lab.check(tmp_path)


def test_the_report_is_one_page_with_every_number_and_no_markup_of_others(made, tmp_path, monkeypatch):
    evil = replace(made.rows[0], title="<script>alert(1)</script>")
    monkeypatch.setattr(made, "rows", (evil, *made.rows[1:]))
    monkeypatch.setattr(made, "_by_case", {("first-words", evil.case): (evil,)})
    html = made.report(tmp_path / "report.html", only_different=False).read_text(encoding="utf-8")
    assert "<script" not in html and "&lt;script&gt;" in html and "&lt;i&gt;0" in html
    assert not re.search(r"(?:src|href)=|https?://|#[0-9a-f]{6}|background", html)
    for row in made.scores().table().rows:
        for cell in row:
            assert cell in html
    markdown = made.report(tmp_path / "report.md", only_different=False).read_text(encoding="utf-8")
    for row in made.scores().table().rows:
        for cell in row:
            assert cell.replace("_", r"\_") in markdown
    assert "<script" not in markdown.replace(r"\<", "") and "## Titles" in markdown


def test_a_report_needs_a_known_ending(made, tmp_path):
    with pytest.raises(OptionError, match=r"\.pdf"):
        made.report(tmp_path / "report.pdf")
