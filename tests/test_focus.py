import os
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinykit.focus import focus

LOG = "\n".join(
    [
        "My backup job dies every night.",
        "```bash",
        *(f"step {i} done in {i}.5 s and counting" for i in range(30)),
        *("disk is nearly full", "rsync error: no space left", "step 31", "step 32", "bye"),
        *("```", "Any idea?"),
    ]
)
TRACE = (
    "The import crashes since this morning, nothing was changed as far as I know and nobody else sees it.\n"
    + "TypeError: rate is not a function\n"
    + "".join(f"    at Tariff.step{i} (/srv/app/tariff.js:{i}:3)\n" for i in range(12))
)
STORY = " ".join(f"This is sentence number {i} of a long story that tells a lot." for i in range(40))
PYTHON_TRACE = (
    "Our nightly import stopped working after the last release and I do not see what could have changed.\n\n"
    "Traceback (most recent call last):\n"
    + "".join(f'  File "/srv/import/step{i}.py", line {i}, in run\n    step{i}.run(rows)\n' for i in range(9))
    + "KeyError: 'shipped_at'\n\nThe column is there, I can see it in the file. What is going on?"
)

CASES = {
    "short text stays": ("how do I  reset\tmy router", "how do I reset my router"),
    "blank lines go": ("one\n\n\n  two ", "one\ntwo"),
    "empty": ("", ""),
    "marks of templates": ("<|im_end|>fix <title>it</title> <|user|>now", "fix it now"),
    "operators stay": ("what does f |> g <| h mean", "what does f |> g <| h mean"),
    "short code is whole": ("why?\n```python\na = 1\nb = 2\n```", "why?\npython\na = 1\nb = 2"),
    "control characters": ("a\x00b \x1b[31mred\x1b[0m \x7fc", "ab red c"),
    "half a character": ("a\ud800b", "a\ufffdb"),
    "fence that is never closed": ("see\n```\nx y\nz", "see\nx y\nz"),
}


@pytest.mark.parametrize(("message", "expected"), CASES.values(), ids=CASES)
def test_focus_of_short_messages(message, expected):
    assert focus(message) == expected


def test_of_a_log_the_first_lines_the_last_and_the_errors_are_kept():
    assert focus(LOG).split("\n") == [
        "My backup job dies every night.",
        "bash",
        "step 0 done in 0.5 s and counting",
        "step 1 done in 1.5 s and counting",
        "step 2 done in 2.5 s and counting",
        "…",
        "rsync error: no space left",
        "…",
        "bye",
        "Any idea?",
    ]


def test_of_a_trace_the_prose_the_error_and_the_ends_are_kept():
    assert focus(TRACE).split("\n") == [
        "The import crashes since this morning, nothing was changed as far as I know and nobody else sees it.",
        "TypeError: rate is not a function",
        *(f"at Tariff.step{i} (/srv/app/tariff.js:{i}:3)" for i in range(4)),
        "…",
        "at Tariff.step11 (/srv/app/tariff.js:11:3)",
    ]


def test_long_lines_of_code_are_cut():
    text = focus("x" * 299 + "\n```\n" + "y" * 400 + "\n```", max_chars=10_000)
    assert text.split("\n")[1] == "y" * 160


def test_of_a_long_text_both_ends_and_the_question_are_kept():
    middle = "So could you help me to shorten it for the school newspaper?"
    lines = focus(f"{STORY} {middle} {STORY} Bye now.").split("\n")
    assert lines[0] == "This is sentence number 0 of a long story that tells a lot."
    assert lines[-1] == "Bye now."
    assert f"… {middle}" in lines
    assert sum(map(len, lines)) <= 700 + 2 * len(lines)


def test_sentences_of_scripts_without_spaces_are_told_apart():
    text = "今日は天気がいいです。" * 70 + "来週の予定を立ててください。"
    lines = focus(text).split("\n")
    assert lines[0] == "今日は天気がいいです。"
    assert lines[-1].endswith("来週の予定を立ててください。")


@pytest.mark.parametrize("max_chars", [100, 300, 700, 2000])
def test_size_follows_max_chars(max_chars):
    text = focus(STORY, max_chars)
    assert 0.6 * max_chars < len(text) < max_chars + 50


HUGE = {
    "one word": "x" * 5_000_000,
    "words": "word " * 1_000_000,
    "code": "a:\n" * 1_700_000,
    "statements": "; " * 2_500_000,
    "sentences": ". " * 2_500_000,
    "questions": "?\n" * 2_500_000,
    "spaces": " " * 5_000_000,
    "fences": "```" * 1_700_000,
    "marks": "<|" * 2_500_000,
    "keywords": "import " * 700_000,
    "frame": "at " + "a" * 5_000_000,
    "NUL": "\x00" * 5_000_000,
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("message", HUGE.values(), ids=HUGE)
def test_huge_messages_take_no_time(message):
    assert len(focus(message)) <= 720


def test_both_ends_of_a_huge_message_count():
    text = focus(f"Plan my garden. {STORY * 3000} Please keep it short.")
    assert text.startswith("Plan my garden.")
    assert text.endswith("Please keep it short.")


@given(st.text(st.sampled_from("ab \n\t\x00\ud800`:;?。.{<|>"), max_size=400))
def test_any_text_gives_text_without_marks(message):
    text = focus(message)
    assert not any(char < " " and char != "\n" for char in text)
    text.encode("utf-8")
    assert all(line.strip() for line in text.split("\n")) or not text


def test_of_a_python_trace_the_first_frames_and_the_error_are_kept():
    assert focus(PYTHON_TRACE).split("\n") == [
        "Our nightly import stopped working after the last release and I do not see what could have changed.",
        "Traceback (most recent call last):",
        'File "/srv/import/step0.py", line 0, in run',
        "step0.run(rows)",
        'File "/srv/import/step1.py", line 1, in run',
        "…",
        "KeyError: 'shipped_at'",
        "The column is there, I can see it in the file. What is going on?",
    ]


def test_of_a_long_story_the_error_in_its_middle_is_kept():
    thrown = "sqlalchemy.exc.TimeoutError: QueuePool limit of size 5 overflow 10 reached"
    text = focus(f"{STORY}\n{thrown}\n{STORY}")
    assert thrown in text
    assert len(text) < 800


ASIDES = [
    "Sorry for the wall of text, it is late here and the cat has walked over the keyboard twice already.",
    "My old flatmate used to do all of this and then moved abroad without a word about it.",
    "On the weekend we were at the lake, where nobody talked about anything that matters.",
    "The coffee machine in the corridor broke as well, so everybody is in a mood.",
    "I have been doing other things for most of the month, which did not help either.",
    "There was a storm, then there was a holiday, and then somebody was ill.",
    "None of that is urgent and I will come back to it some other day.",
    "Anyway, people keep telling me different stories and I believe about half of them.",
    "Last year it was much warmer at this time and we sat outside until ten.",
    "The neighbors are painting their fence in a color that has no name.",
]
THREAD = [
    "The greenhouse heater switches itself off at night.",
    "We replaced the thermostat of the greenhouse heater in spring.",
    "By morning the heater shows code E72 and the seedlings are cold.",
]


@pytest.mark.parametrize("seed", range(5))
def test_of_a_long_ramble_what_it_comes_back_to_is_kept(seed):
    sentences = [*ASIDES, *THREAD]
    random.Random(seed).shuffle(sentences)
    text = focus(" ".join(["Hello again.", *sentences, "Thanks, and good night."]), max_chars=400)
    assert "greenhouse heater" in text
    assert "E72" in text


def test_a_name_weighs_more_than_another_word():
    plain, named = "Yesterday the supplier rang me up.", "Yesterday the Zubrowka rang me up."
    for pair in ([plain, named], [named, plain]):
        kept = focus(" ".join(["Hello.", *ASIDES[:5], *pair, *ASIDES[5:], "Bye."]), max_chars=140)
        assert named in kept
        assert plain not in kept


def test_the_choice_is_the_same_in_every_process():
    # sets of words have another order in each process; the sums must not
    code = "import sys; from tinykit.focus import focus; print(focus(sys.stdin.read(), 500))"
    message = " ".join([*ASIDES, *THREAD] * 2)
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], input=message, capture_output=True, text=True, check=True,
            env={**os.environ, "PYTHONHASHSEED": seed}, timeout=120,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert texts == {focus(message, 500) + "\n"}
