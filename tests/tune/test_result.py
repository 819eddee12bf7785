import json
from pathlib import Path

from tinykit.lab.datasets import Case
from tinykit.lab.metrics import score
from tinykit.tune.options import Check
from tinykit.tune.result import TuneResult

CASES = [
    Case("1", "fix my flaky login test", references=("Flaky login test",)),
    Case("2", "ok", expect_none=True),
]


def result(**more):
    scores = {
        "first words": score(CASES, ["Fix my flaky login test", None], metrics=["valid", "none_ok", "chrf"]),
        "new": score(CASES, ["Flaky login test", None], metrics=["valid", "none_ok", "chrf"]),
    }
    values = {
        "folder": Path("mine"),
        "base": "smollm2-135m",
        "recipe": "titles",
        "pairs": 1200,
        "steps": 450,
        "seconds": 90.0,
        "scores": scores,
        "history": (Check(450, 90.0, 1.5, 1.7),),
    }
    return TuneResult(**(values | more))


def test_table_has_a_row_for_each_way():
    assert result().table().splitlines() == [
        "             n  valid  none_ok   chrf",
        "first words  2  100.0    100.0   84.8",
        "new          2  100.0    100.0  100.0",
    ]


def test_text_says_what_was_done():
    lines = str(result(left_out={"duplicates": 3})).splitlines()
    assert lines[0] == "mine: 450 steps on 1,200 pairs in 1.5 min, 3 duplicates left out"
    assert len(lines) == 4


def test_repr_is_one_plain_line():
    assert repr(result()) == "<TuneResult 'mine': 450 steps on 1,200 pairs, chrF 100.0>"
    assert repr(result(scores={})) == "<TuneResult 'mine': 450 steps on 1,200 pairs>"


def test_what_a_notebook_shows_has_no_times_and_no_paths():
    class Printer:
        def text(self, text):
            self.shown = text

    printer = Printer()
    result(folder=Path("secret"))._repr_pretty_(printer, False)
    assert printer.shown.startswith("Adapter for smollm2-135m, trained on 1,200 pairs\n")
    assert "secret" not in printer.shown
    assert "min" not in printer.shown


def test_saved_result_is_plain_json_without_the_folder(tmp_path):
    result().save(tmp_path / "training" / "result.json")
    saved = json.loads((tmp_path / "training" / "result.json").read_text(encoding="utf-8"))
    assert "folder" not in saved
    assert saved["scores"]["new"]["overall"]["chrf"] == 100
    assert saved["history"] == [{"step": 450, "seconds": 90.0, "train_loss": 1.5, "held_out_loss": 1.7}]
