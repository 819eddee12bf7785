import json
import unicodedata
from pathlib import Path

import pytest

from tinykit.lab import datasets
from tinykit.recipes import RECIPES
from tinykit.titles import has_task
from tinykit.tune.pairs import checked_pairs, read_pairs

TRAINING = Path(__file__).parents[2] / "training"
FILES = ("en", "other", "short", "more", "long")

pytestmark = pytest.mark.skipif(not TRAINING.is_dir(), reason="the folder training is not here")


@pytest.fixture(scope="module")
def pairs():
    return [pair for name in FILES for pair in read_pairs(TRAINING / "pairs" / f"{name}.jsonl")]


def test_pairs_are_fit_to_train_on_and_unique(pairs):
    assert checked_pairs(pairs, RECIPES["titles"]).left_out == {}


def test_datasheet_has_the_right_counts(pairs):
    text = (TRAINING / "README.md").read_text(encoding="utf-8")
    without = sum(pair.title is None for pair in pairs)
    assert f"| all | {len(pairs):,} | {without} |" in text
    assert f"{len({pair.category for pair in pairs})} different ones" in text


def test_no_message_is_a_title_case(pairs):
    cases = {" ".join(case.message.casefold().split()) for case in datasets.titles() if not case.expect_none}
    assert not [pair.message for pair in pairs if " ".join(pair.message.casefold().split()) in cases]


def test_every_title_can_be_asked_for(pairs):
    assert not [pair.message for pair in pairs if pair.title and not has_task(pair.message)]


def test_titles_are_in_the_house_style(pairs):
    titles = [pair.title for pair in pairs if pair.title]
    assert not [title for title in titles if len(title.split()) > 8 or title[-1] in ".。" or '"' in title]


def test_lines_hold_the_four_fields(pairs):
    for name in FILES:
        for line in (TRAINING / "pairs" / f"{name}.jsonl").read_text(encoding="utf-8").strip().split("\n"):
            row = json.loads(line)
            assert list(row) == ["message", "title", "language", "category"]
            assert row["title"] is None or unicodedata.is_normalized("NFC", row["title"])
