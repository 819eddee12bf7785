"""Keep the states of prompts that were computed, for the next prompt that begins like one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinykit.backends.base import Backend, State
from tinykit.generation.prefix_files import PrefixFiles

_WORTH_COPYING = 8  # tokens; computing fewer again costs less than copying their state


@dataclass
class _Kept:
    token_ids: tuple[int, ...]
    state: State
    is_answered: bool = False  # of a chat, not of a recipe or a choice


class PrefixCache:
    """States of earlier token sequences, bounded by bytes, the least recently used dropped first.

    `held_bytes` tells how much of the budget others have taken, `files` has states of earlier processes.
    """

    def __init__(
        self,
        backend: Backend,
        budget_bytes: int,
        held_bytes: Callable[[], int] = int,
        files: PrefixFiles | None = None,
    ) -> None:
        self._backend = backend
        self.budget_bytes = budget_bytes
        self._held_bytes = held_bytes
        self._files = files
        self._kept: list[_Kept] = []  # least recently used first

    @property
    def size_bytes(self) -> int:
        """Memory held by the states."""
        return sum(kept.state.size_bytes for kept in self._kept)

    @property
    def last(self) -> tuple[tuple[int, ...], State] | None:
        """The chat that was answered last, with its state."""
        answered = [(kept.token_ids, kept.state) for kept in self._kept if kept.is_answered]
        return answered[-1] if answered else None

    def take(
        self, prompt_ids: Sequence[int], *, prefix_tokens: int | None = None, is_copy: bool = False
    ) -> State:
        """A state that has seen a prefix of `prompt_ids`, shorter than the whole, for the caller to extend.

        A kept sequence that the prompt begins with is handed over; of one that only shares its first tokens
        the shared part is copied, so that the sequence itself stays. So does the state of exactly the first
        `prefix_tokens`, if it cannot be rolled back to them afterwards, and any with `is_copy`.
        """
        best, shared = self._longest(prompt_ids)
        if (
            prefix_tokens is not None
            and shared < prefix_tokens
            and self._has_read(prompt_ids[:prefix_tokens])
        ):
            best, shared = self._longest(prompt_ids)
        if best is not None and shared == len(best.token_ids):
            # a new list: a stream that the garbage collector closes right now may put its state here, too
            self._kept = [kept for kept in self._kept if kept is not best]
            if is_copy or (shared == prefix_tokens and not best.state.can_truncate):
                self._kept.append(best)  # now the most recently used
                return best.state.copy()
            return best.state
        if best is not None and shared >= _WORTH_COPYING and best.state.can_truncate:
            return best.state.copy(shared)
        return self._backend.new_state()

    def keep(self, token_ids: Sequence[int], state: State, *, is_answered: bool = False) -> None:
        """Keep `state`, which has seen exactly `token_ids`; `last` finds those of an answered chat."""
        if state.length != len(token_ids):
            raise ValueError(f"a state of {state.length} tokens was given with {len(token_ids)} token ids")
        ids = tuple(token_ids)
        self._kept = [kept for kept in self._kept if kept.token_ids != ids]
        room = self.budget_bytes - self._held_bytes()
        if ids and state.size_bytes <= room:  # a larger one would drive out all others
            self._kept.append(_Kept(ids, state, is_answered))
        self.shrink(room)

    def shrink(self, room_bytes: int) -> None:
        """Drop the states that were used longest ago, until the others fit."""
        while self._kept and self.size_bytes > room_bytes:
            del self._kept[0]

    def keep_prefix(self, token_ids: Sequence[int], state: State) -> None:
        """Keep a copy of the state of `token_ids`, the first that `state` has seen, unless it is there."""
        ids = tuple(token_ids)
        if not any(kept.token_ids == ids for kept in self._kept):
            self.keep(ids, state.copy(len(ids)))

    def is_apart(self, token_ids: Sequence[int], state: State, *, is_new: bool) -> bool:
        """Whether a recipe's prefix should be computed by itself: it is to be kept on disk, or copied.

        Those that cannot be rolled back to are copied. `is_new` says that nothing was computed yet.
        """
        return not state.can_truncate or (is_new and self._files is not None and self._files.lacks(token_ids))

    def passed(self, token_ids: Sequence[int], state: State, *, is_new: bool) -> None:
        """The state of such a prefix, computed by itself; `is_new` as before."""
        if not state.can_truncate:
            self.keep(token_ids, state.copy())
        if is_new and self._files is not None and self._files.lacks(token_ids):
            self._files.write(token_ids, state)

    def _has_read(self, token_ids: Sequence[int]) -> bool:
        state = self._files.read(token_ids) if self._files is not None else None
        if state is not None:
            self.keep(token_ids, state)
        return state is not None

    def clear(self) -> None:
        """Drop all states."""
        self._kept.clear()

    def _longest(self, prompt_ids: Sequence[int]) -> tuple[_Kept | None, int]:
        best, longest = None, 0
        for kept in self._kept:
            shared = shared_prefix(kept.token_ids, reusable(prompt_ids, kept.state))
            usable = shared == len(kept.token_ids) or kept.state.can_truncate
            if usable and shared >= longest and shared:
                best, longest = kept, shared
        return best, longest


def reusable(prompt_ids: Sequence[int], state: State) -> Sequence[int]:
    """The part of a prompt that need not be computed if `state` has seen it.

    At least the last token must yield logits. Two are computed where that is possible: attention over a
    single query token is done by other kernels, whose last bits differ, and what is kept must not change an
    answer.
    """
    return prompt_ids[: -2 if state.can_truncate and len(prompt_ids) > 1 else -1]


def shared_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences have in common at their start."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return min(len(a), len(b))
