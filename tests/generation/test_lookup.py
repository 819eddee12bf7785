import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinykit.errors import OptionError
from tinykit.generation.lookup import Lookup, VerifiedToken, VerifyEvent

TOKENS = st.lists(st.integers(0, 3), max_size=40)  # few ids, so that they come again


def slow_draft(tokens, minimum, maximum):
    """Search the whole text from its end, for the longest n-gram first."""
    for size in (3, 2, 1):
        end = tokens[len(tokens) - size :]
        for start in range(len(tokens) - size - 1, -1, -1):
            if size <= len(tokens) and tokens[start : start + size] == end:
                found = tokens[start + size : start + size + (maximum if size > 1 else minimum)]
                return found if len(found) >= minimum else []
    return []


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], []),
        ([1], []),
        ([1, 2, 3], []),
        ([1, 2, 3, 4, 5, 1], [2]),  # one token tells little
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5]),
        ([1, 2, 3, 9, 2, 4, 9, 1, 2], [3, 9, 2]),  # two tokens tell more than the last one alone
        ([1, 2, 9, 1, 3, 9, 1], [3, 9, 1]),  # the latest place wins
        ([5, 5], [5]),  # the text has no more
        ([1, 2, 3, 4, 0, 2, 3, 4], [0, 2, 3]),
    ],
    ids=repr,
)
def test_draft_is_what_followed_before(tokens, expected):
    assert Lookup(tokens, minimum=1, maximum=3).draft() == expected


def test_draft_shorter_than_the_minimum_is_none():
    assert Lookup([5, 5], minimum=2, maximum=3).draft() == []
    assert Lookup([5, 6, 5], minimum=2, maximum=3).draft() == [6, 5]
    assert Lookup([5, 6, 5], minimum=2, maximum=2).draft() == [6, 5]


@settings(deadline=None)
@given(TOKENS, st.lists(TOKENS, max_size=4), st.integers(1, 5), st.integers(0, 3))
def test_draft_is_that_of_a_full_search(prompt, pieces, maximum, less):
    minimum = max(1, maximum - less)
    lookup, tokens = Lookup(prompt, minimum=minimum, maximum=maximum), list(prompt)
    for piece in pieces:
        lookup.extend(piece)
        tokens += piece
        draft = lookup.draft()
        assert draft == slow_draft(tokens, minimum, maximum)
        assert not draft or minimum <= len(draft) <= maximum
        assert lookup.draft() == draft  # looking changes nothing


@given(TOKENS, st.lists(st.integers(0, 3), max_size=10))
def test_drafts_do_not_depend_on_how_tokens_arrive(prompt, answer):
    at_once = Lookup(prompt + answer, minimum=1, maximum=4)
    one_by_one = Lookup(prompt, minimum=1, maximum=4)
    for token_id in answer:
        one_by_one.extend([token_id])
    assert one_by_one.draft() == at_once.draft()


@pytest.mark.parametrize(("minimum", "maximum"), [(0, 3), (-1, 3), (4, 3)])
def test_bounds_that_exclude_each_other_are_named(minimum, maximum):
    with pytest.raises(OptionError, match=f"maximum of {maximum}, not {minimum}") as caught:
        Lookup([], minimum=minimum, maximum=maximum)
    assert (caught.value.name, caught.value.value) == ("draft_min", minimum)


def test_step_without_a_draft_is_accepted():
    event = VerifyEvent.of_step([7], "hi", first_index=0, ttft_s=0.25)
    assert event == VerifyEvent("accept", 0, 0, (VerifiedToken(0, 7, "hi"),), ttft_s=0.25)
    assert event.is_valid


def test_step_with_a_wrong_guess_says_which_and_what_came_instead():
    event = VerifyEvent.of_step(
        [7, 8, 9], "abc", first_index=4, drafted=4, accepted=2, correction_token_id=9, logprob=-1.5
    )
    assert (event.kind, event.reject_index, event.correction_token_id) == ("reject", 2, 9)
    assert event.tokens == (VerifiedToken(4, 7, "abc"), VerifiedToken(5, 8), VerifiedToken(6, 9))
    assert event.is_valid


def test_step_with_all_guesses_right_has_no_correction():
    event = VerifyEvent.of_step([1, 2, 3], "x", first_index=0, drafted=2, accepted=2, correction_token_id=3)
    assert (event.kind, event.reject_index, event.correction_token_id) == ("accept", None, None)
    assert event.is_valid


GOOD = VerifyEvent.of_step([7, 8], "a", first_index=3, drafted=2, accepted=1, correction_token_id=8)


@pytest.mark.parametrize(
    "changes",
    [
        {"accepted": 3},
        {"accepted": -1, "reject_index": -1},
        {"accepted": 0},
        {"reject_index": None},
        {"reject_index": 0},
        {"correction_token_id": None},
        {"kind": "accept"},
        {"accepted": 2},
        {"accepted": 2, "kind": "accept", "reject_index": None},
        {"accepted": 2, "kind": "accept", "correction_token_id": None},
        {"logprob": math.nan},
        {"tokens": (VerifiedToken(3, 7, "a"), VerifiedToken(3, 8))},
        {"tokens": (VerifiedToken(3, 7, "a"), VerifiedToken(4, 8, "b"))},
        {"tokens": (VerifiedToken(3, 7), VerifiedToken(4, 8))},
    ],
    ids=repr,
)
def test_fields_that_disagree_are_not_valid(changes):
    assert GOOD.is_valid
    assert not dataclasses.replace(GOOD, **changes).is_valid


@given(
    st.lists(st.integers(0, 9), max_size=5),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 9),
    st.one_of(st.none(), st.floats()),
)
def test_event_of_a_step_is_valid_exactly_if_its_numbers_can_be(ids, drafted, accepted, correction, logprob):
    event = VerifyEvent.of_step(
        ids,
        "t",
        first_index=2,
        drafted=drafted,
        accepted=accepted,
        correction_token_id=correction,
        logprob=logprob,
    )
    is_number = logprob is None or not math.isnan(logprob)
    assert event.is_valid == (accepted <= drafted and is_number)
    assert [token.index for token in event.tokens] == list(range(2, 2 + len(ids)))
    assert "".join(token.text or "" for token in event.tokens) == ("t" if ids else "")
