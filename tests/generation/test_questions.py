import math

import pytest

from tinykit.errors import BackendError, OptionError
from tinykit.generation.questions import (
    Choice,
    ChoiceQuestion,
    ScoreQuestion,
    YesNo,
    YesNoQuestion,
    checked_options,
    softmax,
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["a"], "2 to 20 texts, not 1"),
        ([], "2 to 20 texts, not 0"),
        ([str(n) for n in range(21)], "2 to 20 texts, not 21"),
        (["a", ""], "not empty, not ''"),
        (["a", " \n"], "not empty"),
        (["a", 3], "not empty, not 3"),
        (["a", "b", "a"], "'a' is there twice"),
        (["a", "a "], "'a' is there twice"),
        ("ab", "list of texts, not 'ab'"),
        (None, "list of texts, not None"),
    ],
)
def test_options_that_cannot_be_used(options, message):
    with pytest.raises(OptionError, match=message) as caught:
        checked_options(options)
    assert caught.value.name == "options"
    if isinstance(options, list):
        with pytest.raises(OptionError, match=message):
            ChoiceQuestion("Q", options)
        with pytest.raises(OptionError, match=message):
            ScoreQuestion("Q", options)


@pytest.mark.parametrize("text", ["", "  ", None, 3], ids=repr)
def test_question_without_text(text):
    for make in (lambda: ChoiceQuestion(text, ["a", "b"]), lambda: YesNoQuestion(text)):
        with pytest.raises(OptionError, match="question must be text"):
            make()


def test_yes_and_no_must_differ():
    with pytest.raises(OptionError, match="'same' is there twice"):
        YesNoQuestion("Q", "same", "same")


LOGITS = [math.log(1), math.log(3), math.log(4)]


def test_choice_is_the_highest_probability():
    answer = ChoiceQuestion("Q", {"a": "x", "b": None, "c": "y"}).answer(LOGITS)
    assert (answer.label, answer.index, str(answer)) == ("c", 2, "c")
    assert list(answer.probabilities) == ["a", "b", "c"]
    assert answer.probabilities == pytest.approx({"a": 1 / 8, "b": 3 / 8, "c": 4 / 8})
    assert answer.confidence == pytest.approx(0.5)
    assert answer.scores == tuple(LOGITS)
    assert isinstance(answer, Choice)


def test_first_of_equals_is_chosen():
    assert ChoiceQuestion("Q", ["a", "b"]).answer([2, 2]).label == "a"


def test_yes_no_is_the_second_probability():
    answer = YesNoQuestion("Q").answer([math.log(1), math.log(3)])
    assert float(answer) == answer.probability == pytest.approx(0.75)
    assert answer
    assert not YesNo(0.5)


def test_score_is_the_expectation():
    answer = ScoreQuestion("Q", ["low", "mid", "high"]).answer(LOGITS)
    assert float(answer) == answer.value == pytest.approx(0 / 8 + 3 / 8 + 2 * 4 / 8)
    assert answer.probabilities == pytest.approx({0: 1 / 8, 1: 3 / 8, 2: 4 / 8})
    assert answer.confidence == pytest.approx(0.5)


def test_softmax_of_large_scores():
    assert softmax([1e4, 1e4 - math.log(3)]) == pytest.approx([0.75, 0.25])
    assert softmax([0, -1e4]) == [1, 0]


@pytest.mark.parametrize("scores", [[1.0], [1.0, 2.0, 3.0], []], ids=len)
def test_wrong_number_of_logits(scores):
    for question in (ChoiceQuestion("Q", ["a", "b"]), ScoreQuestion("Q", ["a", "b"]), YesNoQuestion("Q")):
        with pytest.raises(BackendError, match=f"gave {len(scores)} logits for 2 options"):
            question.answer(scores)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_no_numbers(bad):
    with pytest.raises(BackendError, match="no numbers"):
        YesNoQuestion("Q").answer([0.0, bad])
