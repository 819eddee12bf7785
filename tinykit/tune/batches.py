"""Examples in batches, and their loss."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tinykit.tune.decoder import Decoder, KeysValues
from tinykit.tune.lora import Tensor
from tinykit.tune.prompts import Example

_JITTER_TOKENS = 12  # lengths are blurred by this much, so that no two epochs have the same batches
_KEPT_BYTES = 2**30


def batches(examples: Sequence[Example], size: int, *, seed: int, epoch: int) -> list[list[int]]:
    """Indices of all examples in random batches of about equal length."""
    source = random.Random(seed * 1000 + epoch)
    blurred = [len(e.prompt) + len(e.answer) + source.random() * _JITTER_TOKENS for e in examples]
    order = sorted(range(len(examples)), key=blurred.__getitem__)
    found = [order[start : start + size] for start in range(0, len(order), size)]
    source.shuffle(found)
    return found


@dataclass(frozen=True)
class Batch:
    """Examples side by side.

    `token_ids` has shape (examples, tokens), padded at the ends; `rows` are the places in its flattened
    form where an answer's token is to be said, `labels` those tokens.
    """

    token_ids: Tensor
    rows: Tensor
    labels: Tensor


def collate(examples: Sequence[Example]) -> Batch:
    """Put examples side by side."""
    width = max(len(example.token_ids) for example in examples)
    token_ids = torch.zeros(len(examples), width, dtype=torch.long)
    rows: list[int] = []
    labels: list[int] = []
    for index, example in enumerate(examples):
        token_ids[index, : len(example.token_ids)] = torch.tensor(example.token_ids)
        start = index * width + len(example.prompt) - 1
        rows += range(start, start + len(example.answer))
        labels += example.answer
    return Batch(token_ids, torch.tensor(rows), torch.tensor(labels))


class LowerStates:
    """The states below the first adapted layer, kept from epoch to epoch up to a limit of memory.

    They are rounded to 16 bits, always, so that it makes no difference whether they were kept.
    """

    def __init__(self, decoder: Decoder, limit_bytes: int = _KEPT_BYTES) -> None:
        self._decoder = decoder
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        self._kept: dict[Example, Tensor] = {}

    def get(self, examples: Sequence[Example], token_ids: Tensor, prefix: list[KeysValues]) -> Tensor:
        """States of shape (examples, tokens, hidden)."""
        if self._decoder.first_layer == 0:
            return self._decoder.lower(token_ids, prefix)
        rows = [self._kept[example] for example in examples if example in self._kept]
        if len(rows) < len(examples):
            states = self._decoder.lower(token_ids, prefix)
            rows = [_rounded(row[: len(e.token_ids)]) for row, e in zip(states, examples, strict=True)]
            self._keep(examples, rows)
        return torch.nn.utils.rnn.pad_sequence([row.float() for row in rows], batch_first=True)

    def _keep(self, examples: Sequence[Example], rows: Sequence[Tensor]) -> None:
        for example, row in zip(examples, rows, strict=True):
            size_bytes = row.numel() * row.element_size()
            if example not in self._kept and self._size_bytes + size_bytes <= self._limit_bytes:
                self._kept[example] = row
                self._size_bytes += size_bytes


def _rounded(states: Tensor) -> Tensor:
    """In half precision, but where a value is too large for it."""
    rounded = states.half()
    return rounded if bool(torch.isfinite(rounded).all()) else states.clone()


def summed_loss(
    decoder: Decoder, prefix_ids: Sequence[int], examples: Sequence[Example], lower: LowerStates
) -> tuple[Tensor, int]:
    """The summed loss over the answers' tokens, and how many there are."""
    batch = collate(examples)
    prefix = decoder.prefix(prefix_ids)
    states = lower.get(examples, batch.token_ids, prefix)
    logits = decoder.upper(states, prefix, batch.rows)
    loss = torch.nn.functional.cross_entropy(logits, batch.labels, reduction="sum")
    return loss, len(batch.labels)
