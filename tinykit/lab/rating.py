"""Blind rating: which of two titles is better, asked of people who do not see what made them.

rating = lab.rate(run, "titles", "plain")
rating                    # in a notebook: buttons and keys
rating.ask()              # in a terminal
rating.press("1")         # from anywhere else
rating.results()
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from tinykit.errors import OptionError
from tinykit.lab.preferences import Preferences, pairs_of, preferences
from tinykit.lab.standing import Standing
from tinykit.lab.votes import FILE, Choice, Vote, append_vote, read_votes
from tinykit.plurals import counted

if TYPE_CHECKING:
    from tinykit.lab.runs import Run

KEYS: dict[str, tuple[Choice | None, str]] = {
    "1": ("left", "1 is better"),
    "2": ("right", "2 is better"),
    "0": ("tie", "equally good"),
    "x": ("both bad", "both bad"),
    "s": ("skip", "skip"),
    "u": (None, "undo"),
}
GUARD_S = 0.3  # a key that comes sooner than that after another one is a slip
_BLOCK = 4  # votes of a pair of variants in which each side has each of them equally often


@dataclass(frozen=True)
class Question:
    """What a rater is shown: a message and two titles, and not what made them."""

    message: str
    left: str
    right: str


class Rating:
    """Questions of one rater about the titles of a run, and the answers so far; what `lab.rate` returns.

    Each answer is on disk when `press` returns. A new `Rating` of the same run and rater goes on.

    Attributes:
        path: The file of the votes.
        rater: Who is asked.
        notes: What was found odd while reading the votes.
    """

    def __init__(self, run: Run, variants: Sequence[str], path: Path, rater: str) -> None:
        self._run = run
        self._variants = tuple(variants)
        self.path = path
        self.rater = rater
        self._titles = {variant: run.titles(variant) for variant in variants}
        self._messages = {case.id: case.message for case in run.cases}
        self._asked, self._identical = self._sorted_cases()
        standing, self.notes = self._read()
        self._votes = [vote for vote in standing if vote.rater == rater]
        self._standing = self._counted()
        self._last_key_s = -GUARD_S
        self._since_s = monotonic()

    def _sorted_cases(self) -> tuple[dict[tuple[str, str], list[str]], dict[tuple[str, str], int]]:
        """For each two variants the cases to ask about, in an order of chance, and how many are the same."""
        asked, identical = {}, {}
        for a, b in pairs_of(self._variants):
            common = [case for case in self._titles[a] if case in self._titles[b]]
            differing = [case for case in common if self._titles[a][case] != self._titles[b][case]]
            asked[a, b] = sorted(differing, key=_shuffled)
            identical[a, b] = len(common) - len(differing)
        return asked, identical

    def _read(self) -> tuple[list[Vote], list[str]]:
        """The votes of all raters on titles as they are now, and notes about others."""
        found, notes = read_votes(self.path)
        mine = [vote for vote in found if {vote.left, vote.right} <= set(self._variants)]
        fresh = [vote for vote in mine if self._is_fresh(vote)]
        if len(fresh) < len(mine):
            stale = len(mine) - len(fresh)
            verb = "is" if stale == 1 else "are"
            notes.append(f"{counted(stale, 'vote')} on titles that have changed since {verb} left out.")
        return fresh, notes

    def _is_fresh(self, vote: Vote) -> bool:
        titles = self._titles[vote.left], self._titles[vote.right]
        shown = (vote.title_left, vote.title_right)
        return all(
            vote.case in one and one[vote.case] == title for one, title in zip(titles, shown, strict=True)
        )

    @property
    def rated(self) -> int:
        """Pairs of titles that were answered, skipped ones too."""
        return len(self._votes)

    @property
    def total(self) -> int:
        """Pairs of titles that differ."""
        return sum(map(len, self._asked.values()))

    @property
    def question(self) -> Question | None:
        """What is to be answered now; None at the end."""
        found = self._next()
        if found is None:
            return None
        case, left, right = found
        titles = (self._titles[left][case], self._titles[right][case])
        return Question(self._messages[case], *(title or "(no title)" for title in titles))

    def press(self, key: str, *, guard_s: float | None = None) -> bool:
        """Answer by a key: ``1``, ``2``, ``0`` equally good, ``x`` both bad, ``s`` skip, ``u`` undo.

        Args:
            key: The key.
            guard_s: How soon after another key it is a slip; 0 for keys that nobody pressed.

        Returns:
            Whether it counted: not if it is no such key, if there is nothing to answer, or if it came within
            0.3 seconds of the one before, as when a key is pressed twice by mistake.
        """
        now_s = monotonic()
        if key not in KEYS or now_s - self._last_key_s < (GUARD_S if guard_s is None else guard_s):
            return False
        choice, _ = KEYS[key]
        done = self.undo() if choice is None else self.vote(choice)
        if done:
            self._last_key_s = now_s
        return done

    def vote(self, choice: Choice) -> bool:
        """Answer the question, at once and without a guard against slips; False if there is none.

        Raises:
            OptionError: there is no such answer.
        """
        if choice not in [known for known, _ in KEYS.values() if known]:
            raise OptionError(
                "An answer is left, right, tie, both bad or skip, "
                f"not {choice!r}.", name="choice", value=choice,
            )  # fmt: skip
        found = self._next()
        if found is None:
            return False
        case, left, right = found
        self._write(case, left, right, choice)
        return True

    def undo(self) -> bool:
        """Take back the last answer that stands, and ask again; False if there is none."""
        if not self._votes:
            return False
        last = self._votes[-1]
        self._write(last.case, last.left, last.right, "undo")
        return True

    def _write(self, case: str, left: str, right: str, choice: Any) -> None:
        now_s = monotonic()
        vote = Vote(
            case, left, right, self._titles[left][case], self._titles[right][case], choice, self.rater,
            round(now_s - self._since_s, 3), datetime.now(UTC).isoformat(timespec="seconds"),
        )  # fmt: skip
        append_vote(self.path, vote)
        self._since_s = now_s
        if choice == "undo":
            self._votes.pop()
        else:
            self._votes.append(vote)
        self._standing = self._counted()

    def _counted(self) -> Standing:
        return Standing(self._variants, self._asked, self._votes)

    @property
    def can_stop(self) -> bool:
        """Whether more answers would change nothing: all is said, settled, or cannot be settled any more."""
        return self._standing.stop_reason is not None

    @property
    def status(self) -> str:
        """How far it is, without a word of who is ahead."""
        same = sum(self._identical.values())
        told = f"{self.rated} of {self.total} rated"
        told += f" ({same} identical, not asked)" if same else ""
        reason = self._standing.stop_reason
        if reason is not None:
            return f"{told}; can stop: yes, {reason}"
        more = self._standing.votes_to_go
        return f"{told}; can stop: no, undecided" + (
            f", about {counted(more, 'more vote')} like these" if more else ""
        )

    def results(self) -> Preferences:
        """What all raters' votes say; this tells who is who."""
        votes, notes = self._read()
        return preferences(self._variants, votes, self._asked, self._identical, notes)

    def ask(self, **options: Any) -> None:
        """Ask in the terminal, key by key, until all is rated or ``q`` is pressed."""
        from tinykit.lab.asking import ask

        ask(self, **options)

    def _next(self) -> tuple[str, str, str] | None:
        """The case and the variants, left and right, of the question; the same until it is answered."""
        if self._standing.next is None:
            return None
        pair, case = self._standing.next
        return case, *self._sides(pair)

    def _sides(self, pair: tuple[str, str]) -> tuple[str, str]:
        """Who is left: by chance, and in every four votes of a pair each of them twice."""
        count = self._standing.answered(pair)
        chance = random.Random(f"{self.rater}|{'|'.join(pair)}|{count // _BLOCK}")
        turns = [False, True] * (_BLOCK // 2)
        chance.shuffle(turns)
        return (pair[1], pair[0]) if turns[count % _BLOCK] else pair

    def text(self) -> str:
        """The question and how far it is, as plain text."""
        question = self.question
        if question is None:
            return f"{self.status}\nresults() tells which is which."
        keys = ", ".join(f"{key} {name}" for key, (_, name) in KEYS.items())
        return (
            f"{self.status}\n\n{question.message}\n\n1  {question.left}\n2  {question.right}\n\nKeys: {keys}"
        )

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Rating by {self.rater}: {self.status}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Buttons and keys in a notebook, text elsewhere."""
        # late, and in this direction alone: the widgets know nothing of the lab
        from tinykit.widgets import RatingView

        return RatingView(self)._repr_mimebundle_(include, exclude)


def _shuffled(case: str) -> bytes:
    return hashlib.sha256(case.encode("utf-8", "backslashreplace")).digest()


def rate(run: Run, *variants: str, out: str | Path | None = None, rater: str = "me") -> Rating:
    """Ask somebody which titles are better, without telling what made them.

    Titles that are the same are not asked about and count as ties. Called again, it goes on where it was.

    Args:
        run: The run.
        variants: Two or more of its variants; all if none is named. Of several, those are asked about whose
            order is least clear.
        out: File of the votes; by default `votes.jsonl` in the run's folder.
        rater: Who is asked; the votes of each rater stand beside those of the others.

    Raises:
        OptionError: there is no such variant, or only one.
    """
    names = [run.plan.variant(name).label for name in variants or run.variants]
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise OptionError(
            f"Rating takes two or more different variants, not {', '.join(names)}.",
            hint=f"The run has {', '.join(run.variants)}.",
            name="variants",
            value=names,
        )
    path = Path(out).expanduser() if out is not None else run.path / FILE
    return Rating(run, names, path, rater)
