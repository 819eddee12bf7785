"""Votes on disk: one line of JSON each, appended the moment it is given.

Nothing is ever rewritten. What takes a vote back is a line of its own, so the file tells the whole story, and
a process that is killed loses nothing that was pressed.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

from tinykit.lab.cases import json_bytes

Choice = Literal["left", "right", "tie", "both bad", "skip"]
_Kind = Literal["left", "right", "tie", "both bad", "skip", "undo"]
FILE = "votes.jsonl"


@dataclass(frozen=True)
class Vote:
    """What somebody said of two titles, or that they took it back.

    Attributes:
        case: The case's id.
        left, right: The variants, as they were shown.
        title_left, title_right: Their titles; None for none.
        choice: ``left`` or ``right`` is better, ``tie``, ``both bad``, ``skip``; ``undo`` takes back what
            this rater said of the case and these variants.
        rater: Who.
        seconds: From when the two were shown.
        at: When, UTC.
    """

    case: str
    left: str
    right: str
    title_left: str | None
    title_right: str | None
    choice: _Kind
    rater: str
    seconds: float
    at: str

    @property
    def winner(self) -> str | None:
        """The variant that was preferred."""
        return {"left": self.left, "right": self.right}.get(self.choice)

    @property
    def says_something(self) -> bool:
        """Whether it counts: a skipped pair does not."""
        return self.choice not in ("skip", "undo")

    @property
    def key(self) -> tuple[str, str, frozenset[str]]:
        """Of what there is one vote at most: a rater, a case, two variants."""
        return self.rater, self.case, frozenset((self.left, self.right))

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """A vote from plain values; names that this version does not know are left out.

        Raises:
            TypeError, KeyError, ValueError, AttributeError: it is no vote.
        """
        vote = cls(**{field.name: values[field.name] for field in fields(cls)})
        texts = (vote.case, vote.left, vote.right, vote.rater)
        if vote.choice not in get_args(_Kind) or not all(isinstance(text, str) for text in texts):
            raise ValueError("this is no vote")
        return vote


def read_votes(path: Path) -> tuple[list[Vote], list[str]]:
    """The votes that stand, oldest first, and notes about lines that are none."""
    standing: dict[tuple[str, str, frozenset[str]], Vote] = {}
    notes = []
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            vote = Vote.from_dict(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            notes.append(f"{path.name}, line {number}: not a vote, left out (cut off by a crash?)")
            continue
        standing.pop(vote.key, None)  # what is said again takes the place of what was said, as the last one
        if vote.choice != "undo":
            standing[vote.key] = vote
    return list(standing.values()), notes


def append_vote(path: Path, vote: Vote) -> None:
    """Write a vote, and hand it to the system at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a crash cut off the line before: it must not spoil this one
                file.write(b"\n")
        file.write(json_bytes(asdict(vote)))
        file.flush()
        os.fsync(file.fileno())
