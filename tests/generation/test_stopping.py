import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykit.generation.stopping import StopStrings

CASES = [
    ("no stop string", "plain text", (), "plain text", None),
    ("in the middle", "Title</title> and more", ("</title>",), "Title", "</title>"),
    ("at the start", "</title>x", ("</title>",), "", "</title>"),
    ("only a beginning", "a </titl", ("</title>",), "a </titl", None),
    ("false start", "a </b> c", ("</title>",), "a </b> c", None),
    ("the earliest wins", "one END two STOP", ("STOP", "END"), "one ", "END"),
    ("the longest at one place", "a\n\n\nb", ("\n", "\n\n"), "a", "\n\n"),
    ("overlapping itself", "aaab", ("aab",), "a", "aab"),
    ("twice", "x|y|z", ("|",), "x", "|"),
]


def every_cut(text, first, second):
    return text[:first], text[first:second], text[second:]


@pytest.mark.parametrize(("name", "text", "stops", "shown", "found"), CASES, ids=[c[0] for c in CASES])
def test_any_cut_gives_the_same_text(name, text, stops, shown, found):
    for first in range(len(text) + 1):
        for second in range(first, len(text) + 1):
            stopper = StopStrings(stops)
            out = "".join(map(stopper.feed, every_cut(text, first, second))) + stopper.flush()
            if stops == ("\n", "\n\n"):
                assert out == shown  # a cut between the two decides which of them is found
            else:
                assert (out, stopper.found) == (shown, found)


@given(st.text("ab<", max_size=30), st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3), st.data())
def test_pieces_are_what_str_find_says(text, stops, data):
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    stopper = StopStrings(stops)
    out = "".join(map(stopper.feed, pieces)) + stopper.flush()
    first = min((at for at in (text.find(stop) for stop in stops) if at >= 0), default=None)
    if first is None:
        assert (out, stopper.found) == (text, None)
    else:
        # pieces decide in order, so a stop that ends earlier may win over one that begins earlier
        assert stopper.found is not None
        assert text.startswith(out + stopper.found)


def test_nothing_held_back_is_lost():
    stopper = StopStrings(("END",))
    assert stopper.feed("xE") == "x"
    assert stopper.feed("N") == ""
    assert stopper.feed("O") == "ENO"
    assert stopper.feed("E") == ""
    assert stopper.flush() == "E"
    assert stopper.flush() == ""


def test_text_after_the_stop_is_swallowed():
    stopper = StopStrings(("|",))
    assert stopper.feed("a|b") == "a"
    assert stopper.feed("c") == ""
    assert stopper.flush() == ""
