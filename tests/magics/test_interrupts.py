"""Ctrl-C at every place of the magics: the cell fails with it, and the same cell works when it is run again."""

from pathlib import Path

import pytest

import tinykit
from tests.interrupting import interrupted

WATCHED = (str(Path(tinykit.__file__).parent / "magics"),)


def outcome(ran):
    """Without what was shown on the way, and without times."""
    return ran.error, ran.texts[-1:], type(ran.value)


# every fifth place, to be quick
@pytest.mark.parametrize(
    "code",
    [
        "%title -r plain -o kept --show plan a trip to Lisbon",
        "%title -r plain -o kept --show {{messages}}",
        "%tiny --max-tokens 4 -o kept --show Name a color.",
        "%tiny --max-tokens 4 -o kept --show {{messages}}",
        "%tiny --max-tokens 4 --chat talk Name a color.",
        "%%tiny_eval -r first-words\nplan a trip to Lisbon\nhello",
        "%tiny info",
        "%tiny use -r first-words",
    ],
    ids=["title", "titles", "answer", "answers", "chat", "eval", "info", "use"],
)
def test_interrupt_anywhere_fails_the_cell_and_the_next_one_works(notebook, code):
    notebook.names["messages"] = ["plan a trip to Lisbon", "name a color"]

    def fresh():
        notebook.names["talk"] = []
        return notebook.run(code)

    expected, at, found = outcome(fresh()), 0, []
    assert expected[0] is None
    while True:
        at += 5
        # before the cell begins it comes out of IPython itself
        come, error = interrupted(at, lambda: found.append(fresh()), WATCHED)
        if not come:
            break
        place = f"place {at}, in {come[0]}"
        if come[0] != "Screen._begin":  # where IPython tells of a cell, and holds back what is raised
            assert isinstance(error or found[-1].error, KeyboardInterrupt), place
        assert len(notebook.names["talk"]) in (0, 2), place  # no half of an exchange
        assert outcome(fresh()) == expected, place
    assert at > 50
