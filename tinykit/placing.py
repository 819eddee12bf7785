"""Try the devices of a plan until one runs the model; say which did, and why others did not."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from tinykit.devices import CPU, Attempt, Failure, Plan, explain
from tinykit.errors import (
    BackendError,
    DeviceError,
    DeviceFallbackWarning,
    MissingPackageError,
    ModelFileError,
    RestartNeededError,
    SourceError,
    TinykitError,
)
from tinykit.failures import FailureMemory

T = TypeVar("T")
_PACKAGE = Path(__file__).parent
# what another device may do better; a wrong option or an unknown model is wrong everywhere
_ELSEWHERE = (BackendError, ModelFileError, SourceError, MissingPackageError, ImportError, OSError)


@dataclass(frozen=True)
class Placed(Generic[T]):
    """What was opened, where, and what was tried before."""

    opened: T
    attempt: Attempt
    failures: tuple[Failure, ...]


def place(
    plan: Plan,
    open_on: Callable[[Attempt], T],
    *,
    model: str,
    dtype: str,
    memory: FailureMemory,
    fallback: bool = True,
) -> Placed[T]:
    """The model on the first device that runs it.

    Args:
        plan: What to try.
        open_on: Opens the model, and raises if a device does not run it.
        model: The model's key, for the memory.
        dtype: The precision, for the memory.
        memory: What failed lately is not tried again, but for the CPU; what works is forgotten there.
        fallback: False raises where the CPU would be used in place of what was asked for.

    Raises:
        DeviceError: nothing of the plan works, or only the CPU and `fallback` is False.
        TinykitError: the error of the CPU, if it was the last to try.
    """
    failures = list(plan.skipped)
    attempts = plan.attempts if fallback or not plan.is_a_wish else _wished(plan)
    for attempt in attempts:
        is_last = fallback and attempt == plan.attempts[-1]
        known = None if is_last else memory.find(model, _label(attempt), dtype)
        if known is not None:
            found = explain(attempt, known.reason)
            failures.append(found._replace(reason=f"failed before: {found.reason}"))
            continue
        try:
            opened = open_on(attempt)
        except RestartNeededError:
            raise
        except _ELSEWHERE as error:
            if is_last:
                _add_notes(error, failures)
                raise
            failure = explain(attempt, error)
            failures.append(failure)
            memory.add(model, _label(attempt), dtype, failure.reason)
            continue
        memory.clear(model, _label(attempt))
        placed = Placed(opened, attempt, tuple(failures))
        _warn(plan, placed)
        return placed
    raise DeviceError(
        f"{model} does not run on {plan.asked}: {_reasons(failures)}",
        hint=_remedy(failures) or "Leave out fallback=False to run on the CPU.",
        asked=plan.asked,
        failures=tuple(failures),
    )


def _wished(plan: Plan) -> tuple[Attempt, ...]:
    """The attempts that are an answer to what was asked."""
    if plan.asked == CPU.name:
        return tuple(one for one in plan.attempts if one.backend == plan.backend)
    return tuple(one for one in plan.attempts if one.device != CPU)


def _label(attempt: Attempt) -> str:
    """The device as the memory of failures has it: with the library where that is not the usual one."""
    usual = attempt.backend == attempt.device.backends[0]
    return attempt.device.name if usual else f"{attempt.device.name}/{attempt.backend}"


def _warn(plan: Plan, placed: Placed[T]) -> None:
    """One warning if the answer is not what was asked for, or if a device that is here has failed."""
    is_answer = placed.attempt in _wished(plan) if plan.is_a_wish else True
    tried = len(placed.failures) > len(plan.skipped)
    if is_answer and not tried:
        return
    used, backend = placed.attempt.device.name, placed.attempt.backend
    remedy = _remedy(placed.failures)
    warnings.warn(
        DeviceFallbackWarning(
            f"{_asked(plan)} was asked for, {used} ({backend}) is used. {_reasons(placed.failures)}"
            + (f". {remedy}" if remedy else ""),
            asked=plan.asked,
            used=used,
            failures=placed.failures,
        ),
        stacklevel=_caller_level(),
    )


def _caller_level() -> int:
    """How many frames it is from the caller of this function to the user's line that asked for a model."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(_PACKAGE):
        level, frame = level + 1, frame.f_back
    return level


def _asked(plan: Plan) -> str:
    return plan.asked if plan.backend is None else f"{plan.asked} with {plan.backend}"


def _reasons(failures: Sequence[Failure]) -> str:
    return "; ".join(str(one) + (f" (missing: {one.library})" if one.library else "") for one in failures)


def _remedy(failures: Sequence[Failure]) -> str:
    package = next((one.package for one in failures if one.package), "")
    if package:
        return f"Install it with: pip install '{package}'"
    return next((one.remedy for one in failures if one.remedy), "")


def _add_notes(error: BaseException, failures: Sequence[Failure]) -> None:
    if failures and isinstance(error, TinykitError):
        error.add_note(f"Other devices were tried before. {_reasons(failures)}")
