"""A first step on a device, compared with the CPU's, before a model is trusted there.

A device may load a model and fail at its first step, or compute something else without saying so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinykit.backends.base import Backend, Logits
from tinykit.errors import DeviceError

_TOKENS = 12
# Two tokens this close, as a share of the spread of the CPU's logits, may change places by rounding alone.
_TIE = 0.02


def probe_ids(vocab_size: int) -> list[int]:
    """Token ids from all over the vocabulary."""
    return [n * vocab_size // _TOKENS for n in range(_TOKENS)]


def check_like(tested: Backend, trusted: Backend, token_ids: Sequence[int] | None = None) -> None:
    """Raise unless two backends with one model choose the same tokens: after a prompt, and one step later.

    Args:
        tested: The backend in doubt.
        trusted: The same weights on the CPU.
        token_ids: The prompt; by default tokens from all over the vocabulary.

    Raises:
        DeviceError: another token, logits that are not finite, or another vocabulary.
        BackendError: the step itself failed.
    """
    ids = list(token_ids or probe_ids(trusted.info.vocab_size))
    states = tested.new_state(), trusted.new_state()
    for piece in (ids[:-1], ids[-1:]):
        found = tested.forward(piece, states[0])[-1].copy()
        _compare(found, trusted.forward(piece, states[1])[-1], tested.info.device)


def _compare(found: Logits, expected: Logits, device: str) -> None:
    if found.shape != expected.shape:
        raise DeviceError(f"{device} gives {found.size:,} logits, the CPU {expected.size:,}.")
    if not np.isfinite(found).all():
        raise DeviceError(f"{device} computes logits that are not finite.")
    best, right = int(found.argmax()), int(expected.argmax())
    spread = float(expected.max() - expected.mean())
    if best != right and expected[right] - expected[best] > _TIE * spread:
        raise DeviceError(
            f"{device} computes something else: its next token is {best}, the CPU's is {right}."
        )
