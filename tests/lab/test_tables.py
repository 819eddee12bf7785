"""Tables say the same as text, HTML, Markdown and CSV, and trust nothing that a model wrote."""

import re

import pytest
from IPython.lib.pretty import pretty

from tinykit.lab.ablation import Ablation
from tinykit.lab.copybait import CopyBait
from tinykit.lab.differences import Diff, Ranking
from tinykit.lab.preferences import Preferences
from tinykit.lab.scoring import RunScores
from tinykit.lab.tables import Table, Tabular

NUMBERS = Table("Scores", ["", "chrf", "n"], [["plain", "12.3", "160"], ["titles", "44.0", "7"]], ["A note."])
EVIL = "<script>alert(1)</script> | a_b* [x](y)"
TEXTS = Table("Titles <b>", ["case", "plain"], [["a", EVIL]], is_text=True)


def test_text_is_aligned():
    assert str(NUMBERS).splitlines() == [
        "Scores", "", "        chrf    n", "plain   12.3  160", "titles  44.0    7", "", "A note.",
    ]  # fmt: skip


@pytest.mark.parametrize("table", [NUMBERS, TEXTS], ids=["numbers", "texts"])
def test_every_cell_is_in_every_form(table):
    for row in table.rows:
        for cell in row:
            for form in (str(table), table.to_html(), table.to_markdown(), table.to_csv()):
                for word in re.findall(r"\w\w+", cell):
                    assert word in form.replace("\\", "")


def test_html_has_captions_and_scopes_and_no_colors():
    html = NUMBERS.to_html()
    assert "<caption" in html and html.count('scope="col"') == 3 and html.count('scope="row"') == 2
    assert not re.search(r"#[0-9a-f]{3,6}\b|background|color:(?!.*currentColor)", html)


def test_html_and_markdown_show_what_a_model_wrote_as_text():
    assert (
        "<script" not in TEXTS.to_html()
        and "&lt;script&gt;" in TEXTS.to_html()
        and "&lt;b&gt;" in TEXTS.to_html()
    )
    line = TEXTS.to_markdown().splitlines()[-1]
    assert line == r"| a | \<script\>alert(1)\</script\> \| a\_b\* \[x\](y) |"


def test_long_and_wide_cells_wrap_and_control_characters_go():
    table = Table(
        "T", ["case", "title"], [["a", "word " * 20 + "x" * 100 + " \x1b[31m東" + "東" * 40]], is_text=True
    )
    lines = str(table).splitlines()
    assert max(len(line) for line in lines) <= 60 and "\x1b" not in str(table)
    assert str(table).count("word") == 20 and str(table).count("x") == 100 and str(table).count("東") == 41


def test_a_lone_surrogate_does_no_harm():
    assert "\\ud800" in Table("T", ["a"], [["\ud800"]]).to_html()


RESULTS = [Ablation, CopyBait, Diff, Preferences, Ranking, RunScores]


@pytest.mark.parametrize("kind", RESULTS)
def test_a_result_without_html_is_shown_as_the_text_of_its_table(kind, monkeypatch):
    monkeypatch.setattr(kind, "table", lambda self: Table("of it", ["name", "n"], [["a", "1"]]))
    result = object.__new__(kind)
    assert pretty(result) == repr(result) == str(result) == "of it\n\nname  n\na     1"


def test_all_results_with_a_table_are_tried():
    assert set(Tabular.__subclasses__()) == set(RESULTS)
