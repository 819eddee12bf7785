"""The models that this process has loaded, and how they leave.

A library that fails to release a model may hold on to half of it. No other model is loaded over what is left:
the next load asks for a restart.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, NamedTuple

from tinykit.errors import RestartNeededError

if TYPE_CHECKING:
    from tinykit.generation.engine import Engine
    from tinykit.generation.judging import Judge


class Resident(NamedTuple):
    """A loaded model. `size_bytes` are its weights and what is kept of earlier prompts."""

    model: str
    backend: str
    device: str
    dtype: str
    size_bytes: int


_lock = threading.Lock()
_runners: weakref.WeakKeyDictionary[Engine | Judge, str] = weakref.WeakKeyDictionary()
_poisoned: dict[str, str] = {}  # by library: what its failed release said


def loaded() -> tuple[Resident, ...]:
    """Every model that this process holds in memory, oldest first."""
    with _lock:
        held = list(_runners.items())
    return tuple(_resident(model, runner) for runner, model in held)


def _resident(model: str, runner: Engine | Judge) -> Resident:
    info = runner.backend.info
    cache = getattr(runner, "cache", None)  # a judge keeps nothing
    kept_bytes = 0 if cache is None else cache.size_bytes
    return Resident(model, info.backend, info.device, info.dtype, info.weights_bytes + kept_bytes)


def add(model: str, runner: Engine | Judge) -> None:
    """Count a model among the loaded ones until it is released or nobody holds it any more."""
    with _lock:
        _runners[runner] = model


def release(runner: Engine | Judge) -> None:
    """Release a model's memory. Whether that works or not, the model does not count as loaded afterwards.

    Raises:
        RestartNeededError: the library failed; nothing more can be loaded with it in this process.
    """
    library = runner.backend.info.backend
    try:
        runner.close()
    except Exception as error:
        said = " ".join((str(error) or type(error).__name__).split())
        with _lock:
            _poisoned[library] = said
        raise _restart_needed(library, said) from error
    finally:
        with _lock:
            _runners.pop(runner, None)


def require_sound(library: str) -> None:
    """Raise RestartNeededError if this library has failed to release a model."""
    said = _poisoned.get(library)
    if said is not None:
        raise _restart_needed(library, said)


def _restart_needed(library: str, said: str) -> RestartNeededError:
    return RestartNeededError(
        f"The {library} library failed to release a model ({said}): no other can be loaded in this process.",
        hint="Restart the kernel or the program.",
        backend=library,
    )
