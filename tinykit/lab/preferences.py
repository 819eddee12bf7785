"""What votes say: strengths with intervals, a verdict for each two variants, whether a side was favored."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from tinykit.charts import Interval, Intervals
from tinykit.lab.bradley_terry import half_wins, intervals, is_settled, p_of, strengths, votes_needed
from tinykit.lab.statistics import sign_test
from tinykit.lab.tables import Table, Tabular
from tinykit.lab.votes import Vote
from tinykit.plurals import counted


@dataclass(frozen=True)
class PairResult:
    """Two variants: how often each was preferred, case by case.

    Attributes:
        a, b: The variants.
        prefer_a, prefer_b, tied: Cases; with several raters, what most of them say.
        both_bad: Cases of `tied` where neither was liked.
        identical: Cases that were not asked about, because the titles are the same.
        unasked: Cases without an answer.
        p: Two-sided; it holds for whoever stops whenever they like, corrected for the number of pairs.
        more: About how many more votes would show the preference; None if they show none to speak of.
    """

    a: str
    b: str
    prefer_a: int
    prefer_b: int
    tied: int
    both_bad: int
    identical: int
    unasked: int
    p: float
    is_decided: bool
    more: int | None

    @property
    def winner(self) -> str | None:
        """The preferred variant, if that is shown."""
        if not self.is_decided:
            return None
        return self.a if self.prefer_a > self.prefer_b else self.b

    @property
    def verdict(self) -> str:
        """What can be said, in words."""
        tally = f"{self.prefer_a} to {self.prefer_b}"
        if self.winner is not None:
            return f"{self.winner} preferred ({tally})"
        if not self.prefer_a + self.prefer_b:
            return "undecided: nothing was preferred"
        if self.more is None:
            return f"undecided ({tally}): no preference to speak of"
        return f"undecided ({tally}): about {counted(self.more, 'more vote')} like these would show it"

    def cells(self) -> list[str]:
        """As a row of a table."""
        return [
            self.a, self.b, str(self.prefer_a), str(self.tied), str(self.prefer_b), str(self.both_bad),
            str(self.identical), "<0.001" if self.p < 0.001 else f"{self.p:.3f}", self.verdict,
        ]  # fmt: skip


@dataclass(frozen=True)
class Strength:
    """A variant's Bradley-Terry strength, as a logarithm with a mean of 0, and its 95 % interval."""

    variant: str
    preferred: int
    tied: int
    not_preferred: int
    strength: float
    low: float
    high: float


@dataclass(frozen=True, repr=False)
class Preferences(Tabular):
    """What `Rating.results` returns.

    Attributes:
        strengths: The variants, the strongest first.
        pairs: Each two of them.
        left, right: How often the title of that side was preferred.
        skipped: Pairs about which nothing was said.
        raters: Who voted, and how often.
        agreed: Of cases that several rated, for how many they agree, and of how many.
    """

    strengths: tuple[Strength, ...]
    pairs: tuple[PairResult, ...]
    left: int
    right: int
    skipped: int
    raters: Mapping[str, int]
    agreed: tuple[int, int]
    notes: tuple[str, ...] = ()

    @property
    def side_p(self) -> float:
        """Two-sided p of the sign test of left against right."""
        return sign_test(self.left, self.right)

    @property
    def winner(self) -> str | None:
        """The strongest variant, if it is shown to be preferred to the next one."""
        first, second = (one.variant for one in self.strengths[:2])
        return first if self[first, second].winner == first else None

    def __getitem__(self, variants: tuple[str, str]) -> PairResult:
        """Two variants, in either order."""
        return next(pair for pair in self.pairs if {pair.a, pair.b} == set(variants))

    def table(self) -> Table:
        """The variants, the strongest first."""
        rows = [
            [
                one.variant, str(one.preferred), str(one.tied), str(one.not_preferred),
                f"{one.strength:.2f}", _interval_text(one),
            ]
            for one in self.strengths
        ]  # fmt: skip
        columns = ["", "preferred", "tied", "not preferred", "strength", "95 % interval"]
        votes = sum(self.raters.values())
        notes = [*(f"{pair.a} and {pair.b}: {pair.verdict}." for pair in self.pairs), *self._about()]
        return Table(
            f"What {counted(votes, 'vote')} of {counted(len(self.raters), 'rater')} prefer",
            columns,
            rows,
            notes,
        )

    def pair_table(self) -> Table:
        """Each two variants, with the verdict."""
        columns = ["a", "b", "prefer a", "tied", "prefer b", "both bad", "identical", "p", "verdict"]
        return Table("Cases by what is preferred", columns, [pair.cells() for pair in self.pairs])

    def plot(self) -> Intervals:
        """The strengths with their intervals; the winner's is filled."""
        rows = []
        for one in self.strengths:
            is_winner = one.variant == self.winner
            low, middle, high = (max(-_FAR, min(_FAR, x)) for x in (one.low, one.strength, one.high))
            note = "preferred" if is_winner else ""
            rows.append(Interval(one.variant, low, middle, high, note, is_winner))
        return Intervals(
            "Strength (Bradley-Terry, logarithm)", tuple(rows), digits=2, legend="preferred to the next one"
        )

    def _about(self) -> list[str]:
        decided = self.left + self.right
        share = f"{100 * self.left / decided:.0f} %" if decided else "-"
        shown = "a side is favored" if self.side_p < 0.05 else "no side is shown to be favored"
        found = [
            "Strength: Bradley-Terry, logarithm, a tie is half a win; the interval is by resampling cases. A "
            "verdict holds whenever one stops; ties say nothing in it.",
            f"Left was preferred {self.left} times of {decided} ({share}, p {self.side_p:.2f}): {shown}.",
        ]
        if self.skipped:
            found.append(f"{self.skipped} skipped.")
        if self.agreed[1]:
            found.append(f"Raters agree on {self.agreed[0]} of {self.agreed[1]} pairs that several rated.")
        return [*found, *self.notes]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; an interval of too few cases has no ends."""
        return {
            "winner": self.winner,
            "strengths": [
                {
                    name: None if value in (math.inf, -math.inf) else value
                    for name, value in asdict(one).items()
                }
                for one in self.strengths
            ],
            "pairs": [
                {**asdict(pair), "winner": pair.winner, "verdict": pair.verdict} for pair in self.pairs
            ],
            "sides": {"left": self.left, "right": self.right, "p": self.side_p},
            "skipped": self.skipped,
            "raters": dict(self.raters),
        }


_FAR = 20.0  # where a plot ends for those whose interval does not


def _interval_text(one: Strength) -> str:
    return f"{one.low:.2f} to {one.high:.2f}" if math.isfinite(one.low) else "-"


def preferences(
    variants: Sequence[str],
    votes: Sequence[Vote],
    asked: Mapping[tuple[str, str], Sequence[str]],
    identical: Mapping[tuple[str, str], int],
    notes: Sequence[str] = (),
) -> Preferences:
    """What votes say of variants.

    Args:
        variants: What was compared.
        votes: What was said; each vote is about two of them.
        asked: For each two, the cases whose titles differ.
        identical: For each two, how many cases have the same title.
        notes: Sentences to be shown too.
    """
    said = [vote for vote in votes if vote.says_something]
    by_pair = _by_pair(said)
    comparisons = len(asked)
    answered = {pair: len({v.case for v in votes if {v.left, v.right} == set(pair)}) for pair in asked}
    pairs = tuple(
        _pair(
            pair, by_pair.get(frozenset(pair), {}), len(cases) - answered[pair], identical[pair], comparisons
        )
        for pair, cases in asked.items()
    )
    sides = Counter(vote.choice for vote in said)
    several = [found for cases in by_pair.values() for found in cases.values() if len(found) > 1]
    agreed = sum(len({vote.winner for vote in found}) == 1 for found in several)
    return Preferences(
        _strengths(variants, by_pair, asked, identical, pairs),
        pairs, sides["left"], sides["right"],
        sum(vote.choice == "skip" for vote in votes),
        dict(Counter(vote.rater for vote in said)), (agreed, len(several)), tuple(notes),
    )  # fmt: skip


_ByPair = Mapping[frozenset[str], Mapping[str, Sequence[Vote]]]


def _by_pair(votes: Sequence[Vote]) -> _ByPair:
    found: dict[frozenset[str], dict[str, list[Vote]]] = defaultdict(lambda: defaultdict(list))
    for vote in votes:
        found[frozenset((vote.left, vote.right))][vote.case].append(vote)
    return found


def majority(votes: Sequence[Vote]) -> str | None:
    """The variant that more raters prefer; None for a tie."""
    counts = Counter(vote.winner for vote in votes if vote.winner).most_common(2)
    if not counts or (len(counts) > 1 and counts[0][1] == counts[1][1]):
        return None
    return counts[0][0]


def _pair(
    pair: tuple[str, str], cases: Mapping[str, Sequence[Vote]], unasked: int, same: int, comparisons: int
) -> PairResult:
    a, b = pair
    winners = Counter(majority(votes) for votes in cases.values())
    bad = sum(all(vote.choice == "both bad" for vote in votes) for votes in cases.values())
    wins, losses = winners[a], winners[b]
    return PairResult(
        a, b, wins, losses, winners[None], bad, same, unasked,
        min(1.0, comparisons * p_of(wins, losses, is_complete=not unasked)),
        is_settled(wins, losses, comparisons, is_complete=not unasked),
        votes_needed(wins, losses, comparisons),
    )  # fmt: skip


def _strengths(
    variants: Sequence[str],
    by_pair: _ByPair,
    asked: Mapping[tuple[str, str], Sequence[str]],
    identical: Mapping[tuple[str, str], int],
    pairs: Sequence[PairResult],
) -> tuple[Strength, ...]:
    at = {variant: index for index, variant in enumerate(variants)}
    wins = case_wins(at, by_pair)
    # who stops early has asked about a part of the differing cases; the identical ones count as such a part
    for pair in asked:
        share = len(by_pair.get(frozenset(pair), {})) / len(asked[pair]) if asked[pair] else 1.0
        tie = half_wins([(at[pair[0]], at[pair[1]], 0.5)], len(variants)) * share
        wins += [tie] * identical[pair]
    logs = strengths(sum(wins, np.zeros((len(variants), len(variants)))))
    spans = intervals(wins) if wins else [(-math.inf, math.inf)] * len(variants)
    found = []
    for variant, log, (low, high) in zip(variants, logs, spans, strict=True):
        counts = [(p.prefer_a, p.prefer_b) if p.a == variant else (p.prefer_b, p.prefer_a)
                  for p in pairs if variant in (p.a, p.b)]  # fmt: skip
        tied = sum(p.tied for p in pairs if variant in (p.a, p.b))
        won, lost = (sum(part) for part in zip(*counts, strict=True))
        found.append(Strength(variant, won, tied, lost, float(log), low, high))
    return tuple(sorted(found, key=lambda one: -one.strength))


def case_wins(at: Mapping[str, int], by_pair: _ByPair) -> list[Any]:
    """For each case a matrix of wins, in which several raters of a pair share one win."""
    cases: dict[str, list[tuple[int, int, float]]] = defaultdict(list)
    for pair, by_case in by_pair.items():
        one, other = sorted(pair, key=lambda name: at[name])
        for case, votes in by_case.items():
            share = sum(1.0 if v.winner == one else 0.5 if v.winner is None else 0.0 for v in votes)
            cases[case].append((at[one], at[other], share / len(votes)))
    return [half_wins(choices, len(at)) for choices in cases.values()]


def pairs_of(variants: Sequence[str]) -> list[tuple[str, str]]:
    """Each two variants, in their order."""
    return list(combinations(variants, 2))
