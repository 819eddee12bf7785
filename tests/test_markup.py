"""Tables and blocks: text and HTML with the same facts, whatever the text (detail 15 of the notebook's rules)."""

import html
import re

import pytest

from tinykit.charts import Bars
from tinykit.markup import Table, block, bundle, note, visible

HOSTILE = "<script>alert(1)</script> & \"quoted\" 'x'\x1b[31m\x00\u202e[link](http://x)"


def test_model_text_is_escaped_and_shown_as_text():
    for page in (block(HOSTILE), note(HOSTILE), Table.of(HOSTILE, [HOSTILE], [[HOSTILE]]).html()):
        assert "<script" not in page and "&lt;script&gt;" in page
        assert "\x1b" not in page and "\x00" not in page and "\u202e" not in page


def test_visible_text_keeps_lines_tabs_and_every_script():
    text = "a\tb\nc 日本語 ünï 👍 👨\u200d👩\u200d👧"
    assert visible(text) == text
    assert visible("a\x1bb\rc\u202ed") == "a\ufffdb\ufffdc\ufffdd"


def test_table_aligns_wide_characters_and_numbers():
    table = Table.of("Some", ["name", "size"], [["日本", "1"], ["abc", "22"]], {1})
    assert table.text() == "Some\n\nname  size\n日本     1\nabc     22"
    assert str(table) == table.text()


def test_table_has_caption_and_header_scopes():
    page = Table.of("Cap & tion", ["a", "b"], [["x", "y"]]).html()
    assert "<caption" in page and "Cap &amp; tion</caption>" in page
    assert page.count('scope="col"') == 2 and page.count('scope="row"') == 1
    assert not re.search(r"#[0-9a-fA-F]{3}|color:|background", page)


def test_table_cell_of_several_lines_stays_one_row_of_text():
    table = Table.of("c", ["a"], [["one\ntwo"]])
    assert table.text().endswith("one two") and "one\ntwo" in table.html()


def test_text_twin_has_each_cell_of_the_html():
    table = Table.of("c", ["a", "b"], [["one", "1.5"], ["two <b>", "2"]])
    cells = [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>([^<]*)</t", table.html())]
    assert len(cells) == 6 and all(cell in table.text() for cell in cells)


@pytest.mark.parametrize("values", [(), (0.0,), (1.0, 2.0), (3.5,)], ids=str)
def test_bars_have_the_same_numbers_in_both_twins(values):
    bars = Bars.of("Wait, ms", [(f"run {at} <b>", value) for at, value in enumerate(values)], digits=1)
    page, text = bars.html(), bars.text()
    for value in values:
        assert f"{value:.1f}" in page and f"{value:.1f}" in text
    assert "<b>" not in page and 'role="img"' in page and "aria-label" in page and "currentColor" in page
    assert not re.search(r"#[0-9a-fA-F]{3}|rgb\(|background", page)


def test_longest_bar_is_the_largest_number():
    text = Bars.of("c", [("a", 1.0), ("b", 4.0)]).text().splitlines()
    assert text[2].count("#") * 4 == text[3].count("#") > 0


def test_bundle_keeps_what_differs_from_run_to_run_as_metadata():
    assert bundle("t", "h") == ({"text/plain": "t", "text/html": "h"}, {})
    assert bundle("t", "h", {"load_s": 1.5})[1] == {"tinykit": {"load_s": 1.5}}


def test_words_stay_whole_and_paths_may_be_torn_apart():
    page = Table.of(
        "Times", ("seconds",), [("first_message",), ("/a/path/that/is/much/too/long/for/a/cell",)]
    ).html()
    assert page.count("overflow-wrap: break-word") == 2 and page.count("overflow-wrap: anywhere") == 1
    assert "nowrap" in page and "nowrap" not in Table.of("A long caption. " * 9, ("a",), []).html()
