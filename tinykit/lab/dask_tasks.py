"""What the processes of a Dask cluster do for a run: one loaded model each, kept from task to task.

No actors: those are lost with their worker and tie their callers to it, while a task is given to another one.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from tinykit import settings
from tinykit.devices import default_threads
from tinykit.errors import WorkerError
from tinykit.lab.keys import facts_of
from tinykit.lab.local import open_session, run_job
from tinykit.lab.plan import Job, Target
from tinykit.lab.rows import Row
from tinykit.session import TinySession

_lock = threading.Lock()  # one task has the model, should the process have several threads
_held: dict[Target, TinySession] = {}  # the model that was asked for last


def dask_setup(_worker: object) -> None:
    """Let a worker on this machine be deaf to a Ctrl-C, which reaches it as well and is not meant for it."""
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def model_facts(target: Target, sharing: Mapping[str, int]) -> dict[str, Any]:
    """What a target's model is and runs on in this process.

    Args:
        target: The model.
        sharing: How many workers there are at each address.

    Raises:
        TinykitError: it cannot be loaded.
    """
    with _session(target, sharing) as session:
        return facts_of(session)


def job_rows(job: Job, sharing: Mapping[str, int]) -> list[Row]:
    """The rows of a job; fewer if it was cancelled meanwhile.

    Raises:
        WorkerError: the model here is another one than that of the run.
        TinykitError: it cannot be loaded.
    """
    assert job.variant.target is not None
    is_wanted = _wanted()
    with _session(job.variant.target, sharing) as session:
        facts = facts_of(session)
        _require_same(job.facts["identity"], facts["identity"], job.variant.target)
        here = replace(job, facts={**job.facts, "threads": facts["threads"]})
        rows = []
        for row in run_job(here, session, contended=_neighbors(sharing) > 1):
            rows.append(row)
            if not is_wanted():
                break
        return rows


@contextmanager
def _session(target: Target, sharing: Mapping[str, int]) -> Iterator[TinySession]:
    """The session of a target, with its part of the machine's cores unless it says how many it wants.

    Workers that come or go later change nothing about that: a model is not loaded anew for them.
    """
    with _lock:
        if target not in _held:
            for held in list(_held):
                _held.pop(held).close()
            threads = settings.get("threads", target.threads)
            threads = threads or max(1, default_threads() // _neighbors(sharing))
            _held[target] = open_session(replace(target, threads=threads), False)
        yield _held[target]


def _require_same(wanted: Mapping[str, Any], found: Mapping[str, Any], target: Target) -> None:
    """Titles of different weights, libraries or code must not end in one run."""
    names = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    if names:
        facts = "; ".join(f"{name}: {wanted.get(name)} in the run, {found.get(name)} here" for name in names)
        raise WorkerError(
            f"The Dask worker {_address()} has another {target.label}: {facts}.",
            hint="All workers need the same files, and the same versions of tinykit and its libraries.",
            worker=_address(),
        )


def _neighbors(sharing: Mapping[str, int]) -> int:
    """The workers on this machine, this one among them."""
    return max(1, sharing.get(host_of(_address()), 1))


def host_of(address: str) -> str:
    """The machine of a worker's address, such as `tcp://10.0.0.1:4711`."""
    return address.partition("://")[2].rpartition(":")[0]


def _address() -> str:
    from distributed import get_worker

    return str(get_worker().address)


def _wanted() -> Callable[[], bool]:
    """Tells whether somebody still waits for what this task does: Dask cannot interrupt it by itself."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def is_wanted() -> bool:
        task = worker.state.tasks.get(key)
        return task is not None and task.state == "executing"

    return is_wanted
