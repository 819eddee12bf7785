"""Replies that are no titles yet, each with the title that is in it, or the reason why there is none."""

import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tinykit.extraction import Extraction, clean, extract
from tinykit.reasons import Reason, explain
from tinykit.recipes import RECIPES, Recipe
from tinykit.scripts import count_words

PLAIN = RECIPES["plain"]
LOGIN = "the login test is flaky on slow CI runners, can you fix it?"
PATH = "/srv/data/projects/2024/archive/customers/exports/very/deep/folder/with/a/name/that/goes/on/file.csv"
TITLE = "Flaky login test on CI"

# id: (reply, message, title, reasons of all steps)
REPLIES: dict[str, tuple[str, str, str | None, list[str]]] = {
    "as it should be": (TITLE, LOGIN, TITLE, []),
    "stop text left in": (f"{TITLE}</title>", LOGIN, TITLE, []),
    "talks on after the stop text": (f"{TITLE}</title>\nLet me know", LOGIN, TITLE, ["tags"]),
    "second title after the prefilled one": (f"{TITLE}</title><title>Other", LOGIN, TITLE, ["tags"]),
    "opens the tag again": (f"<title>{TITLE}</title>", LOGIN, TITLE, ["tags"]),
    "last opening tag counts": (f"<title>Draft</title> no: <title>{TITLE}</title>", LOGIN, TITLE, ["tags"]),
    "upper-case tag with attribute": (f'<TITLE lang="en">{TITLE}</TITLE>', LOGIN, TITLE, ["tags"]),
    "prose before the tag": (f"Sure! <title>{TITLE}</title>", LOGIN, TITLE, ["tags"]),
    "closing tag cut short": (f"{TITLE}</tit", LOGIN, TITLE, ["tags"]),
    "self-closing tag": ("<title/>", "hi", None, ["no_title"]),
    "self-closing after the prefill": (" />", "hi", None, ["no_title"]),
    "last opening tag is self-closing": ("<title>x</title><title />", LOGIN, None, ["no_title"]),
    "template token": (f"{TITLE}<|im_end|>\n<|im_start|>user", LOGIN, TITLE, ["multiline", "tags"]),
    "sentence token": (f"{TITLE}</s>", LOGIN, TITLE, ["tags"]),
    "wrapper tag": (f"{TITLE}</user></chat>", LOGIN, TITLE, ["tags"]),
    "bold tag": (f"<b>{TITLE}</b>", LOGIN, TITLE, ["tags"]),
    "heading tag": (f"<h1>{TITLE}</h1>", LOGIN, TITLE, ["tags"]),
    "generic type stays": ("Parse Vec<String> in serde", "serde and a Vec<String>", "Parse Vec<String> in serde", []),
    "generic type not in message": ("Sort a List<Item> twice", "sort my items", "Sort a List<Item> twice", []),
    "less-than sign stays": ("Why a < b is false", "why is a < b false", "Why a < b is false", []),
    "tag of the message stays": ("Style a <div> block", "how to style <div> blocks", "Style a <div> block", []),
    "empty": ("", LOGIN, None, ["empty"]),
    "blank": (" \n\t ", LOGIN, None, ["empty"]),
    "only closing tag": ("</title>", LOGIN, None, ["empty"]),
    "only punctuation": ("...!?", LOGIN, None, ["empty"]),
    "only emoji": ("🎉", LOGIN, None, ["empty"]),
    "single letter": ("A", LOGIN, None, ["too_short"]),
    "none": ("None", LOGIN, None, ["no_title"]),
    "none with full stop": ("none.", LOGIN, None, ["punctuation", "no_title"]),
    "none inside a title": ("Fix None comparison", "fix x == None", "Fix None comparison", []),
    "not applicable": ("N/A", LOGIN, None, ["no_title"]),
    "untitled": ("Untitled", LOGIN, None, ["no_title"]),
    "several lines": (f"{TITLE}\n\nThe test fails because", LOGIN, TITLE, ["multiline"]),
    "leading blank lines": (f"\n\n  {TITLE}", LOGIN, TITLE, []),
    "numbered list": (f"1. {TITLE}\n2. CI runner speed", LOGIN, TITLE, ["multiline", "markup"]),
    "bulleted list": (f"- {TITLE}\n- CI runner speed", LOGIN, TITLE, ["multiline", "markup"]),
    "lead-in line": (f"Here is a title:\n{TITLE}", LOGIN, TITLE, ["multiline"]),
    "sure, then the title": (f"Sure!\n{TITLE}", LOGIN, TITLE, ["multiline"]),
    "label": (f"Title: {TITLE}", LOGIN, TITLE, ["label"]),
    "label in bold": (f"**Title:** {TITLE}", LOGIN, TITLE, ["markup", "label"]),
    "all of it bold, with label": (f"**Title: {TITLE}**", LOGIN, TITLE, ["markup", "label"]),
    "label in German": ("Titel: Wackliger Test", "wackliger test", "Wackliger Test", ["label"]),
    "label in Chinese": ("标题:登录测试不稳定", "登录测试不稳定怎么办", "登录测试不稳定", ["label"]),
    "lead-in on the line": (f"Sure, here's a title: {TITLE}", LOGIN, TITLE, ["label"]),
    "label that the message has": ("Title: undefined in Vue head", "vue shows title: undefined", "Title: undefined in Vue head", []),
    "heading": (f"## {TITLE}", LOGIN, TITLE, ["markup"]),
    "bold": (f"**{TITLE}**", LOGIN, TITLE, ["markup"]),
    "underscores": (f"__{TITLE}__", LOGIN, TITLE, ["markup"]),
    "italic": (f"*{TITLE}*", LOGIN, TITLE, ["markup"]),
    "bold word": ("Flaky **login** test", LOGIN, "Flaky login test", ["markup"]),
    "code span": ("Fix `useEffect` loop", "fix useEffect loop", "Fix useEffect loop", ["markup"]),
    "code fence": (f"```\n{TITLE}\n```", LOGIN, TITLE, ["markup"]),
    "link": (f"[{TITLE}](https://example.org)", LOGIN, TITLE, ["markup"]),
    "C# and C++ stay": ("C# to C++ port", "port c# to c++", "C# to C++ port", []),
    "glob stays": ("Match src/**/*.ts files", "match src/**/*.ts", "Match src/**/*.ts files", []),
    "dunder of the message stays": ("Missing __init__ file", "missing __init__ file", "Missing __init__ file", []),
    "hashtag stays": ("#YOK hatası", "#YOK hatası var", "#YOK hatası", []),
    "lone fence": ("```json", LOGIN, None, ["markup", "empty"]),
    "full stop": (f"{TITLE}.", LOGIN, TITLE, ["punctuation"]),
    "several marks": (f"{TITLE}?!", LOGIN, TITLE, ["punctuation"]),
    "ellipsis": (f"{TITLE}…", LOGIN, TITLE, ["punctuation"]),
    "CJK full stop": ("登录测试不稳定。", "登录测试不稳定怎么办", "登录测试不稳定", ["punctuation"]),
    "abbreviation keeps its dot": ("Moving to the U.S.", "moving to the u.s.", "Moving to the U.S.", []),
    "shell variable keeps its mark": ("Meaning of $?", "meaning of $? in bash", "Meaning of $?", []),
    "JSON": (f'{{"title": "{TITLE}"}}', LOGIN, TITLE, ["json"]),
    "JSON in a fence": (f'```json\n{{"title": "{TITLE}"}}\n```', LOGIN, TITLE, ["json"]),
    "JSON with another name": (f'{{"chat_title": "{TITLE}", "emoji": "x"}}', LOGIN, TITLE, ["json"]),
    "JSON with one nameless field": (f'{{"name": "{TITLE}"}}', LOGIN, TITLE, ["json"]),
    "JSON in a list": (f'[{{"title": "{TITLE}"}}]', LOGIN, TITLE, ["json"]),
    "Python dict": (f"{{'title': '{TITLE}'}}", LOGIN, TITLE, ["json"]),
    "JSON without its brace": (f'{{"title": "{TITLE}"', LOGIN, TITLE, ["json"]),
    "JSON cut in its value": ('{"title": "Bread rec', "bread recipe", None, ["json"]),
    "JSON cut in its name": ('{"title', LOGIN, None, ["json"]),
    "lone brace": ("{", LOGIN, None, ["json"]),
    "JSON with half a character": ('{"title": "Weekly \\ud800 plan"}', LOGIN, "Weekly plan", ["json", "control", "spaces"]),
    "JSON with a line break": ('{"title": "Weekly plan\\nfor us"}', LOGIN, "Weekly plan", ["json", "multiline"]),
    "JSON after a lead-in": (f'Here is the title: {{"title": "{TITLE}"}}', LOGIN, TITLE, ["label", "json"]),
    "JSON without text": ('{"title": null}', LOGIN, None, ["json"]),
    "braces of a template stay": ("{{ user }} not rendered", "{{ user }} is not rendered", "{{ user }} not rendered", []),
    "thinking block": (f"<think>hmm</think>{TITLE}", LOGIN, TITLE, ["think_leak"]),
    "thinking block, other name": (f"<Thinking a='1'>hm</Thinking>\n{TITLE}", LOGIN, TITLE, ["think_leak"]),
    "thinking block, reasoning": (f"<reasoning>hm</reasoning>{TITLE}", LOGIN, TITLE, ["think_leak"]),
    "thinking block, thought": (f"<thought>hm</thought>{TITLE}", LOGIN, TITLE, ["think_leak"]),
    "thinking in a fence": (f"```thinking\nhm\n```\n{TITLE}", LOGIN, TITLE, ["think_leak"]),
    "thinking in brackets": (f"[THINK]hm[/THINK]{TITLE}", LOGIN, TITLE, ["think_leak"]),
    "thinking without its opening": (f"so the user wants\n</think>\n{TITLE}", LOGIN, TITLE, ["think_leak"]),
    "thinking about title tags": (f"<think><title>No</title></think><title>{TITLE}", LOGIN, TITLE, ["think_leak", "tags"]),
    "still thinking": ("<think>The user asks about", LOGIN, None, ["budget_spent_thinking"]),
    "still thinking in the tag": ("<title><think>The user", LOGIN, None, ["budget_spent_thinking"]),
    "thinking process": ("Thinking Process: 1. Analyze the request", LOGIN, None, ["think_leak"]),
    "thinking aloud": ("Okay, the user wants a title", LOGIN, None, ["think_leak"]),
    "the user says": ("The user is asking about a test", LOGIN, None, ["think_leak"]),
    "refusal": ("I'm sorry, but I can't help", LOGIN, None, ["refused"]),
    "refusal as a model": ("As an AI language model", LOGIN, None, ["refused"]),
    "refusal in Chinese": ("抱歉,我无法回答", "登录测试不稳定怎么办", None, ["refused"]),
    "the person cannot": ("I cannot log in to the bank", "I cannot log in to my bank", "I cannot log in to the bank", []),
    "answer": ("Sure, I can help you with that", LOGIN, None, ["answers_instead"]),
    "answer with a greeting": ("Hello! How can I help you today", LOGIN, None, ["answers_instead"]),
    "answer to the person": ("You can rerun the test", LOGIN, None, ["answers_instead"]),
    "answer to a question": ("To fix this, add a retry", LOGIN, None, ["answers_instead"]),
    "thirteen words": ("one two three four five six seven eight nine ten eleven twelve thirteen", LOGIN, None, ["too_long"]),
    "81 characters": (f"{'a' * 40} {'b' * 40}", LOGIN, None, ["too_long"]),
    "long path": (PATH, LOGIN, f"{PATH[:40]}…{PATH[-39:]}", ["too_long"]),
    "long Chinese": ("登录测试在慢速机器上不稳定" * 3, "登录测试在慢速机器上不稳定", None, ["too_long"]),
    "endless": ("word " * 20_000, LOGIN, None, ["too_long"]),
    "Latin for Japanese": ("Flaky login test", "ログインのテストが不安定です", None, ["wrong_script"]),
    "stray Chinese at the end": (f"{TITLE}测试", LOGIN, None, ["wrong_script"]),
    "control characters": ("Flaky\x00 login\x1b test", LOGIN, "Flaky login test", ["control"]),
    "half a character": ("Flaky login test \ufffd", LOGIN, "Flaky login test", ["control"]),
    "reordering marks": ("\u202eFlaky login test\u202c", LOGIN, "Flaky login test", ["control"]),
    "spaces": ("Flaky  login\ttest", LOGIN, "Flaky login test", ["spaces"]),
    "casing": ("Flaky login test on Ci", LOGIN, "Flaky login test on Ci", []),
    "casing of the message": ("Oauth login debugging", "can you debug our OAuth login", "OAuth login debugging", ["casing"]),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "source", "title", "reasons"), REPLIES.values(), ids=REPLIES)
def test_extract_finds_the_title_or_says_why_not(raw, source, title, reasons):
    extraction = extract(raw, source=source, recipe=PLAIN)
    assert extraction.text == title
    assert [step.reason.value for step in extraction.why] == reasons


QUOTED = {
    "plain": '"Weekly plan"',
    "single": "'Weekly plan'",
    "curly": "“Weekly plan”",
    "curly single": "‘Weekly plan’",
    "German": "„Weekly plan“",
    "guillemets": "«Weekly plan»",
    "reversed guillemets": "»Weekly plan«",
    "corner brackets": "「Weekly plan」",
    "title brackets": "《Weekly plan》",
    "doubled": '""Weekly plan""',
    "mixed": "\"“'Weekly plan'”\"",
    "with full stop inside": '"Weekly plan."',
    "with full stop outside": '"Weekly plan".',
    "never closed": '"Weekly plan',
}


@pytest.mark.parametrize("quoted", QUOTED.values(), ids=QUOTED)
def test_clean_peels_pairs_of_quotation_marks(quoted):
    assert clean(quoted) == "Weekly plan"


UNQUOTED = [
    "Don't stop",
    '"retry" flag is ignored',
    'compare "a" and "b"',
    '"a" versus "b"',
    "'til the end of '99",
    "«a» und «b»",
    "Rock 'n' roll",
    'Mount a 24" monitor',
    "The dogs' dinner",
]


@pytest.mark.parametrize("title", UNQUOTED)
def test_clean_keeps_quotation_marks_that_belong_to_the_title(title):
    assert clean(title) == title


LIMITS = {
    "12 words": (" ".join(["abc"] * 12), True),
    "13 words": (" ".join(["abc"] * 13), False),
    "80 characters": (f"{'a' * 39} {'b' * 40}", True),
    "81 characters": (f"{'a' * 40} {'b' * 40}", False),
    "30 Chinese characters": ("测" * 30, True),
    "31 Chinese characters": ("测" * 31, False),
}


@pytest.mark.parametrize(("title", "is_kept"), LIMITS.values(), ids=LIMITS)
def test_extract_rejects_beyond_the_limits(title, is_kept):
    extraction = extract(title, source=title, recipe=PLAIN)
    assert extraction.text == (title if is_kept else None)
    assert extraction.rejected == (None if is_kept else Reason.TOO_LONG)


def test_extract_takes_the_limits_of_the_recipe():
    recipe = dataclasses.replace(PLAIN, max_words=2, max_chars=30)
    assert extract("one two three", source="", recipe=recipe).text is None
    assert extract("one two", source="", recipe=recipe).text == "one two"
    assert extract("x" * 31, source="", recipe=recipe).text == f"{'x' * 15}…{'x' * 14}"


def test_extract_knows_the_answer_for_no_title():
    recipe = dataclasses.replace(PLAIN, no_task_answer="-")
    assert extract("-</title>", source="hi", recipe=recipe).rejected is Reason.NO_TITLE
    assert extract("-", source="hi", recipe=PLAIN).rejected is Reason.EMPTY


def test_extract_skips_the_prompts_own_tags():
    reply = "\n<user>\nFix the login test\n</user>"
    assert extract(reply, source="please fix the login test", recipe=PLAIN).text == "Fix the login test"


def test_extract_says_when_generation_was_cancelled():
    assert (
        extract("Flaky lo", source=LOGIN, recipe=PLAIN, finish_reason="cancelled").rejected
        is Reason.CANCELLED
    )


@pytest.mark.parametrize(
    ("raw", "is_cut"), [(TITLE, True), (f"{TITLE}</title>", False)], ids=["open", "closed"]
)
def test_extract_remarks_a_title_cut_by_the_token_limit(raw, is_cut):
    extraction = extract(raw, source=LOGIN, recipe=PLAIN, finish_reason="length")
    assert extraction.text == TITLE
    assert (Reason.CUT_OFF in [step.reason for step in extraction.why]) == is_cut


def test_extract_without_prefill_takes_the_last_opening_tag():
    recipe = dataclasses.replace(PLAIN, prefill="")
    assert (
        extract("so: a</title> <title>Flaky login test", source=LOGIN, recipe=recipe).text
        == "Flaky login test"
    )


def test_extract_rejects_an_example_of_the_prompt():
    recipe = dataclasses.replace(PLAIN, system='For instance "Weekend trip to the lake".')
    extraction = extract("Weekend trip to the lake.", source="bonjour, une recette de pain", recipe=recipe)
    assert extraction.rejected is Reason.COPIES_PROMPT_EXAMPLE
    assert extract("Weekend trip to the lake", source="weekend trip to the lake", recipe=recipe).text


def test_extract_remarks_a_copy_of_a_long_message():
    message = "The printer in the hall does not print since Monday. " * 3
    extraction = extract("The printer in the hall", source=message, recipe=PLAIN)
    assert extraction.text == "The printer in the hall"
    assert [step.reason for step in extraction.why] == [Reason.COPIES_FIRST_MESSAGE]


def test_explain_numbers_the_steps_with_text_before_and_after():
    why = extract("'Title: Weekly plan'", source="", recipe=PLAIN).why
    assert explain(why) == (
        """1. quotes: "'Title: Weekly plan'" became 'Title: Weekly plan'.\n"""
        """2. label: 'Title: Weekly plan' became 'Weekly plan'."""
    )
    assert explain(()) == "The reply was a title as it stood."
    assert "No title." in explain(extract("", source="", recipe=PLAIN).why)


def test_every_reason_has_an_explanation():
    assert all(reason.explanation.endswith(".") for reason in Reason)


replies = st.text(max_size=300) | st.lists(
    st.sampled_from(
        ["<title>", "</title>", "<think>", "</think>", "`", "```", "**", "_", '"', "'", "“", "”", "{", '{"title": "', "}", "#",
         "- ", "1. ", "Title: ", "\n", " ", ".", "…", "<b>", "</b>", "<", ">", "/>", "测试", "Fix ", "OAuth", "x" * 90, "\\ud800", '"}', "\x00",
         "\ud800", "Sure, here is a title: ", "[a](/b)"]
    ),
    max_size=14,
).map("".join)  # fmt: skip


@settings(deadline=None)
@given(raw=replies, source=st.text(max_size=200) | st.just(LOGIN), finish=st.sampled_from(["stop", "length"]))
@example(raw="\ud800", source="\udfff", finish="stop")
def test_extract_never_fails_and_keeps_the_limits(raw, source, finish):
    extraction = extract(raw, source=source, recipe=PLAIN, finish_reason=finish)
    title = extraction.text
    if title is None:
        assert extraction.rejected is not None and extraction.why[-1].after is None
        return
    assert title == title.strip() != ""
    assert "\n" not in title
    assert len(title) <= PLAIN.max_chars
    assert count_words(title) <= PLAIN.max_words
    assert "</title" not in title.casefold() or "</title" in source.casefold()
    title.encode()


@settings(deadline=None)
@given(raw=replies, source=st.text(max_size=60))
def test_clean_twice_is_clean_once(raw, source):
    once = clean(raw, source)
    assert clean(once, source) == once


@settings(deadline=None)
@given(raw=replies)
def test_extract_leaves_its_own_title_alone(raw):
    title = extract(raw, source=LOGIN, recipe=PLAIN).text
    if title is not None:
        again = extract(title, source=LOGIN, recipe=PLAIN)
        assert again.text == title or again.rejected is not None


HUGE = {
    "words": "word " * 1_000_000,
    "open tags": "<title>" * 600_000,
    "open thinking": "<think>" * 600_000,
    "fences": "```" * 1_500_000,
    "quotes": '"' * 5_000_000,
    "braces": '{"a":' * 1_000_000,
    "brackets": "[" * 5_000_000,
    "stars": "**a" * 1_500_000,
    "less-than signs": "<a" * 2_000_000,
    "blank lines": "\n" * 5_000_000,
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", HUGE.values(), ids=HUGE)
def test_extract_copes_with_five_megabytes(text):
    assert isinstance(extract(text, source=text, recipe=PLAIN), Extraction)


def test_recipe_can_be_anything_with_limits():
    assert extract("Weekly plan", source="", recipe=Recipe(name="mine")).text == "Weekly plan"
