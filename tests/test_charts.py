"""Charts: both twins hold the same numbers, nothing has a color of its own, what is written is escaped."""

import html
import re

import pytest

from tinykit.charts import Bars, Charts, Histograms, Interval, Intervals

EVIL = "<b>x</b>\x1b"
CHARTS = {
    "bars": Bars.of(f"Wait {EVIL}", [(f"a {EVIL}", 1.5), ("b", 0.0)], digits=1),
    "intervals": Intervals(
        f"Change {EVIL}",
        (
            Interval(f"a {EVIL}", -3.25, 1.5, 6.25, "undecided"),
            Interval("b", 12.0, 20.0, 1234.0, "b better", True),
            Interval("c", 0.0, 0.0, 0.0, "the same"),
        ),
        legend="shown",
    ),
    "no change at all": Intervals("Change", (Interval("a", 0.0, 0.0, 0.0),)),
    "all above": Intervals("Change", (Interval("a", 1.0, 2.0, 3.0),)),
    "histograms": Histograms(f"Cases {EVIL}", ("0-10", "10-20"), ((f"a {EVIL}", (0, 7)), ("b", (120, 3)))),
    "nothing counted": Histograms("Cases", ("no", "yes"), (("a", (0, 0)),)),
}


def written(page):
    """The texts of an SVG and of its caption."""
    return [html.unescape(text) for text in re.findall(r"<(?:text|figcaption)[^>]*>([^<]*)<", page)]


@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)
def test_both_twins_hold_the_same_numbers(chart):
    page, text = chart.html(), chart.text()
    numbers = [number for shown in written(page) for number in re.findall(r"[-+]?\d[\d,.]*", shown)]
    assert numbers and [number for number in numbers if number not in text] == []
    assert str(chart) == text and chart._repr_mimebundle_()[0] == {"text/plain": text, "text/html": page}


@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)
def test_nothing_has_a_color_of_its_own_and_all_is_escaped_and_spoken(chart):
    page = chart.html()
    assert not re.search(r"#[0-9a-fA-F]{3}|rgb\(|background|color:", page) and "currentColor" in page
    assert "<b>" not in page and "\x1b" not in page
    assert 'role="img"' in page and re.search(r'aria-label="[^"]+: [^"]+"', page)
    assert not re.search(r'="(nan|inf|-inf)', page)


def test_a_sure_interval_is_filled_and_says_so_in_text():
    text, page = CHARTS["intervals"].text(), CHARTS["intervals"].html()
    lines = text.splitlines()
    assert "o" in lines[2].split("(")[0] and "#" in lines[3] and "o: not sure. #: shown." in text
    assert page.count('fill="none"') == 2 and page.count("<circle") == 3 and "Filled: shown." in page


def test_an_interval_strip_is_to_scale():
    text = Intervals("c", (Interval("a", -16.0, 0.5, 16.0), Interval("b", 8.0, 12.0, 16.0))).text()
    a, b = text.splitlines()[2:4]
    assert (a.index("["), a.index("]")) == (3, 35) and b.index("[") == 3 + 24 and b.index("|") == 3 + 16


def test_signs_are_shown_and_zero_has_none():
    text = CHARTS["intervals"].text()
    assert "+1.5 (-3.2 to +6.2)" in text and "0.0 (0.0 to 0.0)" in text and "+1,234.0" in text


def test_histogram_bars_are_counts():
    text = CHARTS["histograms"].text().splitlines()
    assert [part.split()[0] for part in (text[3], text[4])] == ["0-10", "10-20"]
    assert text[3].count("#") == 12 and text[4].count("#") == 2  # 120 is the most; 7 and 3 still show


def test_several_charts_are_one_display():
    both = Charts((CHARTS["bars"], CHARTS["histograms"]))
    assert both.html().count("<figure") == 2 and both.text().count("Cases") == 1
