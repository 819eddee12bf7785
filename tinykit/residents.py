"""The models that this process has loaded, who holds them, and how they leave.

Sessions that ask for the same model in the same way share its weights: the first opens it, the last to let go
releases it, and they take turns with it. What a session keeps of its prompts is its own.

A library that fails to release a model may hold on to half of it. No other model is loaded over what is left:
the next load asks for a restart.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from tinykit.errors import RestartNeededError
from tinykit.generation.turns import Turns

if TYPE_CHECKING:
    from tinykit.generation.engine import Engine
    from tinykit.generation.judging import Judge


T = TypeVar("T")
_LARGE_BYTES = 2**24  # weights whose memory is worth some milliseconds to give back


class Resident(NamedTuple):
    """A loaded model. `size_bytes` are its weights and what its sessions keep of earlier prompts."""

    model: str
    backend: str
    device: str
    dtype: str
    size_bytes: int
    sessions: int = 1


class _Place(Generic[T]):
    """Where a model is in memory, or will be once somebody has opened it."""

    def __init__(self) -> None:
        self.door = threading.RLock()  # held to open and to release it
        self.turns = Turns()  # who steps next
        self.parts: T | None = None
        self.leases: weakref.WeakSet[Lease[T]] = weakref.WeakSet()  # not of sessions that were dropped


class Lease(Generic[T]):
    """A hold on a model: its parts, and the turns to take for a step of it."""

    def __init__(self, place: _Place[T], parts: T, close: Callable[[T], object]) -> None:
        self.parts = parts
        self.turns = place.turns
        self._place = place
        self._close = close

    def release(self) -> None:
        """Let go; the model is released with the last hold on it. Twice is harmless."""
        place = self._place
        with place.door:
            is_mine = self in place.leases
            place.leases.discard(self)
            if is_mine and not place.leases:
                place.parts = None
                self._close(self.parts)


_lock = threading.Lock()
_runners: weakref.WeakKeyDictionary[Engine | Judge, tuple[str, str]] = weakref.WeakKeyDictionary()
_places: weakref.WeakValueDictionary[Hashable, _Place[Any]] = weakref.WeakValueDictionary()
_poisoned: dict[str, str] = {}  # by library: what its failed release said


def share(
    key: Hashable, library: str, open_parts: Callable[[], T], close_parts: Callable[[T], object]
) -> Lease[T]:
    """A hold on the model of this key, which is opened now if nobody has it open.

    Whoever asks for it meanwhile waits; an opening that fails is forgotten.

    Args:
        key: All that makes a difference to the open model.
        library: What it is opened with.
        open_parts: Opens it.
        close_parts: Releases it, once nobody holds it any more.

    Raises:
        RestartNeededError: this library has failed to release a model.
    """
    with _lock:
        place: _Place[T] = _places.setdefault(key, _Place())
    with place.door:
        require_sound(library)
        if place.parts is None:
            place.parts = open_parts()
        lease = Lease(place, place.parts, close_parts)
        place.leases.add(lease)
        return lease


def loaded() -> tuple[Resident, ...]:
    """Every model that this process holds in memory, oldest first."""
    with _lock:
        held = list(_runners.items())
    models: dict[int, list[Engine | Judge]] = {}
    for runner, _ in held:
        models.setdefault(id(runner.backend), []).append(runner)
    names = {id(runner): model for runner, (model, _) in held}
    return tuple(_resident(names[id(runners[0])], runners) for runners in models.values())


def _resident(model: str, runners: list[Engine | Judge]) -> Resident:
    info = runners[0].backend.info
    caches = [getattr(runner, "cache", None) for runner in runners]  # a judge keeps nothing
    kept_bytes = sum(cache.size_bytes for cache in caches if cache is not None)
    size_bytes = info.weights_bytes + kept_bytes
    return Resident(model, info.backend, info.device, info.dtype, size_bytes, len(runners))


def add(model: str, runner: Engine | Judge, library: str) -> None:
    """Count a model among the loaded ones until it is released or nobody holds it any more.

    Args:
        model: Its key.
        runner: What was opened.
        library: What it was opened with, by the name that `share` was given. What the backend of another
            package says of itself may be something else.
    """
    with _lock:
        _runners[runner] = model, library


def release(runner: Engine | Judge) -> None:
    """Let go of a model, and release its memory if nobody else in this process holds it.

    Whether that works or not, it does not count as loaded by this session afterwards.

    Raises:
        RestartNeededError: the library failed; nothing more can be loaded with it in this process.
    """
    _, library = _runners.get(runner, ("", runner.backend.info.backend))
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
    if runner.backend.info.weights_bytes >= _LARGE_BYTES:
        give_back()


def give_back() -> None:
    """Return freed memory to the system. glibc would keep most of it for what comes next."""
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):  # other C libraries do not have it
            ctypes.CDLL(None).malloc_trim(0)


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
