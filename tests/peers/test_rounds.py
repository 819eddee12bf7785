from dataclasses import replace

from tests.peers.conftest import scripted
from tinykit.peers.process import Place
from tinykit.peers.rounds import Rounds

MESSAGES = {"short": ("a b c", "d e f", "g h i", "j k l"), "long": ("m n", "o p")}


def rounds(peers, say=lambda text: None):
    return Rounds(peers, {name: Place("") for name in peers}, MESSAGES, threads=1, say=say)


def test_every_engine_titles_every_message_in_both_ways():
    said = []
    measured = rounds({"one": scripted(), "two": replace(scripted(), only_titles=True)}, said.append)
    measured.titles(2)
    figures = measured.figures
    kinds = {(s.engine, s.length, s.mode, s.message) for s in figures.samples}
    assert len(kinds) == len(figures.samples) == 2 * 6 + 6  # the second has titles alone
    assert not figures.of("two", "short", "fix8")
    assert {name: len(times) for name, times in figures.cold_s.items()} == {"one": 2, "two": 2}
    assert figures.peak_bytes.keys() == {"one", "two"} and len(figures.others) == 4
    begun = [line.split(": ")[1].split(",")[0] for line in said]
    assert begun == ["one", "two", "two", "one"]  # interleaved, another one first


def test_an_engine_that_fails_is_left_out_and_the_others_go_on():
    said = []
    measured = rounds({"bad": scripted(fails="load"), "good": scripted()}, said.append)
    measured.titles(2)
    assert measured.figures.failed == {"bad": "bad failed: RuntimeError: no such weights"}
    assert measured.figures.engines() == ["good"] and len(measured.figures.cold_s["good"]) == 2
    assert sum("no such weights" in line for line in said) == 1


def test_batches_leave_out_who_cannot():
    peers = {
        "one": scripted(), "single": replace(scripted(), can_batch=False),
        "extra": replace(scripted(), only_titles=True),
    }  # fmt: skip
    measured = rounds(peers)
    measured.batches(["a b", "c d", "e f"], {1: 2, 2: 3})
    assert {(one.engine, one.batch) for one in measured.figures.batches} == {
        ("one", 1),
        ("one", 2),
        ("single", 1),
    }
    assert all(one.titles_per_s > 0 for one in measured.figures.batches)
