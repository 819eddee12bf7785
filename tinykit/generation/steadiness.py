"""Whether a model's logits are the same to the last bit, whichever way its tokens go in: tried, not assumed.

Kernels for one row and for many may add in another order. What quantization does with such a difference can
be large enough to change a word.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tinykit.backends.base import Backend, State

_LENGTHS = (2, 9, 5)  # tokens that the rows have seen when they meet
_STEPS = 3


def rows_are_exact(backend: Backend) -> bool:
    """Whether each row of a batch gets what it would get alone; takes about a dozen steps."""
    if not backend.info.can_batch:
        return False
    tokens = [[(7 * row + 3 * at) % backend.info.vocab_size for at in range(12)] for row in range(3)]
    states = [_fed(backend, ids[:length]) for ids, length in zip(tokens, _LENGTHS, strict=True)]
    batch = backend.new_batch()
    for state in states:
        batch.add(state)
    for step in range(_STEPS):
        alone = [
            backend.forward([ids[9 + step]], s)[-1].copy() for ids, s in zip(tokens, states, strict=True)
        ]
        if not np.array_equal(batch.forward([ids[9 + step] for ids in tokens]), np.stack(alone)):
            return False
    return True


def _fed(backend: Backend, token_ids: Sequence[int]) -> State:
    state = backend.new_state()
    backend.forward(token_ids, state)
    return state
