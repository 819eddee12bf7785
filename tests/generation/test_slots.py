import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykit.generation.slots import slot_for_key


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
