"""What an MLX model remembers, in mlx-lm's own caches.

Caches are read through their attributes: arrays, numbers and further caches, whatever the kind of layer. All
of it happens on the thread of MLX.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tinykit.backends.base import Array
from tinykit.backends.nested import GROWING, check_fits, get_at, leaves, put_at
from tinykit.errors import BackendError

Call = Callable[[Callable[[], Any]], Any]


class MlxState:
    """The caches of all layers after `length` tokens.

    Args:
        caches: One for each layer.
        call: Runs something on the thread of MLX.
        length: Tokens they have seen.
    """

    def __init__(self, caches: list[Any], call: Call, length: int = 0) -> None:
        self.caches = caches
        self._call = call
        self.length = length

    @property
    def size_bytes(self) -> int:
        """Memory held."""
        return sum(array.nbytes for array in arrays_of(self.caches))

    @property
    def can_truncate(self) -> bool:
        """Whether every cache can be cut; a sliding window cannot once it is full."""
        if all(is_plain(cache) for cache in self.caches):
            return True
        can: bool = self._call(lambda: all(cache.is_trimmable() for cache in self.caches))
        return can

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate {self.length} tokens to {length}")
        if length < self.length:
            self._call(lambda: self._trim(length))
            self.length = length

    def copy(self, length: int | None = None) -> MlxState:
        """An independent copy of the first `length` tokens' state (all of it by default)."""
        length = self.length if length is None else length
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot copy {length} of {self.length} tokens")

        def copied() -> MlxState:
            twin = MlxState(copy.deepcopy(self.caches), self._call, self.length)
            if length < self.length:
                twin._trim(length)
                twin.length = length
            twin._fit()
            return twin

        found: MlxState = self._call(copied)
        return found

    def dump(self) -> dict[str, Array]:
        """The arrays and numbers of all caches by place; keys and values hold `length` tokens."""
        found: dict[str, Array] = self._call(lambda: dumped(self.caches))
        return found

    def _trim(self, length: int) -> None:
        if not self.can_truncate:
            raise BackendError("This model has recurrent states or a full window: it cannot be rolled back.")
        for cache in self.caches:
            cache.trim(self.length - length)

    def _fit(self) -> None:
        """Give back the room behind the tokens that are kept."""
        import mlx.core as mx

        for cache in self.caches:
            if is_plain(cache) and cache.keys is not None:
                for name in GROWING:
                    kept = getattr(cache, name)[..., : cache.offset, :]
                    setattr(cache, name, mx.contiguous(kept) if cache.offset else None)
        mx.eval(list(arrays_of(self.caches)))


def arrays_of(caches: list[Any]) -> Iterator[Any]:
    """Every array that the caches hold."""
    return (value for _, value in leaves(caches) if not isinstance(value, int))


def spare_of(caches: list[Any]) -> list[Any]:
    """What it takes to go back to now: how far growing caches reach, and copies of the others.

    A growing cache is not copied, since what lies behind its end is never read.
    """
    return [cache.offset if is_plain(cache) else copy.deepcopy(cache) for cache in caches]


def restored(caches: list[Any], spare: list[Any]) -> list[Any]:
    """The caches as they were when `spare_of` was called."""
    for cache, kept in zip(caches, spare, strict=True):
        if is_plain(cache):
            cache.offset = kept
    return [cache if is_plain(cache) else kept for cache, kept in zip(caches, spare, strict=True)]


def is_plain(cache: Any) -> bool:
    """Whether a cache is keys and values that grow with each token."""
    return type(cache).__name__ == "KVCache"


def dumped(caches: list[Any]) -> dict[str, Array]:
    """Arrays by place; numbers are arrays without axes. Half floats of Google's kind are 16 bits each."""
    import mlx.core as mx

    found: dict[str, Array] = {}
    for place, value in leaves(caches):
        if not isinstance(value, mx.array):
            found[place] = np.array(int(value), np.int64)
            continue
        value = _used(caches, place, value)
        found[place] = np.array(value.view(mx.uint16) if value.dtype == mx.bfloat16 else value)
    return found


def fill(caches: list[Any], arrays: Mapping[str, Array], length: int, example: Mapping[str, Array]) -> None:
    """Put what `dumped` gave back into fresh caches.

    Args:
        caches: Those of a state without tokens.
        arrays: What was dumped.
        length: Tokens that it is the state of.
        example: What this model's caches dump after some tokens.

    Raises:
        ModelFileError: names, shapes or types are not those of this model.
    """
    import mlx.core as mx

    check_fits(arrays, length, example, lambda place: is_plain(get_at(caches, place)))
    for place, value in arrays.items():
        found: Any = int(value) if value.ndim == 0 else mx.array(value)
        if value.dtype == np.uint16:
            found = found.view(mx.bfloat16)
        put_at(caches, place, found)


def _used(caches: list[Any], place: str, value: Any) -> Any:
    owner, _, name = place.rpartition(".")
    cache = get_at(caches, owner)
    return value[..., : cache.offset, :] if name in GROWING and is_plain(cache) else value
