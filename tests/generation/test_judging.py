import pytest

from tests.tiny_judge import CLS, MASK, PAD, SEP
from tinykit.errors import ForwardInterrupted, OptionError
from tinykit.generation.judging import Judge, Marks, encode_question, state_text
from tinykit.generation.questions import ChoiceQuestion, ScoreQuestion, YesNoQuestion, softmax

MARKS = Marks(mask_id=MASK, class_id=CLS, separator_id=SEP, pad_id=PAD, mask_text="<mask>")


def encode(text):
    return [ord(character) for character in text]


def row(question, state="S", **options):
    return encode_question(question, encode(state), encode, MARKS, **options)


# ---- the encoding -------------------------------------------------------------------------------


def test_encoding_by_hand():
    found = row(ChoiceQuestion("Q", ["A", "B"]))
    head = [99, 104, 111, 105, 99, 101, 32, 113, 117, 101, 115, 116, 105, 111, 110, 58, 32, 81]
    assert found.ids == (2, *head, 1, 4, 32, 65, 4, 32, 66, 1, 83, 1)
    assert found.markers == (20, 23)


@pytest.mark.parametrize(
    ("question", "number", "word"),
    [
        (ChoiceQuestion("Q", ["A", "B"]), 0, "choice"),
        (ScoreQuestion("Q", ["A", "B"]), 1, "score"),
        (YesNoQuestion("Q", "A", "B"), 2, "noul"),
    ],
    ids=["choice", "score", "yes_no"],
)
def test_kinds_have_numbers_and_words(question, number, word):
    found = row(question)
    assert found.kind == number
    assert found.ids == (CLS, *encode(f"{word} question: Q"), SEP, MASK, *encode(" A"), MASK, *encode(" B"), SEP, 83, SEP)  # fmt: skip


def test_options_are_labels_with_rubrics_and_no_comes_before_yes():
    assert ChoiceQuestion("Q", {"bug": "it broke", "other": None, "more": ""}).texts == ("bug: it broke", "other", "more")  # fmt: skip
    assert YesNoQuestion("Q").texts == ("no", "yes")
    assert YesNoQuestion("Q", no="it is calm", yes="it burns").texts == ("it is calm", "it burns")


def test_an_option_has_48_tokens_at_most():
    found = row(ChoiceQuestion("Q", ["x" * 100, "ok"]))
    first, second = found.markers
    assert second - first == 49
    assert found.ids[first:second] == (MASK, 32, *[ord("x")] * 47)


def test_many_long_options_shrink_and_leave_the_question_16_tokens():
    found = row(ChoiceQuestion("a long question " * 9, [f"{n:02} " + "x" * 60 for n in range(20)]))
    steps = {b - a for a, b in zip(found.markers, found.markers[1:], strict=False)}
    assert steps == {12}  # (256 - 16) // 20
    assert found.markers[0] == 1 + 16 + 1
    assert found.ids[1:17] == tuple(encode("choice question:"))


def test_question_gets_what_the_options_leave_of_256():
    found = row(ChoiceQuestion("q" * 500, ["A", "B"]))
    assert found.markers[0] == 1 + (256 - 6) + 1


def test_state_is_cut_to_what_is_left():
    found = row(ChoiceQuestion("Q", ["A", "B"]), "ABCDE", max_tokens=30)
    assert len(found.ids) == 30
    assert found.ids[-3:] == (65, 66, SEP)
    assert len(row(ChoiceQuestion("Q", ["A", "B"]), "x" * 10_000).ids) == 8192


def test_text_of_the_mask_token_marks_nothing():
    found = row(ChoiceQuestion("is <mask> it", ["a<mask>", "b"]))
    assert [at for at, index in enumerate(found.ids) if index == MASK] == list(found.markers)
    assert found.ids[1 : found.markers[0] - 1] == tuple(encode("choice question: is   it"))
    assert found.ids[found.markers[0] + 1 : found.markers[1]] == tuple(encode(" a "))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("as <it> is, é", "as <it> is, é"),
        ({"b": 2, "a": [1, 2.5, None, True]}, '{"b": 2, "a": [1, 2.5, null, true]}'),
        ({"msg": "a, b: c"}, '{"msg": "a, b: c"}'),
        ({"k": 'é"\n'}, '{"k": "\\u00e9\\"\\n"}'),
        ([], "[]"),
    ],
    ids=["text", "values", "separators", "escapes", "empty"],
)
def test_state_that_is_no_text_is_written_as_json(state, text):
    assert state_text(state) == text


@pytest.mark.parametrize("state", [{1, 2}, b"x", object(), {"a": {1}}], ids=repr)
def test_state_that_is_no_json_is_an_error(state):
    with pytest.raises(OptionError, match="text or what JSON can hold"):
        state_text(state)


# ---- a judge above any encoder ------------------------------------------------------------------


class Info:
    context_length = 64


class ScriptedEncoder:
    """Answers with the first tokens of the options, and remembers what it was asked."""

    info = Info()

    def __init__(self):
        self.rows = []

    def option_logits(self, rows, pad_id):
        self.rows += rows
        return [[row.ids[at + 2] / 10 for at in row.markers] for row in rows]

    def interrupt(self):
        pass

    def close(self):
        self.rows = None


def test_judge_answers_by_name():
    encoder = ScriptedEncoder()
    questions = {"kind": ChoiceQuestion("Q", ["b", "c"]), "sure": YesNoQuestion("R", "b", "z")}
    answers = Judge(encoder, encode, MARKS).answer({"x": 1}, questions)
    assert list(answers) == ["kind", "sure"]
    assert answers["kind"].probabilities == pytest.approx(dict(zip("bc", softmax([9.8, 9.9]), strict=True)))
    assert answers["sure"].probability == pytest.approx(softmax([9.8, 12.2])[1])
    assert encoder.rows == [row(question, '{"x": 1}') for question in questions.values()]


def test_judge_without_questions_has_no_answers():
    encoder = ScriptedEncoder()
    assert Judge(encoder, encode, MARKS).answer("x", {}) == {}
    assert encoder.rows == []


def test_judge_cuts_the_state_to_its_context_and_reads_no_more():
    encoder, lengths = ScriptedEncoder(), []

    def watched(text):
        lengths.append(len(text))
        return encode(text)

    Judge(encoder, watched, MARKS).answer("x" * 5_000_000, {"q": ChoiceQuestion("Q", ["a", "b"])})
    assert len(encoder.rows[0].ids) == 64
    assert max(lengths) <= 64 * 64
    Judge(encoder, watched, MARKS).answer("a <mask> b", {"q": ChoiceQuestion("Q", ["a", "b"])})
    assert encoder.rows[1].ids.count(MASK) == 2


def test_idle_judge_has_nothing_to_cancel():
    assert Judge(ScriptedEncoder(), encode, MARKS).cancel() == 0


class Heard(ScriptedEncoder):
    """Calls `during` in each of its calls, and raises if it was interrupted meanwhile."""

    def __init__(self, during):
        super().__init__()
        self._during = during
        self._is_stopped = False

    def option_logits(self, rows, pad_id):
        self._is_stopped = False
        found = super().option_logits(rows, pad_id)
        self._during()
        if self._is_stopped:
            raise ForwardInterrupted("stopped")
        return found

    def interrupt(self):
        self._is_stopped = True


class Watcher:
    cancelled_by = None


QUESTION = ChoiceQuestion("Q", ["b", "c"])


def test_cancel_ends_what_a_judge_computes_and_the_next_call_works():
    counts = []
    judge = Judge(Heard(lambda: counts or counts.append(judge.cancel())), encode, MARKS)
    with pytest.raises(ForwardInterrupted, match="cancelled"):
        judge.logits("x", [QUESTION])
    assert counts == [1]
    assert judge.logits("x", [QUESTION]) == [[9.8, 9.9]]


def test_watcher_ends_its_own_judgment_alone():
    mine, other = Watcher(), Watcher()

    def during():
        if len(judge.backend.rows) == 1:
            judge.interrupt(other)
            judge.backend.interrupt()  # meant for somebody who has just left the model: it is asked again
        if len(judge.backend.rows) == 2:
            mine.cancelled_by = "cancel"
            judge.interrupt(mine)

    judge = Judge(Heard(during), encode, MARKS)
    with pytest.raises(ForwardInterrupted, match="cancelled"):
        judge.logits("x", [QUESTION], watcher=mine)
    assert len(judge.backend.rows) == 2
    with pytest.raises(ForwardInterrupted):  # not begun at all
        judge.logits("x", [QUESTION], watcher=mine)
    assert len(judge.backend.rows) == 2
    assert judge.logits("x", [QUESTION], watcher=other) == [[9.8, 9.9]]
