"""Which phrases of a prompt does a model hand back, when a message gives it little to work with?

Tiny models do so most, and with examples above all. The probes are messages of our own that are about
nothing in particular, or about something that no prompt mentions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from tinykit.lab.overlap import prompt_examples, tokens
from tinykit.lab.plan import Target
from tinykit.lab.rows import Row
from tinykit.lab.running import run as make_run
from tinykit.lab.runs import Run
from tinykit.lab.tables import Table, Tabular
from tinykit.plurals import counted
from tinykit.recipes import Recipe, get_recipe
from tinykit.wordlists import SMALL_WORDS

PROBES = (
    "can you do the same as last time but a bit different",
    "it happened again, what now?",
    "please take a look and tell me what you think",
    "zxcv lorem blah foo bar 7",
    "i need an idea",
    "and the other one?",
    "what would you do in my place",
    "fix it so that it works like before",
    "our parrot imitates the doorbell at five in the morning",
    "how thick must ice be to carry a tractor",
    "the violin's bridge leans toward the fingerboard",
    "which side of a coin falls up more often",
)
_MIN_WORDS = 2


@dataclass(frozen=True, repr=False)
class CopyBait(Tabular):
    """What of a prompt came back.

    Attributes:
        phrases: Phrases of the prompt, with how many of the replies had them, most frequent first.
        run: The replies.
    """

    recipe: str
    phrases: tuple[tuple[str, int], ...]
    replies: int
    copied: int
    run: Run

    @property
    def share(self) -> float:
        """Share of the replies that had a phrase of the prompt."""
        return self.copied / self.replies if self.replies else 0.0

    def table(self) -> Table:
        """Phrases down."""
        rows = [[phrase, f"{count} of {self.replies}"] for phrase, count in self.phrases]
        said = f"{self.copied} of {counted(self.replies, 'reply', 'replies')} to messages about nothing much"
        caption = f"{self.recipe}: {said} hand back words of the prompt"
        notes = [] if rows else ["No phrase of the prompt came back."]
        return Table(caption, ["phrase of the prompt", "replies"], rows, notes, is_text=True)


def copy_bait(
    recipe: str | Path | Recipe,
    *,
    model: str | Path | Target | None = None,
    probes: Sequence[str] = PROBES,
    **options: Any,
) -> CopyBait:
    """Ask a recipe about messages that say little, and see what of its prompt comes back.

    Args:
        recipe: The recipe.
        model: What is asked.
        probes: The messages.
        options: As for `lab.run`.
    """
    chosen = get_recipe(recipe)
    target = Target() if model is None else model
    run = make_run(list(probes), [chosen], [target], baseline=False, **options)
    messages = {case.id: case.message for case in run.cases}
    asked = [row for row in run.rows if row.asked_model]
    found = [_copied(row, messages[row.case], chosen) for row in asked]
    counts = Counter(phrase for phrases in found for phrase in set(phrases))
    return CopyBait(chosen.name, tuple(counts.most_common()), len(asked), sum(map(bool, found)), run)


def _copied(row: Row, message: str, recipe: Recipe) -> list[str]:
    """The phrases of the prompt in a reply that its message does not have."""
    reply, known = tokens(row.raw), f" {' '.join(tokens(message))} "
    texts = (recipe.system, recipe.template.replace("{message}", "\n"))
    examples = {" ".join(tokens(example)) for example in prompt_examples(texts)}
    lines = [tokens(line) for text in texts for line in text.split("\n")]
    found = []
    at = 0
    while at < len(reply):
        length = max((_run_at(reply, at, line) for line in lines), default=0)
        phrase = " ".join(reply[at : at + length])
        is_word = any(word not in SMALL_WORDS for word in reply[at : at + length])
        if is_word and f" {phrase} " not in known and (length >= _MIN_WORDS or phrase in examples):
            found.append(phrase)
        at += max(1, length)
    return found


def _run_at(reply: list[str], at: int, line: list[str]) -> int:
    """Words that a reply, from a place on, has in common with any part of a line."""
    rest = reply[at:]
    best = 0
    for start in range(len(line)):
        pairs = zip(rest, line[start:], strict=False)
        best = max(best, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return best
