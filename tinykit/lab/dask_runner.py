"""The runner for more machines or more cores: titles are made by a Dask cluster, rows are written here.

Workers get jobs of some batches, with the model by its key or path. Each loads it by itself, from its own
store or a shared folder, and checks that it has the weights of the run; see `tinykit.lab.dask_tasks`.
"""

from __future__ import annotations

import math
import queue
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tinykit.devices import default_threads
from tinykit.errors import TinykitError, WorkerDiedError, WorkerError
from tinykit.lab import dask_tasks
from tinykit.lab.keys import asked_of, code_digest
from tinykit.lab.local import LocalRunner, failed_row, open_session
from tinykit.lab.plan import Job, Target
from tinykit.lab.rows import Row
from tinykit.optional import require

START_S = 120.0  # for the first worker to be there
CONNECT_S = 20.0
_BATCHES = 2  # in a job: large enough for full batches, small enough that a lost worker costs little
_LEAST = 8
_AHEAD = 2  # jobs for each worker, so that none waits for the next one
_FRESH_S = 5.0  # for which it is known who works
_LOOK_S = 1.0  # Windows hears of Ctrl-C only between two waits


class DaskRunner:
    """Makes titles on the workers of a Dask cluster.

    Args:
        client: A `distributed.Client`, or the address of a scheduler. Without one it is the client that this
            program has already, or that of a cluster on this machine, which ends with `close`.
        workers: Start a cluster on this machine in any case, of so many processes; else it has one for each
            core.

    Raises:
        MissingPackageError: `distributed` is not installed.
        WorkerError: there is no scheduler at the address.
    """

    def __init__(self, client: Any = None, *, workers: int | None = None) -> None:
        self._dask = require("distributed", extra="dask", purpose="runs on a Dask cluster")
        dask_client = self._dask.client
        self._gone_errors = (dask_client.ClosedClientError, dask_client.CancelledError, OSError)
        self._cluster: Any = None
        self._is_own = client is None or isinstance(client, str)  # the client, which ends with `close`
        if client is None and workers is None:
            with suppress(ValueError):  # there is none
                client = self._dask.default_client()
                self._is_own = False
        if isinstance(client, str):
            client = self._connected(client)
        if client is None:
            self._cluster = self._dask.LocalCluster(
                n_workers=workers or default_threads(),
                threads_per_worker=1,
                dashboard_address=":0",
                preload=dask_tasks.__name__,
            )
            client = self._dask.Client(self._cluster, set_as_default=False)
        self._client = client
        self._known: list[str] = []
        self._looked_s = -math.inf

    def _connected(self, address: str) -> Any:
        try:
            return self._dask.Client(address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError) as error:  # among the first is a timeout
            raise WorkerError(
                f"There is no Dask scheduler at {address!r}: {error}",
                hint="Start one, and give the address that it names: dask scheduler",
            ) from error

    def asked(self, target: Target) -> dict[str, Any]:
        """What tells whether a target is still the same, as far as this machine knows."""
        return asked_of(target, open_session(target, False).spec)

    def facts(self, target: Target) -> dict[str, Any]:
        """What a target's model is and runs on, on one of the workers.

        Raises:
            TinykitError: it cannot be loaded there.
            WorkerError: there is no worker, or it has another tinykit.
        """
        try:
            self._client.wait_for_workers(1, timeout=START_S)
        except TimeoutError as error:
            raise WorkerError(
                f"The Dask cluster {self._name} has no worker.", hint="Start workers, and ask again."
            ) from error
        except self._gone_errors as error:
            raise self._gone() from error
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        future = self._submit(dask_tasks.model_facts, target, done)
        try:
            facts: dict[str, Any] = self._result(self._next(done))
        finally:
            self._cancel([future])
        theirs = facts["identity"]["code"]
        if theirs != code_digest():
            raise WorkerError(
                f"The workers of {self._name} have tinykit {theirs}, and here it is {code_digest()}.",
                hint="Install the same version on all machines.",
            )
        return facts

    def rows(self, jobs: Iterable[Job]) -> Iterator[Row]:
        """Rows as their jobs are done; what no model is asked for is made here.

        A job whose worker is lost goes to another one. One that has cost several workers fails.

        Raises:
            WorkerError: a worker has another model, or the cluster is gone.
            TinykitError: the model cannot be loaded on a worker.
        """
        waiting = self._pieces(jobs)
        pending: dict[Any, Job] = {}
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        try:
            while True:
                while len(pending) < _AHEAD * max(1, len(self._workers())) and (piece := next(waiting, None)):
                    if piece.variant.target is None:
                        yield from LocalRunner(False).rows([piece])
                    else:
                        pending[self._submit(dask_tasks.job_rows, piece, done)] = piece
                if not pending:
                    return
                future = self._next(done)
                yield from self._rows_of(future, pending.pop(future))
        finally:
            self._cancel(list(pending))

    def close(self) -> None:
        """Let go of the cluster; one that was started for this run ends."""
        if self._is_own:
            self._client.close()
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _pieces(self, jobs: Iterable[Job]) -> Iterator[Job]:
        """The jobs in parts of a few batches."""
        for job in jobs:
            size = max(_LEAST, _BATCHES * job.batch_size)
            for start in range(0, len(job.cells), size):
                part = slice(start, start + size)
                yield replace(job, cells=job.cells[part], messages=job.messages[part])

    def _submit(self, act: Callable[..., Any], what: object, done: queue.SimpleQueue[Any]) -> Any:
        """Send a task; its future is put into `done` once it has an end."""
        sharing = dict(Counter(map(dask_tasks.host_of, self._workers())))  # by machine
        try:
            future = self._client.submit(act, what, sharing, pure=False)
        except self._gone_errors as error:
            raise self._gone() from error
        future.add_done_callback(done.put)
        return future

    def _next(self, done: queue.SimpleQueue[Any]) -> Any:
        """The next future that has an end."""
        while True:
            with suppress(queue.Empty):
                return done.get(timeout=_LOOK_S)
            if self._client.status in ("closing", "closed"):
                raise self._gone()

    def _rows_of(self, future: Any, job: Job) -> list[Row]:
        try:
            rows: list[Row] = self._result(future)
        except WorkerDiedError as error:
            return [failed_row(cell, job.variant, error) for cell in job.cells]
        return rows

    def _result(self, future: Any) -> Any:
        try:
            return future.result()
        except TinykitError:
            raise
        except self._dask.KilledWorker as error:
            raise WorkerDiedError(
                f"Dask workers lost in the same task: {error.allowed_failures + 1}.",
                hint="Their logs say why; memory is the usual reason.",
                worker=self._name,
                log=None,
            ) from error
        except self._gone_errors as error:
            if future.status == "error":  # of the task itself
                raise
            raise self._gone() from error

    def _gone(self) -> WorkerError:
        return WorkerError(
            f"The Dask cluster {self._name} does not answer any more.",
            hint="What was made is kept: start it again, and resume the run with a new client.",
        )

    def _cancel(self, futures: list[Any]) -> None:
        """Let nobody work for them any more."""
        with suppress(Exception):  # it may be the cluster that has failed
            self._client.cancel(futures, force=True)

    @property
    def _name(self) -> str:
        return str(getattr(self._client.scheduler, "address", self._client))

    def _workers(self) -> list[str]:
        """The addresses of all workers, as they were some seconds ago."""
        if time.monotonic() - self._looked_s > _FRESH_S:
            try:
                self._known = list(self._client.scheduler_info(n_workers=-1)["workers"])
            except (KeyError, *self._gone_errors) as error:  # to a closed client none are known
                raise self._gone() from error
            self._looked_s = time.monotonic()
        return self._known
