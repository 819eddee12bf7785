"""The runner that works here, in this process; and what a runner is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

from tinykit.lab.keys import asked_of, call_base, call_key, facts_of, machine
from tinykit.lab.plan import Cell, Job, Target, Variant
from tinykit.lab.rows import Row
from tinykit.progress import ProgressEvent
from tinykit.session import TinySession
from tinykit.titling import Title

Show = bool | Callable[[ProgressEvent], None] | None


@runtime_checkable
class Runner(Protocol):
    """Where titles are made: in this process, or in others. Rows are written by whoever called it."""

    def asked(self, target: Target) -> dict[str, Any]:
        """What tells, without loading, whether a target is still the same as in an earlier run."""
        ...

    def facts(self, target: Target) -> dict[str, Any]:
        """What a target's model is and runs on; it is loaded for that.

        Raises:
            TinykitError: it cannot be loaded.
        """
        ...

    def rows(self, jobs: Iterable[Job]) -> Iterator[Row]:
        """Rows as they are done, in any order; less than all of them after a cancel."""
        ...

    def close(self) -> None:
        """Release what was loaded."""
        ...


def open_session(target: Target, progress: Show = None) -> TinySession:
    """A session for a target, not yet loaded."""
    return TinySession(lazy=True, progress=progress, **target.options())


class LocalRunner:
    """Makes titles in this process, with one model loaded at a time."""

    def __init__(
        self, progress: Show = None, *, opener: Callable[[Target], TinySession] | None = None
    ) -> None:
        self._open = opener or (lambda target: open_session(target, progress))
        self._target: Target | None = None
        self._session: TinySession | None = None

    def asked(self, target: Target) -> dict[str, Any]:
        """What tells whether a target is still the same."""
        return asked_of(target, self._at(target).spec)

    def facts(self, target: Target) -> dict[str, Any]:
        """What a target's model is and runs on."""
        return facts_of(self._at(target))

    def rows(self, jobs: Iterable[Job]) -> Iterator[Row]:
        """Rows as they are done."""
        for job in jobs:
            target = job.variant.target
            session = self._at(target) if target else open_session(Target(), False)  # asked for no model
            found = 0
            for row in run_job(job, session):
                found += 1
                yield row
            if found < len(job.cells):
                return  # cancelled

    def close(self) -> None:
        """Release the model."""
        if self._session is not None:
            self._session.close()
        self._session = self._target = None

    def _at(self, target: Target) -> TinySession:
        if self._session is None or self._target != target:
            self.close()
            self._session, self._target = self._open(target), target
        return self._session


def run_job(job: Job, session: TinySession, *, contended: bool = False) -> Iterator[Row]:
    """The rows of a job as they are done; fewer than its cells if it was cancelled.

    Args:
        job: What to do.
        session: The model to do it with.
        contended: Whether other work of the run goes on at the same time.
    """
    started: list[float] = []

    def messages() -> Iterator[str]:
        for message in job.messages:
            started.append(time.perf_counter())
            yield message

    base = call_base(job.variant.recipe, job.facts, exact=job.exact, batch_size=job.batch_size)
    is_shared = contended or (job.batch_size > 1 and job.variant.target is not None)
    results = session.titles_as_done(
        messages(), recipe=job.variant.recipe, batch_size=job.batch_size, exact=job.exact
    )
    for index, title in results:
        elapsed_s = time.perf_counter() - started[index]
        if title.completion is not None and title.completion.finish_reason == "cancelled":
            return
        key = call_key(base, job.messages[index], job.cells[index].repeat)
        row = title_row(title, job.cells[index], job.variant, key, job.facts)
        yield replace(row, elapsed_s=round(elapsed_s, 5), batch_size=job.batch_size, contended=is_shared)


def title_row(title: Title, cell: Cell, variant: Variant, key: str, facts: dict[str, Any]) -> Row:
    """A title as a row."""
    identity, usage = facts["identity"], title.usage
    timings = title.completion.timings if title.completion is not None else None
    row = Row(
        key,
        cell.case,
        cell.variant,
        cell.repeat,
        variant.recipe.name,
        "failed" if title.error is not None else "title" if title.text else "no title",
        title.text,
        title.raw,
        tuple(step.reason.value for step in title.why),
        None if title.error is None else str(title.error),
        model=identity["model"],
        backend=identity.get("backend", ""),
        device=identity.get("device", ""),
        dtype=identity.get("dtype", ""),
        threads=facts.get("threads", 0),
        machine=machine()["id"],
        at=now(),
    )
    if usage is not None:
        row = replace(
            row,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            kv_reused_tokens=usage.kv_reused_tokens,
        )
    if timings is None:
        return row
    ttft_s = None if timings.ttft_s is None else round(timings.ttft_s, 5)
    return replace(
        row, ttft_s=ttft_s, prefill_s=round(timings.prefill_s, 5), decode_s=round(timings.decode_s, 5)
    )


def failed_row(cell: Cell, variant: Variant, error: Exception) -> Row:
    """The row of a title whose model could not be loaded."""
    return Row(
        "", cell.case, cell.variant, cell.repeat, variant.recipe.name, "failed", why=("failed",),
        error=str(error), machine=machine()["id"], at=now(),
    )  # fmt: skip


def now() -> str:
    """The time as rows tell it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
