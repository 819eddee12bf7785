"""chrF against sacrebleu, ROUGE-L and copies by hand, in every script."""

import itertools

import pytest
from sacrebleu.metrics import CHRF

from tinykit.lab import datasets, overlap
from tinykit.lab.datasets import Case
from tinykit.lab.rows import Row
from tinykit.recipes import Recipe


def test_chrf_is_sacrebleus():
    groups = [case.references for case in datasets.titles() if case.references]
    titles = [references[-1] for references in groups[::5]] + ["x", "東京", "a  b", "ab" * 40]
    for title, references in itertools.product(titles, groups[::4]):
        ours = overlap.chrf(Case("a", "b", references=references), title)
        assert ours == pytest.approx(CHRF().sentence_score(title, list(references)).score / 100, abs=1e-12)


TOKENS = {
    "Don't re-run CI!": ["don't", "re", "run", "ci"],
    "東京の旅": ["東", "京", "の", "旅"],
    "iPhoneの電池": ["iphone", "の", "電", "池"],
    "Ｆｕｌｌ Straße": ["full", "strasse"],
    "파이썬 오류": ["파이썬", "오류"],
    "": [],
}


@pytest.mark.parametrize(("text", "words"), TOKENS.items(), ids=map(repr, TOKENS))
def test_tokens(text, words):
    assert overlap.tokens(text) == words


ROUGE = {
    "the same, Chinese": ("东京三日游", "东京三日游", 1.0),
    "the same, Russian": ("Ошибка входа", "ошибка входа", 1.0),
    "half": ("flat bread", "flat rye", 0.5),
    "order counts": ("bread flat", "flat bread", 0.5),
    "subsequence": ("fix the red door", "fix door", 2 * 2 / 6),
    "nothing": ("a b", "c d", 0.0),
    "no title": (None, "c d", 0.0),
}


@pytest.mark.parametrize(("title", "reference", "value"), ROUGE.values(), ids=ROUGE)
def test_rouge_l(title, reference, value):
    assert overlap.rouge_l(Case("a", "b", references=("zzz", reference)), title) == pytest.approx(value)


BREAD = Case("bread", "My rye bread comes out flat, what can I do?")


def test_copy_ratio_and_novel_words():
    assert overlap.copy_ratio(BREAD, "Rye bread comes out flat") == 1
    assert overlap.copy_ratio(BREAD, "Flat rye bread") == pytest.approx(2 / 3)
    assert overlap.copy_ratio(BREAD, None) is None
    assert overlap.novel_words(BREAD, "Flat breads of rye") == 0  # other forms are not new
    assert overlap.novel_words(BREAD, "Flat sourdough bread") == pytest.approx(1 / 3)
    assert overlap.novel_words(BREAD, "of the") is None


EXAMPLES = Recipe("r", system='Write a title like "Fixing a leaky tap".\n- Plan for a trip to Rome', template="{message}\n<title>Short title</title>")  # fmt: skip


def test_prompt_examples_are_what_is_quoted_tagged_or_listed():
    found = overlap.prompt_examples([EXAMPLES.system, EXAMPLES.template])
    assert found == ["Fixing a leaky tap", "Plan for a trip to Rome", "Short title"]


COPIES = {
    "an example": ("Fixing a leaky tap", 1),
    "most of it": ("Plan for a trip to Rome now", 1),
    "its own": ("Flat rye bread", 0),
    "no title": (None, None),
}


@pytest.mark.parametrize(("title", "value"), COPIES.values(), ids=COPIES)
def test_copies_prompt(title, value):
    row = Row("k", "bread", "r", 0, "r", "title", title)
    assert overlap.copies_prompt(BREAD, row, EXAMPLES) == value


def test_what_the_message_says_too_is_no_copy_of_the_prompt():
    case = Case("tap", "fixing a leaky tap, how?")
    assert (
        overlap.copies_prompt(case, Row("k", "tap", "r", 0, "r", "title", "Fixing a leaky tap"), EXAMPLES)
        == 0
    )
    assert overlap.copies_prompt(case, Row("k", "tap", "r", 0, "r", "title", "x y"), Recipe("none")) is None
