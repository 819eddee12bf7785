import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykit.errors import OptionError
from tinykit.generation.request import GenerationOptions, checked_tokens_per_step
from tinykit.generation.slots import slot_for_key, slot_key

ODD = [
    ("8", 8),
    (" 8 ", 8),
    ("+8", 8),
    ("8.9", 8),
    ("1e3", 1),
    ("16tokens", 16),
    ("0x10", 1),
    ("0", 1),
    ("-5", 1),
    ("-0", 1),
    ("9999", 512),
    ("9" * 200, 512),
    ("9" * 5000, 32),
    ("00000000000000000000012", 12),
    ("abc", 32),
    ("NaN", 32),
    ("Infinity", 32),
    ("-", 32),
    ("\u0663", 32),  # a digit, but of another script
]


@pytest.mark.parametrize(("text", "expected"), [*ODD, ("", 32), (" ", 32)], ids=lambda x: repr(x)[:20])
def test_variable_for_tokens_per_step(monkeypatch, text, expected):
    monkeypatch.setenv("TINYKIT_TOKENS_PER_STEP", text)
    assert checked_tokens_per_step() == expected
    assert checked_tokens_per_step(7) == 7


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *ODD,
        ("", 32),
        (1, 1),
        (512, 512),
        (513, 512),
        (10**400, 512),
        (-(10**400), 1),
        (0, 1),
        (-3, 1),
        (5.9, 5),
        (0.5, 1),
        (-0.5, 1),
        (1e300, 512),
        (math.nan, 32),
        (math.inf, 32),
        (-math.inf, 32),
        (np.int64(9), 9),
        (np.float32(9.5), 9),
        (np.float64("nan"), 32),
        (Fraction(19, 2), 9),
    ],
    ids=lambda x: repr(x)[:20],
)
def test_argument_for_tokens_per_step_never_falls_through_to_the_variable(monkeypatch, value, expected):
    monkeypatch.setenv("TINYKIT_TOKENS_PER_STEP", "100")
    found = checked_tokens_per_step(value)
    assert (found, type(found)) == (expected, int)
    assert GenerationOptions(tokens_per_step=value).tokens_per_step == expected


def test_tokens_per_step_by_default_and_in_the_config_file(monkeypatch, tmp_path):
    assert checked_tokens_per_step() == 32
    path = tmp_path / "config.toml"
    monkeypatch.setenv("TINYKIT_CONFIG", str(path))
    for written, expected in (("16", 16), ("16.9", 16), ("nan", 32), ("'x'", 32), ("-1", 1)):
        path.write_text(f"tokens_per_step = {written}\n")
        assert checked_tokens_per_step() == expected


@pytest.mark.parametrize("value", [True, [8], b"8", 1j], ids=repr)
def test_tokens_per_step_of_another_kind_are_named(value):
    with pytest.raises(OptionError, match="tokens_per_step is .*, but must be a whole number from 1 to 512"):
        checked_tokens_per_step(value)


# sha256("abc") begins with ba7816bf, sha256("é") with 4a99557e: FIPS 180-4, and `printf é | sha256sum`
@pytest.mark.parametrize(
    ("key", "slots", "expected"),
    [
        ("abc", 0, -1),
        ("abc", -1, -1),
        (None, 4, -1),
        (None, 1, -1),
        ("", 4, -1),
        ("abc", 1, 0),
        ("abc", 4, 0xBA7816BF % 4),
        ("abc", 7, 0xBA7816BF % 7),
        ("abc", 1000, 0xBA7816BF % 1000),
        ("é", 1000, 0x4A99557E % 1000),
    ],
)
def test_slot_of_a_key(key, slots, expected):
    assert slot_for_key(key, slots) == expected


@given(st.text(st.characters(), min_size=1), st.integers(1, 64))
def test_every_key_has_one_slot(key, slots):
    assert 0 <= slot_for_key(key, slots) < slots
    assert slot_for_key(key, slots) == slot_for_key(key, slots)


SAME, OTHER = ("You title chats.", True), ("Today is Monday.", False)


@pytest.mark.parametrize(
    ("known", "begins"),
    [
        ({"conversation": "ada", "segments": [SAME], "prefix": "p", "key": "k"}, "conversation:ada"),
        ({"segments": [SAME], "prefix": "p", "key": "k"}, "segments:"),
        ({"segments": [OTHER, SAME], "prefix": "p", "key": "k"}, "prefix:"),
        ({"conversation": "", "prefix": "", "key": "k"}, "key:k"),
        ({"segments": [OTHER], "prefix": None, "key": ""}, None),
        ({}, None),
    ],
)
def test_the_closest_thing_that_is_known_names_the_slot(known, begins):
    found = slot_key(**known)
    assert found is None if begins is None else found.startswith(begins)


def test_what_changes_from_turn_to_turn_does_not_change_the_key():
    key = slot_key(segments=[SAME, OTHER, ("more", True)])
    assert key == slot_key(segments=[SAME, ("Today is Tuesday.", False)])
    assert key == slot_key(segments=iter([SAME]))
    assert len(key.removeprefix("segments:")) == 16
    assert key != slot_key(segments=[SAME, ("more", True)])


def test_where_segments_are_cut_counts():
    assert slot_key(segments=[("ab", True), ("c", True)]) != slot_key(segments=[("a", True), ("bc", True)])


def test_a_key_may_be_any_text():
    assert slot_key(prefix="\ud800") != slot_key(prefix="\ud801")
