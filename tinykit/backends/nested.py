"""Arrays and numbers inside other people's cache objects, each with the way to it.

A way is made of attribute names and indices joined by dots: ``0.keys`` is the attribute of the first layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tinykit.backends.base import Array
from tinykit.errors import ModelFileError

GROWING = ("keys", "values")
_TOKEN_AXIS = 2  # of keys and values: (1, heads, tokens, head size)
_COUNTS = ("offset", "cumulative_length")  # tokens that a cache has seen
_CURSORS = ("_idx",)  # where a ring buffer goes on


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every array and whole number; flags, texts and what is not there are left out."""
    if value is None or isinstance(value, (bool, str)):
        return
    if isinstance(value, int) or hasattr(value, "shape"):
        yield place, value
        return
    for name, child in _children(value):
        yield from leaves(child, f"{place}.{name}" if place else str(name))


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if isinstance(value, dict):
        return list(value.items())
    return list(vars(value).items()) if hasattr(value, "__dict__") else []


def get_at(value: Any, place: str) -> Any:
    """What a way leads to."""
    for name in place.split("."):
        if isinstance(value, dict):
            value = value[name] if name in value else value[int(name)]
        else:
            value = value[int(name)] if isinstance(value, (list, tuple)) else getattr(value, name)
    return value


def put_at(value: Any, place: str, new: Any) -> None:
    """Put something at the end of a way that exists."""
    owner, _, name = place.rpartition(".")
    holder = get_at(value, owner)
    if isinstance(holder, list):
        holder[int(name)] = new
    elif isinstance(holder, dict):
        holder[name if name in holder else int(name)] = new
    else:
        setattr(holder, name, new)


def check_fits(
    arrays: Mapping[str, Array],
    length: int,
    example: Mapping[str, Array],
    is_plain: Callable[[str], bool],
) -> None:
    """Raise unless what was saved can be the state of a model after `length` tokens.

    Args:
        arrays: What was saved, by place; numbers are arrays without axes.
        length: Tokens that it is the state of.
        example: A state of the same model after some other tokens.
        is_plain: Whether the cache at a place has one key for each token.

    Raises:
        ModelFileError: places, shapes or types differ.
    """
    places = arrays.keys() | example.keys()
    wrong = sorted(place for place in places if not _fits(place, arrays, length, example, is_plain))
    if length < 1 or wrong:
        raise ModelFileError(
            f"The saved state is not one of this model: {', '.join(wrong[:3]) or 'its length'} differs.",
            hint="Restore it with the model and precision that it was saved with.",
        )


def _fits(
    place: str,
    arrays: Mapping[str, Array],
    length: int,
    example: Mapping[str, Array],
    is_plain: Callable[[str], bool],
) -> bool:
    if place not in arrays or place not in example:
        return False
    found, wanted = arrays[place], example[place]
    owner, _, name = place.rpartition(".")
    if found.dtype != wanted.dtype or found.ndim != wanted.ndim:
        return False
    if found.ndim == 0:
        return int(found) == length if name in _COUNTS else name in _CURSORS or bool(found == wanted)
    if name not in GROWING or found.ndim <= _TOKEN_AXIS:
        return found.shape == wanted.shape
    sizes = [tuple(np.delete(array.shape, _TOKEN_AXIS)) for array in (found, wanted)]
    return sizes[0] == sizes[1] and (not is_plain(owner) or found.shape[_TOKEN_AXIS] == length)
