"""The one thread of a worker that touches the model.

It takes parts of requests from the queue and gives each a place: in the batch that all share, where that
changes no answer, or as a stream of its own; then everything that has a place goes on by one step.
"""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tinykit.choosing import How, Options, option_scores
from tinykit.errors import DeviceFallbackWarning, RestartNeededError, TinykitError
from tinykit.generation.batch import Batching, Task, one_request, run_task, samples
from tinykit.generation.engine import Engine
from tinykit.generation.request import Request
from tinykit.generation.result import Completion
from tinykit.generation.saving import restore_state, save_state
from tinykit.generation.stream import Stream
from tinykit.loaded_model import Loaded
from tinykit.loading import load
from tinykit.model_spec import ModelSpec
from tinykit.progress import Progress
from tinykit.recipes import Recipe
from tinykit.residents import give_back
from tinykit.titling import Title, fixed_prefix, title_task
from tinykit.tokenizer import as_messages
from tinykit.worker.fair_queue import FairQueue
from tinykit.worker.jobs import Job, watched
from tinykit.worker.wire import (
    completion_values,
    event_values,
    info_values,
    options_of,
    question_of,
    title_values,
)

MOST_ROWS = 16
MOST_STREAMS = 16
_WAIT_S = 1.0

_log = logging.getLogger("tinykit.worker")


@dataclass(eq=False)
class _Open:
    """A request with a stream of its own."""

    job: Job
    stream: Stream


class ModelThread:
    """Runs requests until it is stopped.

    Args:
        spec: The model; it is loaded by the first request.
        options: How to load it.
        queue: Where requests come from.
        on_progress: Told of downloads and imports.
        on_poisoned: Called once no model can be loaded in this process any more.
    """

    def __init__(
        self,
        spec: ModelSpec,
        options: dict[str, Any],
        queue: FairQueue[Job],
        *,
        on_progress: Callable[[dict[str, Any]], None],
        on_poisoned: Callable[[], None],
    ) -> None:
        self.loaded: Loaded | None = None
        self.is_loading = False
        self.busy_slots: set[str] = set()
        self.jobs: set[Job] = set()  # that have begun and are not settled
        self._spec = spec
        self._options = options
        self._queue = queue
        self._on_progress = on_progress
        self._on_poisoned = on_poisoned
        self._warnings: list[dict[str, str]] = []
        self._prefixes: dict[Recipe, int] = {}
        self._batching: Batching[Any] | None = None
        self._parts: dict[int, tuple[Job, int]] = {}  # in the batch, by their number there
        self._numbers = itertools.count()
        self._open: list[_Open] = []
        self._is_stopped = False

    def run(self) -> None:
        """Serve until `stop`."""
        is_tidy = True
        while not self._is_stopped:
            if not self._parts and not self._open and not self._queue.wait(_WAIT_S):
                if not is_tidy:
                    give_back()  # what many answers at once have taken
                is_tidy = True
                continue
            is_tidy = False
            self._fill()
            self._step()
        if self.loaded is not None:
            with suppress(Exception):
                self.loaded.close()

    def stop(self) -> None:
        """End after the present step; for any thread."""
        self._is_stopped = True
        self.interrupt(None)
        self._queue.wake()

    def interrupt(self, job: Job | None) -> None:
        """Let a cancelled job, or whatever runs, be seen soon; for any thread."""
        loaded = self.loaded
        if loaded is None:
            return
        if job is None:
            loaded.runner.cancel()
        else:
            loaded.runner.interrupt(job)

    def free_slots(self, client: int) -> None:
        """Forget the slots of a client that has left; for any thread."""
        if self.loaded is None or self.loaded.is_judge:
            return
        for name, _ in self.loaded.engine.slots.items():
            if str(name).startswith(f"{client} "):
                with suppress(TinykitError):
                    self.loaded.engine.slots.free(name)

    def _fill(self) -> None:
        while self._has_room() and not self._is_stopped:
            job = self._queue.take(self._take_from)
            if job is None:
                return
            self.jobs.add(job)
            self._guarded(job, job.part, lambda job=job: self._begin(job, job.part))  # type: ignore[misc]

    def _has_room(self) -> bool:
        is_full = self._batching is not None and self._batching.is_full
        return not is_full and len(self._parts) < MOST_ROWS and len(self._open) < MOST_STREAMS

    def _take_from(self, job: Job) -> tuple[bool, bool]:
        """Whether a part of it was taken, and whether it has more."""
        if job.is_settled:
            return False, False
        if job.cancelled_by is not None:
            if job.active == 0:
                job.settle_cancelled()
            return False, False
        if job.slot in self.busy_slots or not job.take():
            return False, True
        if job.slot is not None:
            self.busy_slots.add(job.slot)
        return True, job.has_more

    def _guarded(self, job: Job, part: int, act: Callable[[], bool]) -> None:
        """Do something for a job; unless it says that the part goes on, the part has ended."""
        try:
            goes_on = act()
        except Exception as error:
            job.fail_part(part, error)
            self._complain(job, error)
            goes_on = False
        if not goes_on:
            self._leave(job)

    def _complain(self, job: Job, error: Exception) -> None:
        if not isinstance(error, TinykitError):
            _log.error("%s of client %d failed", job.op, job.client, exc_info=error)
        if isinstance(error, RestartNeededError):
            self._on_poisoned()

    def _leave(self, job: Job) -> None:
        if job.slot is not None:
            self.busy_slots.discard(job.slot)
        if job.active == 0:
            self.jobs.discard(job)

    def _begin(self, job: Job, part: int) -> bool:
        """Serve a part at once, or give it a place; returns whether it goes on."""
        loaded = self._load(job)
        goes_on: bool = getattr(self, f"_do_{job.op}")(job, part, loaded)
        return goes_on

    def _load(self, job: Job) -> Loaded:
        if self.loaded is not None:
            return self.loaded
        self.is_loading = True
        options = {**self._options, "offline": job.params.get("offline")}
        progress = Progress(lambda event: self._on_progress(event_values(event)))
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", DeviceFallbackWarning)
                self.loaded = load(self._spec, **options, progress=progress)
        except Exception as error:
            for other in self._queue.remove(lambda one: True):  # they would wait for the same to fail again
                other.fail(error)
            raise
        finally:
            self.is_loading = False
        self._warnings = [_warning_values(one.message) for one in caught if isinstance(one.message, Warning)]
        if not self.loaded.is_judge and self.loaded.engine.backend.info.can_batch:
            engine = self.loaded.engine
            self._batching = Batching(engine) if engine.rows_are_exact else None
        _log.info("loaded %s in %.1f s", self._spec.key, self.loaded.load_s)
        return self.loaded

    def _step(self) -> None:
        """Let everything that has a place go on by one step."""
        if self._batching is not None and self._parts:
            try:
                if self._batching:
                    self._batching.step()
            except Exception as error:  # of the batch as a whole
                self._fail_batch(error)
            else:
                self._take_done()
        for one in list(self._open):
            self._guarded(one.job, 0, lambda one=one: self._advance(one))  # type: ignore[misc]

    def _take_done(self) -> None:
        assert self._batching is not None
        for number, result in self._batching.take_done():
            job, part = self._parts.pop(number)
            self._guarded(job, part, lambda job=job, part=part, result=result: _ended(job, part, result))  # type: ignore[misc]

    def _fail_batch(self, error: Exception) -> None:
        assert self._batching is not None and self.loaded is not None
        parts, self._parts = list(self._parts.values()), {}
        with suppress(Exception):
            self._batching.close()
        self._batching = Batching(self.loaded.engine)
        for job, part in parts:
            job.fail_part(part, error)
            self._complain(job, error)
            self._leave(job)

    def _advance(self, one: _Open) -> bool:
        try:
            chunk = next(one.stream, None)
        except BaseException:
            self._open.remove(one)
            raise
        if chunk is not None:
            one.job.hear(chunk)
            return True
        self._open.remove(one)
        return _ended(one.job, 0, one.stream.result)

    def _run(self, job: Job, part: int, engine: Engine, task: Task[Any], *, is_exact: bool = True) -> bool:
        """Give a task rows of the batch, where it may share them, or run it to its end."""
        task = watched(task, job)
        if self._batching is None or not is_exact:
            return _ended(job, part, run_task(engine, task))
        number = next(self._numbers)
        self._parts[number] = job, part
        try:
            self._batching.begin(number, task)
        except Exception:
            del self._parts[number]
            raise
        self._take_done()
        return True

    def _do_load(self, job: Job, part: int, loaded: Loaded) -> bool:
        values = {
            "info": info_values(loaded.info),
            "is_judge": loaded.is_judge,
            "asked": loaded.asked,
            "load_s": loaded.load_s,
            "warnings": self._warnings,
        }
        job.end_part(part, values)
        return False

    def _do_answer(self, job: Job, part: int, loaded: Loaded) -> bool:
        engine = loaded.engine
        request = _request(engine, job, job.params["turns"])
        count = job.params.get("n")
        if count is not None:
            found = [job.timed(one) for one in samples(engine, request, int(count))]
            job.end_part(part, {"completions": [completion_values(one) for one in found]})
            return False
        if self._batching is not None and request.options.draft is None:
            return self._run(job, part, engine, one_request(request))
        self._open.append(_Open(job, engine.stream(request)))
        return True

    def _do_answer_all(self, job: Job, part: int, loaded: Loaded) -> bool:
        request = _request(loaded.engine, job, job.params["prompts"][part])
        request = replace(request, options=replace(request.options, draft=None), slot=None)
        return self._run(job, part, loaded.engine, one_request(request))

    def _do_titles(self, job: Job, part: int, loaded: Loaded) -> bool:
        engine, recipe = loaded.engine, Recipe.from_dict(job.params["recipe"])
        if recipe not in self._prefixes:
            self._prefixes[recipe] = fixed_prefix(engine.tokenizer, recipe)
        is_exact = bool(job.params.get("exact"))
        message = str(job.params["messages"][part])
        task = title_task(engine, message, recipe, self._prefixes[recipe], exact=is_exact)
        return self._run(job, part, engine, task)

    def _do_scores(self, job: Job, part: int, loaded: Loaded) -> bool:
        fields = job.params
        options = Options(
            question_of(fields["question"]),
            fields["state"],
            fields["system"],
            fields["prompts"],
            fields["texts"],
            How(fields["normalize"], fields["calibrate"]),
        )
        scores, logprobs = option_scores(loaded, options, watcher=job)
        job.end_part(part, {"scores": scores, "logprobs": logprobs})
        return False

    def _do_judge(self, job: Job, part: int, loaded: Loaded) -> bool:
        questions = [question_of(one) for one in job.params["questions"]]
        logits = loaded.judge.logits(job.params["state"], questions, watcher=job)
        job.end_part(part, {"logits": logits})
        return False

    def _do_save_state(self, job: Job, part: int, loaded: Loaded) -> bool:
        job.end_part(part, {"number": save_state(loaded.engine, Path(job.params["path"]), slot=job.slot)})
        return False

    def _do_restore_state(self, job: Job, part: int, loaded: Loaded) -> bool:
        job.end_part(part, {"number": restore_state(loaded.engine, Path(job.params["path"]), slot=job.slot)})
        return False

    def _do_free_slot(self, job: Job, part: int, loaded: Loaded) -> bool:
        job.end_part(part, {"number": int(job.slot is not None and loaded.engine.slots.free(job.slot))})
        return False


OPERATIONS = frozenset(
    name.removeprefix("_do_") for name in vars(ModelThread) if name.startswith("_do_")
)  # what clients may ask of the model


def _ended(job: Job, part: int, result: Any) -> bool:
    """Send what a part came to; it does not go on."""
    if isinstance(result, Completion):
        job.end_part(part, {"completion": completion_values(job.timed(result))})
    elif isinstance(result, Title):
        job.end_part(part, {"title": title_values(result)})
    else:
        job.fail_part(part, result)
    return False


def _request(engine: Engine, job: Job, turns: Any) -> Request:
    options = replace(options_of(job.params["options"]), timeout_s=None)  # the job's own deadline counts
    prompt_ids = tuple(engine.tokenizer.encode_chat(as_messages(turns)))
    reuse = bool(job.params.get("reuse", True))
    return Request(prompt_ids, options, slot=job.slot, reuse=reuse, watcher=job)


def _warning_values(warning: Warning | str) -> dict[str, str]:
    asked, used = getattr(warning, "asked", ""), getattr(warning, "used", "")
    return {"kind": type(warning).__name__, "message": str(warning), "asked": asked, "used": used}
