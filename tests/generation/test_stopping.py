import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinykit.generation.stopping import StopStrings

CASES = [
    ("no stop string", "plain text", (), "plain text", None),
    ("in the middle", "Title</title> and more", ("</title>",), "Title", "</title>"),
    ("at the start", "</title>x", ("</title>",), "", "</title>"),
    ("only a beginning", "a </titl", ("</title>",), "a </titl", None),
    ("false start", "a </b> c", ("</title>",), "a </b> c", None),
    ("the earliest wins", "one END two STOP", ("STOP", "END"), "one ", "END"),
    ("the shorter is whole first", "a\n\n\nb", ("\n\n", "\n"), "a", "\n"),
    ("inside a longer one", "xabcy", ("abc", "b"), "xa", "b"),
    ("the longest that ends there", "xabcy", ("c", "abc", "bc"), "x", "abc"),
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
            assert (out, stopper.found) == (shown, found)


def slow_stop(text, stops):
    """Look after each character whether the text ends with a stop string."""
    for end in range(1, len(text) + 1):
        found = max((stop for stop in stops if text[:end].endswith(stop)), key=len, default=None)
        if found is not None:
            return text[: end - len(found)], found
    return text, None


STOPS = st.lists(st.text("ab<", min_size=1, max_size=4), max_size=3)


@settings(deadline=None)
@given(st.text("ab<", max_size=24), STOPS, st.data())
def test_any_pieces_give_what_a_look_after_each_character_gives(text, stops, data):
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    stopper = StopStrings(stops)
    out = "".join(map(stopper.feed, pieces)) + stopper.flush()
    assert (out, stopper.found) == slow_stop(text, stops)


@settings(deadline=None)
@given(st.text("ab<", max_size=24), STOPS)
def test_no_more_is_held_back_than_can_become_a_stop_string(text, stops):
    stopper, shown = StopStrings(stops), ""
    for end, character in enumerate(text, 1):
        shown += stopper.feed(character)
        if stopper.found is not None:
            break
        held = text[len(shown) : end]
        beginnings = [stop[:size] for stop in stops for size in range(1, len(stop))]
        assert shown + held == text[:end]
        assert held == max((b for b in beginnings if text[:end].endswith(b)), key=len, default="")


@settings(deadline=None)
@given(st.text("é漢😀|", max_size=8), st.lists(st.integers(0, 40), max_size=6))
def test_stop_strings_and_utf8_at_every_cut(text, ends):
    """Bytes through a decoder that holds back half characters, then through the stop strings."""
    data = text.encode()
    ends = sorted(min(end, len(data)) for end in ends)
    decoder, stopper, out = codecs.getincrementaldecoder("utf-8")(), StopStrings(("😀|", "é漢")), ""
    for a, b in zip([0, *ends], [*ends, len(data)], strict=True):
        out += stopper.feed(decoder.decode(data[a:b]))
        assert text.startswith(out)
    assert (out + stopper.flush(), stopper.found) == slow_stop(text, ("😀|", "é漢"))


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
