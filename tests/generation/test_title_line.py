import unicodedata

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.generation import vocabularies
from tinykit.errors import BackendError, OptionError
from tinykit.generation.title_line import TitleLine, TitleTable

EOS = vocabularies.EOS
MARKUP = '*`[]<>"“”„«»'
BYTES = TitleTable(vocabularies.byte_level(), EOS, 400)
PIECES = TitleTable(vocabularies.sentencepiece(), EOS, len(vocabularies.sentencepiece().token_bytes()))
few = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def ids(table, text):
    """The text byte by byte."""
    return [table.texts.index(bytes([byte])) for byte in text.encode()]


def feed(table, matcher, text):
    for index in ids(table, text):
        assert matcher.allowed()[index], text
        matcher.accept(index)
    return matcher


def allows(table, matcher, text):
    return bool(matcher.allowed()[table.texts.index(text.encode())])


def plain(text, line, stops):
    """The same rules, said over the whole text."""
    cut = min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))
    title = text[:cut].removeprefix(" ")
    last = ""
    for char in title:
        is_hash = char == "#" and last.isalnum()
        assert is_hash or char not in MARKUP + "#", title
        assert unicodedata.category(char) not in ("Cc", "Zl", "Zp")
        last = char
    assert len(title) <= line.max_chars
    assert len(title.split(" ")) <= line.max_words + title.endswith(" ")
    assert "  " not in title


@pytest.mark.parametrize("table", [BYTES, PIECES], ids=["bytes", "pieces"])
@few
@given(data=st.data(), words=st.integers(1, 4), chars=st.integers(1, 12))
def test_any_allowed_path_is_a_title(table, data, words, chars):
    line = TitleLine(words, chars, ("</title>", "\n", '"'))
    matcher, said = table.matcher(line), b""
    for _ in range(60):
        allowed = [int(i) for i in np.flatnonzero(matcher.allowed())]
        assert allowed
        if matcher.is_finished:
            break
        # tokens of a byte above 127 are most of them, and rare in titles
        likely = [i for i in allowed if table.texts[i].isascii()]
        index = data.draw(st.sampled_from(likely if likely and data.draw(st.integers(0, 9)) else allowed))
        assert bool(matcher.allowed()[index])
        matcher.accept(index)
        said += table.texts[index]
    assert matcher.is_finished
    plain(said.decode(), line, line.stop)


@few
@given(data=st.data())
def test_the_mask_says_what_accept_takes(data):
    line = TitleLine(2, 8, ("</t>", "\n\n"))
    matcher = BYTES.matcher(line)
    for _ in range(data.draw(st.integers(0, 6))):
        matcher.accept(int(data.draw(st.sampled_from(list(np.flatnonzero(matcher.allowed()))))))
    mask = matcher.allowed().copy()
    for index in range(400):
        taken = True
        try:
            matcher.accept(index)
        except BackendError:
            taken = False
        else:
            matcher.rollback(1)
        assert taken == mask[index], (index, BYTES.texts[index])
    assert (matcher.allowed() == mask).all()


def test_limits():
    matcher = feed(BYTES, BYTES.matcher(TitleLine(2, 6, ())), "ab c")
    assert not allows(BYTES, feed(BYTES, BYTES.matcher(TitleLine(2, 9, ())), "ab c "), "d")
    assert not matcher.is_finished
    long = next(text for text in BYTES.texts if len(text) == 3 and text.isalpha())
    assert not allows(BYTES, matcher, long.decode())
    assert feed(BYTES, matcher, "de").is_finished
    assert list(np.flatnonzero(matcher.allowed())) == list(EOS)


def test_a_leading_space_is_not_counted():
    assert feed(BYTES, BYTES.matcher(TitleLine(1, 2, ())), " ab").is_finished
    assert not allows(BYTES, feed(BYTES, BYTES.matcher(TitleLine()), " "), " ")


@pytest.mark.parametrize("char", [*MARKUP.replace("<", ""), "#", "\t", "\n", "\x7f", "\u2028", "\x85"])
def test_markup_and_line_ends_are_never_part_of_a_title(char):
    for before in ("", "a ", "é"):
        matcher = feed(BYTES, BYTES.matcher(TitleLine()), before)
        if char == "#" and before == "é":
            continue
        with pytest.raises(BackendError, match="does not fit a title"):
            for index in ids(BYTES, char):
                matcher.accept(index)


@pytest.mark.parametrize(
    "text", ["Use C# and F#", "Don't stop", "A/B: x - y (z) 50% & ~/.bashrc", "Über日本語 😀"]
)
def test_what_titles_need_is_allowed(text):
    assert feed(BYTES, BYTES.matcher(TitleLine()), text).allowed()[EOS[0]]


def test_a_stop_string_that_has_begun_is_finished():
    matcher = feed(BYTES, BYTES.matcher(TitleLine(stop=("</title>",))), "Fix it<")
    assert {BYTES.texts[i] for i in np.flatnonzero(matcher.allowed())} == {b"/"}
    assert not matcher.allowed()[EOS[0]]
    forced = matcher.forced()
    assert b"".join(BYTES.texts[i] for i in forced) == b"/title>"
    for index in forced:
        matcher.accept(index)
    assert matcher.is_finished
    assert matcher.forced() == []
    matcher.rollback(len(forced) + 1)
    assert matcher.allowed()[EOS[0]]


def test_stop_strings_that_begin_alike():
    matcher = feed(BYTES, BYTES.matcher(TitleLine(stop=("</a>", "</b>"))), "x</")
    assert matcher.forced() == []
    assert {BYTES.texts[i] for i in np.flatnonzero(matcher.allowed())} == {b"a", b"b"}


def test_a_stop_string_may_come_when_the_title_is_full():
    matcher = feed(BYTES, BYTES.matcher(TitleLine(max_chars=2, stop=("</t>",))), "ab")
    assert {BYTES.texts[i] for i in np.flatnonzero(matcher.allowed())} >= {b"<"}
    assert feed(BYTES, matcher, "</t>").is_finished


def test_characters_are_whole():
    matcher = feed(BYTES, BYTES.matcher(TitleLine()), "a")
    first, second = ids(BYTES, "é")
    assert not matcher.allowed()[second]
    matcher.accept(first)
    assert not matcher.allowed()[[*EOS, first]].any()
    assert matcher.allowed()[second]
    matcher.accept(second)
    assert matcher.allowed()[EOS[0]]


def test_control_tokens_and_room_beyond_the_tokens_are_never_allowed():
    mask = BYTES.matcher(TitleLine()).allowed()
    assert mask.shape == (400,)
    assert not mask[[1, 3, *range(384, 400)]].any()
    with pytest.raises(ValueError, match="read-only"):
        mask[1] = True


@pytest.mark.parametrize(
    "options",
    [
        {"max_words": 0},
        {"max_chars": 0},
        {"max_words": 1.5},
        {"max_chars": True},
        {"stop": "</t>"},
        {"stop": ("",)},
    ],
    ids=str,
)
def test_wrong_options(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        TitleLine(**options)


@pytest.mark.real
def test_real_vocabulary(real_session):
    engine = real_session.load().engine
    table = TitleTable(engine.tokenizer, sorted(engine.eos_ids), engine.backend.info.vocab_size)
    matcher = table.matcher(TitleLine())
    for index in engine.tokenizer.encode("Fix the C# café bug</title>"):
        assert matcher.allowed()[index]
        matcher.accept(index)
    assert matcher.is_finished
