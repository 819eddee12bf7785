"""Which families of models can be trained; more of them can be imported."""

from __future__ import annotations

from typing import Final

from tinykit.convert.checkpoint import Checkpoint
from tinykit.convert.families import Family
from tinykit.errors import UnsupportedModelError

TRAINABLE: Final[tuple[Family, ...]] = ("llama", "qwen2", "qwen3")  # whose layers `Decoder` computes


def require_trainable(checkpoint: Checkpoint) -> None:
    """Raise UnsupportedModelError for a family whose layers are not computed in training."""
    family = checkpoint.architecture.family
    if family not in TRAINABLE:
        raise UnsupportedModelError(
            f"A model of family {family!r} cannot be tuned; known are {', '.join(TRAINABLE)}.",
            hint="Choose another base: tinykit models",
            path=getattr(checkpoint, "path", None),
            family=family,
        )
