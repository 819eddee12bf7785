"""How far a rater is: what to ask next, whether the order is settled, how many votes it would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from tinykit.lab.bradley_terry import can_settle, is_settled, strengths, votes_needed
from tinykit.lab.votes import Vote

Pair = tuple[str, str]
_WARM_UP = 3  # votes of each pair before their order is looked at


class Standing:
    """The votes of one rater, counted once.

    Args:
        variants: What is compared.
        asked: For each two of them the cases to ask about, in the order of asking.
        votes: What stands.
    """

    def __init__(
        self, variants: Sequence[str], asked: Mapping[Pair, Sequence[str]], votes: Sequence[Vote]
    ) -> None:
        self._variants = tuple(variants)
        self._asked = asked
        names = {frozenset(pair): pair for pair in asked}
        self._done: dict[Pair, set[str]] = {pair: set() for pair in asked}
        self._tally = {pair: [0, 0, 0] for pair in asked}  # first preferred, second preferred, said anything
        for vote in votes:
            pair = names[frozenset((vote.left, vote.right))]
            self._done[pair].add(vote.case)
            tally = self._tally[pair]
            tally[2] += vote.says_something
            if vote.winner:
                tally[pair.index(vote.winner)] += 1

    def answered(self, pair: Pair) -> int:
        """How many questions about two variants were answered, skipped ones too."""
        return len(self._done[pair])

    @cached_property
    def next(self) -> tuple[Pair, str] | None:
        """Two variants and a case: of pairs whose order is not settled, the least asked one."""
        open_pairs = [pair for pair in self._asked if self._left(pair)]
        if not open_pairs:
            return None
        telling = [pair for pair in self.unsettled if pair in open_pairs]
        pair = min(telling or open_pairs, key=self.answered)
        return pair, next(case for case in self._asked[pair] if case not in self._done[pair])

    @cached_property
    def unsettled(self) -> list[Pair]:
        """Pairs whose order is open: neighbors in the order so far; at first all."""
        fresh = [p for p in self._asked if sum(self._tally[p][:2]) < _WARM_UP and self._left(p)]
        return [pair for pair in fresh or self._neighbors() if not self._is_settled(pair)]

    @cached_property
    def stop_reason(self) -> str | None:
        """Why more answers would change nothing; None while they may."""
        if self.next is None:
            return "all is rated" if self.unsettled else "all is rated and the order is settled"
        if not self.unsettled:
            return "the order is settled"
        if not any(self._can_settle(pair) for pair in self.unsettled):
            return "what is left cannot settle it"
        return None

    @cached_property
    def votes_to_go(self) -> int | None:
        """About how many more votes would settle the order; None if they are too many, or too few so far."""
        total = 0
        for pair in self.unsettled:
            wins, losses, said = self._tally[pair]
            more = votes_needed(wins, losses, len(self._asked))
            if more is None or more > self._left(pair):
                return None
            total += round(more * said / (wins + losses))  # ties take votes too
        return total or None

    def _left(self, pair: Pair) -> int:
        return len(self._asked[pair]) - len(self._done[pair])

    def _is_settled(self, pair: Pair) -> bool:
        wins, losses, _ = self._tally[pair]
        return is_settled(wins, losses, len(self._asked), is_complete=not self._left(pair))

    def _can_settle(self, pair: Pair) -> bool:
        wins, losses, _ = self._tally[pair]
        return can_settle(wins, losses, self._left(pair), len(self._asked))

    def _neighbors(self) -> list[Pair]:
        at = {variant: index for index, variant in enumerate(self._variants)}
        wins = np.zeros((len(at), len(at)))
        for (a, b), (won, lost, _) in self._tally.items():
            wins[at[a], at[b]], wins[at[b], at[a]] = won, lost
        logs = strengths(wins)
        order = sorted(self._variants, key=lambda variant: -logs[at[variant]])
        near = {frozenset(two) for two in pairwise(order)}
        return [pair for pair in self._asked if frozenset(pair) in near]
