import pytest

from tinykit.plurals import counted


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 cases"), (1, "1 case"), (2, "2 cases"), (1000, "1,000 cases")]
)
def test_nouns_agree_with_their_numbers(number, said):
    assert counted(number, "case") == said


def test_plural_may_be_another_word():
    assert [counted(number, "entry", "entries") for number in (1, 2)] == ["1 entry", "2 entries"]
