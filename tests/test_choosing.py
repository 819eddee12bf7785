import threading

import pytest

from tests import tiny_judge
from tests import tiny_models as tiny
from tests.test_families import FIXTURES, PAIRS, SYSTEM
from tests.tiny_judge import CLS, MASK, PAD, SEP
from tinykit import ChoiceQuestion, ScoreQuestion, TinySession, YesNoQuestion
from tinykit.errors import (
    ClosedError,
    ForwardInterrupted,
    OptionError,
    PromptTooLongError,
)
from tinykit.generation.judging import Marks, encode_question
from tinykit.generation.questions import softmax

MESSAGE = "The app crashes when I open it."
MARKS = Marks(MASK, CLS, SEP, PAD, "<mask>")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_judge.write_judge(tmp_path_factory.mktemp("judges") / "julia")


@pytest.fixture(scope="module")
def judge(folder):
    with TinySession(folder, progress=False) as session:
        yield session


@pytest.fixture(scope="module")
def writer(tmp_path_factory):
    path = tmp_path_factory.mktemp("writers") / "tiny.gguf"
    tiny.write_gguf(path, "llama", tiny.random_weights("llama"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TINYKIT_HOME", str(tmp_path_factory.mktemp("home")))
        with TinySession(path, dtype="fp32", progress=False) as session:
            yield session


def expected(question, state):
    """What numpy says about the row that the contract asks for."""

    def encode(text):
        return [ord(character) for character in text]

    return tiny_judge.reference([encode_question(question, encode(state), encode, MARKS)])[0]


# ---- a judge model ------------------------------------------------------------------------------


def test_ids_that_reach_the_graph_by_hand(folder, monkeypatch):
    session = TinySession(folder, progress=False)
    backend, seen = session.load().judge.backend, []
    run = backend._run
    monkeypatch.setattr(backend, "_run", lambda feeds: seen.append(feeds) or run(feeds))
    session.judge("S<mask>", {"it": YesNoQuestion("Q")})
    (feeds,) = seen
    ids = [2, 110, 111, 117, 108, 32, 113, 117, 101, 115, 116, 105, 111, 110, 58, 32, 81, 1, 4, 32, 110, 111, 4, 32, 121, 101, 115, 1, 83, 32, 1]  # fmt: skip
    assert feeds["input_ids"].tolist() == [[*ids, 0]]
    assert feeds["attention_mask"].tolist() == [[*[1] * 31, 0]]
    assert feeds["marker_pos"].tolist() == [[18, 22]]
    assert feeds["marker_mask"].tolist() == [[True, True]]
    assert feeds["qtype"].tolist() == [2]
    session.close()


def test_judge_answers_several_questions_about_one_state(judge):
    questions = {
        "kind": ChoiceQuestion("What is it?", {"bug": "it broke", "wish": None, "other": ""}),
        "urgent": YesNoQuestion("Is it urgent?", no="it can wait", yes="it burns"),
        "mood": ScoreQuestion("How angry?", ["calm", "cross", "furious"]),
    }
    state = {"text": MESSAGE, "stars": [1, 2]}
    found = judge.judge(state, questions)
    assert list(found) == ["kind", "urgent", "mood"]
    text = '{"text": "The app crashes when I open it.", "stars": [1, 2]}'
    for name, question in questions.items():
        wanted = question.answer(expected(question, text))
        if name == "urgent":
            assert found[name].probability == pytest.approx(wanted.probability, abs=1e-5)
        else:
            assert found[name].probabilities == pytest.approx(wanted.probabilities, abs=1e-5)
            assert sum(found[name].probabilities.values()) == pytest.approx(1)
    assert found["kind"].logprobs == ()
    assert str(found["kind"]) == found["kind"].label


def test_the_same_calls_work_with_a_judge(judge):
    choice = judge.choose(MESSAGE, ["bug", "wish"], system=" What is it? ")
    wanted = softmax(expected(ChoiceQuestion("What is it?", ["bug", "wish"]), MESSAGE))
    assert list(choice.probabilities.values()) == pytest.approx(wanted, abs=1e-5)
    yes = judge.yes_no("Is it urgent?", MESSAGE)
    assert yes.probability == pytest.approx(softmax(expected(YesNoQuestion("Is it urgent?"), MESSAGE))[1], abs=1e-5)  # fmt: skip
    question = ScoreQuestion("How angry?", ["calm", "cross"])
    score = judge.score("How angry?", ["calm", "cross"], MESSAGE)
    assert score.value == pytest.approx(softmax(expected(question, MESSAGE))[1], abs=1e-5)


def test_choice_without_a_question_has_one(judge):
    wanted = softmax(expected(ChoiceQuestion("Which option fits best?", ["a", "b"]), MESSAGE))
    found = judge.choose(MESSAGE, ["a", "b"])
    assert list(found.probabilities.values()) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    "options", [{"normalize": "none"}, {"calibrate": True}, {"calibrate": "N/A"}], ids=str
)
def test_judge_takes_no_options_of_likelihoods(judge, options):
    with pytest.raises(OptionError, match="neither normalized nor calibrated") as caught:
        judge.choose(MESSAGE, ["a", "b"], **options)
    assert caught.value.name in options


def test_judge_cannot_write(judge):
    for ask in (
        lambda: judge.complete("hello"),
        lambda: judge.chat([{"role": "user", "content": "hello"}]),
        lambda: judge.title(MESSAGE, recipe="plain"),
        lambda: judge.complete_many(["hello"]),
    ):
        with pytest.raises(OptionError, match="julia is a judge model.*cannot write") as caught:
            ask()
        assert "chat model" in caught.value.hint
    assert judge.title(MESSAGE, recipe="first-words")


def test_model_that_writes_is_no_judge(writer):
    with pytest.raises(OptionError, match="tiny is no judge model") as caught:
        writer.judge(MESSAGE, {"urgent": YesNoQuestion("Is it urgent?")})
    assert "choose()" in caught.value.hint


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ({}, "at least one question"),
        ([], "must be a mapping"),
        (None, "must be a mapping"),
        ({"q": "Is it urgent?"}, "question 'q' must be a ChoiceQuestion"),
    ],
)
def test_questions_that_cannot_be_asked(judge, questions, message):
    with pytest.raises(OptionError, match=message):
        judge.judge(MESSAGE, questions)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ("ab", "must be a list of texts, not 'ab'", "bug report"),
        (5, "must be a list of texts, not 5", "bug report"),
        ([], "2 to 20 texts, not 0", "Add what else it could be"),
        (["a"], "2 to 20 texts, not 1", "Add what else it could be"),
        ({"a": "alone"}, "2 to 20 texts, not 1", "Add what else it could be"),
        ([str(number) for number in range(21)], "2 to 20 texts, not 21", "Drop the unlikely ones"),
        ({"a": None, "b": 5}, "rubric of 'b' must be text or None, not 5", "bug report"),
    ],
)
def test_options_that_are_no_choice(judge, options, message, hint):
    with pytest.raises(OptionError, match=message) as caught:
        judge.choose("p", options)
    assert hint in caught.value.hint


def test_text_that_is_none_is_said(judge):
    calls = (
        ("system", lambda: judge.choose("p", ["a", "b"], system=5)),
        ("context", lambda: judge.yes_no("Is it?", 5)),
        ("context", lambda: judge.score("How much?", ["a", "b"], 5)),
    )
    for name, call in calls:
        with pytest.raises(OptionError, match=f"{name} must be text, not 5") as caught:
            call()
        assert caught.value.name == name


def test_what_cannot_be_asked_loads_nothing(folder):
    session = TinySession(folder, lazy=True, progress=False)
    for ask in (
        lambda: session.judge(MESSAGE, {}),
        lambda: session.choose(MESSAGE, ["a"]),
        lambda: session.choose(MESSAGE, ["a", "a"]),
        lambda: session.choose("  ", ["a", "b"]),
        lambda: session.choose(MESSAGE, ["a", "b"], normalize="words"),
        lambda: session.choose(MESSAGE, ["a", "b"], calibrate=" "),
        lambda: session.yes_no(""),
        lambda: session.score("How?", ["low"]),
    ):
        with pytest.raises(OptionError):
            ask()
    assert session._loaded == {}


def test_judge_session_says_what_it_is(judge):
    assert repr(judge).startswith("<TinySession julia fp32 on cpu (onnx, ")
    assert repr(judge).endswith("threads), a judge>")
    assert judge.cancel() == 0


def test_closed_judge_says_so(folder):
    session = TinySession(folder, progress=False)
    loaded = session.load()
    session.close()
    with pytest.raises(ClosedError):
        session.yes_no("Is it?")
    with pytest.raises(ClosedError):
        loaded.judge.answer("x", {"q": YesNoQuestion("Is it?")})


def test_cancel_reaches_a_judge(folder, monkeypatch):
    session = TinySession(folder, progress=False)
    backend, started = session.load().judge.backend, threading.Event()

    class Slow:
        def run(self, names, feeds, options):
            started.set()
            while not options.terminate:
                threading.Event().wait(0.005)
            raise RuntimeError("Exiting due to terminate flag being set to true.")

    counts = []
    monkeypatch.setattr(backend._graph, "_session", Slow())
    thread = threading.Thread(target=lambda: started.wait() and counts.append(session.cancel()))
    thread.start()
    with pytest.raises(ForwardInterrupted):
        session.yes_no("Is it?")
    thread.join()
    assert counts == [1]


def test_threads_take_turns(judge):
    questions = {str(n): ChoiceQuestion(f"Q{n}?", ["a", "b"]) for n in range(8)}
    alone = {name: judge.judge(MESSAGE, {name: question}) for name, question in questions.items()}
    found = {}

    def ask(name):
        found[name] = judge.judge(MESSAGE, {name: questions[name]})

    threads = [threading.Thread(target=ask, args=(name,)) for name in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


# ---- a language model ---------------------------------------------------------------------------


def test_writer_chooses_with_probabilities(writer):
    found = writer.choose("Is this a bug or a wish?", ["bug", " wish "])
    assert list(found.probabilities) == ["bug", " wish "]
    assert sum(found.probabilities.values()) == pytest.approx(1)
    assert found.label == max(found.probabilities, key=found.probabilities.get)
    assert found.confidence == found.probabilities[found.label]
    assert [len(tokens) for tokens in found.logprobs] == [3, 4]
    assert found.scores == pytest.approx([sum(tokens) / len(tokens) for tokens in found.logprobs])
    swapped = writer.choose("Is this a bug or a wish?", [" wish ", "bug"])
    assert swapped.probabilities == pytest.approx(found.probabilities)


def test_normalize_and_calibrate_reach_the_scores(writer):
    whole = writer.choose(MESSAGE, ["bug", "wish"], normalize="none")
    assert whole.scores == pytest.approx([sum(tokens) for tokens in whole.logprobs])
    without = writer.choose("N/A", ["bug", "wish"], normalize="none")
    for calibrate in (True, "N/A"):
        found = writer.choose(MESSAGE, ["bug", "wish"], normalize="none", calibrate=calibrate)
        difference = [a - b for a, b in zip(whole.scores, without.scores, strict=True)]
        assert found.scores == pytest.approx(difference, abs=1e-4)
        assert found.logprobs == whole.logprobs


def seen_prompts(session, monkeypatch):
    seen, tokenizer = [], session.load().engine.tokenizer
    encode = tokenizer.encode_answers
    monkeypatch.setattr(
        tokenizer, "encode_answers", lambda turns, texts: seen.append((turns, texts)) or encode(turns, texts)
    )
    return seen


def test_prompts_of_the_four_forms(writer, monkeypatch):
    seen = seen_prompts(writer, monkeypatch)
    writer.choose("P", {"a": "one", "b": None}, system=" S ", calibrate=True)
    writer.yes_no("Is it?", "Context.")
    writer.yes_no("Is it?", "  ", calibrate=True)
    writer.score("How much?", ["low", "high"], "Context.", calibrate="Nothing.")
    shown = [
        ("\n--\n".join(turn.content for turn in turns), list(texts)) for turns, texts in seen if texts != [""]
    ]
    assert shown == [
        ("S\n--\nP\n\n- a: one\n- b", ["a", "b"]),
        ("S\n--\nN/A\n\n- a: one\n- b", ["a", "b"]),
        ("Context.\n\nIs it? Answer yes or no.", ["No", "Yes"]),
        ("Is it? Answer yes or no.", ["No", "Yes"]),
        ("N/A\n\nIs it? Answer yes or no.", ["No", "Yes"]),
        ("Context.\n\nHow much?\nOptions: low, high", ["low", "high"]),
        ("Nothing.\n\nHow much?\nOptions: low, high", ["low", "high"]),
    ]


def test_yes_no_and_score_are_made_of_the_choice(writer):
    choice = writer.choose("C\n\nIs it? Answer yes or no.", ["No", "Yes"])
    assert writer.yes_no("Is it?", "C").probability == pytest.approx(choice.probabilities["Yes"])
    levels = ["low", "middle", "high"]
    choice = writer.choose("C\n\nHow?\nOptions: low, middle, high", levels)
    score = writer.score("How?", levels, "C")
    assert score.value == pytest.approx(choice.probabilities["middle"] + 2 * choice.probabilities["high"])
    assert score.probabilities == pytest.approx(dict(enumerate(choice.probabilities.values())))


def test_too_long_prompt_is_refused_and_loses_nothing(writer):
    with pytest.raises(PromptTooLongError):
        writer.choose("word " * 5000, ["a", "b"])
    with pytest.raises(PromptTooLongError):
        writer.choose("word", ["a", "b" * 5000])
    assert writer.choose("word", ["a", "b"]).label in ("a", "b")


def test_prompt_is_shared_with_what_was_generated_before(writer, monkeypatch):
    engine, fed = writer.load().engine, []
    forward = engine.backend.forward
    monkeypatch.setattr(
        engine.backend, "forward", lambda ids, *a, **k: fed.append(len(ids)) or forward(ids, *a, **k)
    )
    engine.cache.clear()
    writer.complete("a long enough prompt to keep", max_tokens=1)
    fed.clear()
    first = writer.choose("a long enough prompt to keep", ["ab", "cd"])
    assert fed == [2, 2, 2]  # the prompt's last two tokens, its last one with each option's first
    fed.clear()
    assert writer.choose("a long enough prompt to keep", ["ab", "cd"]) == first
    assert fed == [2, 2, 2]


def test_trained_model_chooses_its_title():
    with TinySession(FIXTURES / "hub" / "llama", progress=False) as session:
        titles = [f"<title>{title}</title>" for _, title in PAIRS]
        for message, title in PAIRS:
            assert str(session.choose(message, titles, system=SYSTEM)) == f"<title>{title}</title>"


# ---- the real model -----------------------------------------------------------------------------

TOPICS = ["cooking", "sports", "computers", "travel"]
TEXTS = [
    ("My sourdough never rises, is my starter too cold?", "cooking"),
    ("The striker scored twice in the second half.", "sports"),
    ("How do I undo the last commit in git?", "computers"),
    ("Do I need a visa for two weeks in Vietnam?", "travel"),
]


@pytest.mark.real
def test_real_model_tells_topics_when_calibrated(real_session):
    def ask(text, options):
        return real_session.choose(
            f"{text}\n\nWhat is this about?", options, calibrate="N/A\n\nWhat is this about?"
        )

    found = [ask(text, TOPICS) for text, _ in TEXTS]
    assert [choice.label for choice in found] == [topic for _, topic in TEXTS]
    for choice in found:
        assert sum(choice.probabilities.values()) == pytest.approx(1)
    swapped = ask(TEXTS[0][0], TOPICS[::-1])
    assert swapped.probabilities == pytest.approx(found[0].probabilities, abs=1e-6)
