"""How to train, and what a training has left behind."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tinykit.errors import OptionError

# What must be the same for a training to be taken up again.
_FIXED = ("rank", "alpha", "first_layer", "learning_rate", "batch_size", "seed")


@dataclass(frozen=True)
class TrainingOptions:
    """Settings of a training.

    Attributes:
        minutes: Wall time at most, the checks in between included; None for no limit.
        epochs: Times that each pair is seen, if the time allows.
        rank: Rank of the adapter.
        alpha: The adapter's part is multiplied by ``alpha / rank``.
        first_layer: The layers below get no adapter, which saves time.
        learning_rate: Of AdamW, at its highest.
        batch_size: Pairs in a step.
        threads: Parts of a batch that are computed at the same time.
        seed: Of the adapter's beginning and of the order of the pairs.
    """

    minutes: float | None = 20
    epochs: float = 3
    rank: int = 16
    alpha: float = 32
    first_layer: int = 0
    learning_rate: float = 1e-3
    batch_size: int = 8
    threads: int = 1
    seed: int = 1

    def __post_init__(self) -> None:
        for name, least in {"rank": 1, "first_layer": 0, "batch_size": 1, "threads": 1, "seed": 0}.items():
            value = getattr(self, name)
            if not isinstance(value, int) or not _is_number(value, above=least - 1):
                raise _wrong(name, value, f"a whole number from {least}")
        for name in ("epochs", "alpha", "learning_rate", "minutes"):
            value = getattr(self, name)
            if not (name == "minutes" and value is None) and not _is_number(value, above=0):
                raise _wrong(name, value, "a number above 0")

    def fixed(self) -> dict[str, Any]:
        """The settings that may not change when a training is taken up again."""
        return {name: value for name, value in asdict(self).items() if name in _FIXED}


@dataclass(frozen=True)
class Check:
    """What a training looked like at one moment.

    Attributes:
        step: Steps so far.
        seconds: Training time so far.
        train_loss: Running mean over the last steps.
        held_out_loss: On the pairs that the best state is chosen by; None if there are none.
    """

    step: int
    seconds: float
    train_loss: float
    held_out_loss: float | None


def _is_number(value: object, *, above: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > above


def _wrong(name: str, value: object, wanted: str) -> OptionError:
    return OptionError(f"{name} must be {wanted}, not {value!r}.", name=name, value=value)
