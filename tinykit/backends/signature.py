"""Find a decoder graph's states from its own inputs and outputs, whatever the family."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tinykit.errors import UnsupportedModelError

KEEP_INPUTS = frozenset({"num_logits_to_keep", "logits_to_keep"})  # how many rows of logits are wanted
CONTROL_INPUTS = KEEP_INPUTS | {
    "input_ids",
    "attention_mask",
    "position_ids",
    "cache_position",
    "use_cache_branch",
}
_DTYPES = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


class Port(Protocol):
    """An input or output as onnxruntime describes it."""

    name: str
    type: str
    shape: Sequence[int | str | None]


@dataclass(frozen=True)
class StateHints:
    """What a model's configuration says about states that the graph leaves open.

    Attributes:
        sizes: Size of a symbolic dimension, for instance the head size for ``kv_cache_dim``.
        windows: Tokens that a ring buffer holds, by name of its input. Such a state has a fixed size.
        presents: Name of the output that carries a state on, by name of its input.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    windows: Mapping[str, int] = field(default_factory=dict)
    presents: Mapping[str, str] = field(default_factory=dict)


NO_HINTS = StateHints()


@dataclass(frozen=True)
class StatePort:
    """One state tensor: read from `past`, written to `present`.

    `shape` is its shape before the first token; `growth_axis` is the axis that has one entry per token, or
    None for a state of fixed size (convolution, SSM, ring buffer) that each step replaces.
    """

    past: str
    present: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    growth_axis: int | None

    @property
    def bytes_per_token(self) -> int:
        """Memory that one token adds; 0 for a state of fixed size."""
        if self.growth_axis is None:
            return 0
        others = (size for axis, size in enumerate(self.shape) if axis != self.growth_axis)
        return math.prod(others) * self.dtype.itemsize


def numpy_dtype(port: Port) -> np.dtype[np.generic]:
    """The numpy type of a port."""
    try:
        return np.dtype(_DTYPES[port.type])
    except KeyError:
        raise UnsupportedModelError(f"The graph's {port.name} has the type {port.type}.") from None


def find_states(
    inputs: Sequence[Port], outputs: Sequence[Port], hints: StateHints = NO_HINTS
) -> tuple[StatePort, ...]:
    """The states of a decoder graph.

    Raises:
        UnsupportedModelError: an input that is neither known nor a state, or a state of unknown size.
    """
    by_name = {port.name: port for port in outputs}
    return tuple(_state(port, by_name, hints) for port in inputs if port.name not in CONTROL_INPUTS)


def present_name(past: str, outputs: Mapping[str, object], hints: StateHints = NO_HINTS) -> str | None:
    """The output that carries the state input `past` on, or None if there is none."""
    renamed = (("past_key_values", "present"), ("past", "present"), ("past", "present_key_values"))
    guesses = [hints.presents.get(past, ""), *(past.replace(old, new, 1) for old, new in renamed)]
    return next((guess for guess in guesses if guess != past and guess in outputs), None)


def _state(port: Port, outputs: Mapping[str, Port], hints: StateHints) -> StatePort:
    present = present_name(port.name, outputs, hints)
    if present is None:
        more = " (a multimodal decoder?)" if port.name == "inputs_embeds" else ""
        raise UnsupportedModelError(f"The graph has an input {port.name!r} that tinykit cannot feed{more}.")
    shape, growth_axis = _initial_shape(port, outputs[present], hints)
    return StatePort(port.name, present, numpy_dtype(port), shape, growth_axis)


def _initial_shape(past: Port, present: Port, hints: StateHints) -> tuple[tuple[int, ...], int | None]:
    shape: list[int] = []
    growth_axis = None
    window = hints.windows.get(past.name)
    for axis, (before, after) in enumerate(zip(past.shape, present.shape, strict=True)):
        if isinstance(before, int) and before > 0:
            shape.append(before)
        elif axis == 0:
            shape.append(1)  # batch
        elif before in hints.sizes:
            shape.append(hints.sizes[str(before)])
        elif growth_axis is None and (before != after or re.search("past|seq|len", str(before))):
            growth_axis = axis
            shape.append(window or 0)
        else:
            raise UnsupportedModelError(
                f"The size of axis {axis} ({before}) of the state {past.name} is unknown."
            )
    return tuple(shape), None if window else growth_axis
