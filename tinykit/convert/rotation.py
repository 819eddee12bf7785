"""Weights in another basis, in which activations have no outliers and so can be rounded to 8 bits.

A decoder computes the same if its residual stream is rotated, each matrix that reads it takes the rotation
back and each that adds to it rotates what it adds; the gains of norms move into the matrices behind them.
A few huge channels then become many of ordinary size. The idea: QuaRot, https://arxiv.org/abs/2404.00456
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tinykit.convert.checkpoint import Architecture, Checkpoint, Floats, Packed
from tinykit.errors import UnsupportedModelError

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
SLAB = 4096  # rows that are worked on at once
_OUTPUTS = ("conv.out_proj",)  # besides those that a family names


def hadamard(size: int) -> Floats:
    """The orthogonal matrix of that size, a power of two, whose entries all have the same magnitude."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.sqrt(size), np.float32)


def power_of_two_in(size: int) -> int:
    """The largest power of two that divides `size`."""
    return size & -size


def spread(x: Floats, block: int) -> Floats:
    """Rotate each block of the last axis by a Hadamard matrix, which is its own inverse."""
    parts = np.matmul(x.reshape(*x.shape[:-1], -1, block), hadamard(block))
    return np.asarray(parts.reshape(x.shape), np.float32)


class Rotation:
    """An orthogonal matrix of any size that mixes all channels; applied by its factors, which is quick.

    The same on every machine: a Hadamard matrix for the power of two in the size, cosines for the rest, and
    signs that keep channels which are large together from meeting in one.
    """

    def __init__(self, size: int) -> None:
        self._block = power_of_two_in(size)
        others = size // self._block
        row, column = np.mgrid[:others, :others]
        cosines = np.cos(np.pi * (column + 0.5) * row / others) * np.sqrt(2 / others)
        cosines[0] /= np.sqrt(2)
        self._cosines: Floats = cosines.astype(np.float32)
        self._signs: Floats = np.where(_coin_flips(size), np.float32(1), np.float32(-1))

    def __call__(self, x: Floats, gains: Floats | None = None) -> Floats:
        """Rotate along the last axis; each channel is multiplied by its gain before."""
        factors = self._signs if gains is None else self._signs * gains
        rows = x.reshape(-1, x.shape[-1])
        rotated = np.empty_like(rows)
        for start in range(0, len(rows), SLAB):  # an embedding takes hundreds of megabytes at once
            part = slice(start, start + SLAB)
            spreads = spread(rows[part] * factors, self._block).reshape(-1, len(self._cosines), self._block)
            mixed = np.einsum("rmp,mn->rnp", spreads, self._cosines, optimize=True)
            rotated[part] = mixed.reshape(-1, x.shape[-1])
        return rotated.reshape(x.shape)


def _coin_flips(count: int) -> npt.NDArray[np.bool_]:
    """A fixed sequence that looks random; a generator of numpy might change between versions."""
    state, flips = 1, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        flips.append(state >> 30 == 1)
    return np.array(flips)


def can_rotate(architecture: Architecture) -> bool:
    """Whether no norm lies between a matrix and the residual stream that it adds to."""
    return not (architecture.names.after_attention or architecture.names.after_ffn)


class RotatedCheckpoint:
    """A checkpoint whose weights compute the same in a rotated basis, without gains in the norms that it had.

    The output head becomes a matrix of its own, since the last norm's gains belong to it and not to the
    embeddings.

    Raises:
        UnsupportedModelError: norms between a matrix and the residual stream, which a rotation cannot pass.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        arch = checkpoint.architecture
        if not can_rotate(arch):
            raise UnsupportedModelError(
                f"Models of the family {arch.family} cannot be imported as w8a8 because of their norms.",
                hint='Import it as dtype="q8".',
            )
        self.architecture: Architecture = replace(arch, tied_embeddings=False)
        self._source = checkpoint
        self._is_tied = arch.tied_embeddings
        self._rotated = Rotation(arch.hidden)
        self._head_block = power_of_two_in(arch.head_dim)

    def __contains__(self, name: str) -> bool:
        return name in self._source or name == _HEAD

    def packed(self, name: str) -> Packed | None:
        """None: no block of the source is left as it was."""
        return None

    def rope_divisors(self) -> Floats | None:
        """The source's."""
        return self._source.rope_divisors()

    def floats(self, name: str) -> Floats:
        """The tensor in the rotated basis."""
        names = self.architecture.names
        if name == _EMBEDDING:
            return self._rotated(self._source.floats(name))
        if name == _HEAD:
            table = self._source.floats(_EMBEDDING if self._is_tied else _HEAD)
            return self._reading(table, names.last_norm)
        values = self._source.floats(name)
        if name == f"{names.last_norm}.weight":
            return np.ones_like(values)
        _, _, layer, part = name.split(".", 3)
        return self._of_layer(f"model.layers.{layer}", part, values)

    def _of_layer(self, prefix: str, part: str, values: Floats) -> Floats:
        names = self.architecture.names
        module, _, kind = part.rpartition(".")
        if module in (names.input_norm, names.ffn_norm):
            return np.ones_like(values)
        if module == "self_attn.v_proj":
            values = self._turned(values)
        if kind == "bias":
            return self._rotated(values) if module in _OUTPUTS else values
        if module in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "conv.in_proj"):
            return self._reading(values, f"{prefix}.{names.input_norm}")
        if module in (names.gate, names.up):
            return self._reading(values, f"{prefix}.{names.ffn_norm}")
        if module == names.output:
            values = spread(values, self._head_block)
        if module in (names.output, names.down, *_OUTPUTS):
            return np.ascontiguousarray(self._rotated(np.ascontiguousarray(values.T)).T)
        return values

    def _reading(self, matrix: Floats, norm: str) -> Floats:
        """A matrix that reads the residual stream through that norm."""
        return self._rotated(matrix, self._source.floats(f"{norm}.weight"))

    def _turned(self, values: Floats) -> Floats:
        """The rows of a value projection, or its bias, rotated within each head."""
        columns = values.reshape(len(values), -1).T
        return np.ascontiguousarray(spread(np.ascontiguousarray(columns), self._head_block).T).reshape(
            values.shape
        )
