"""How fast a model is on this machine: from a new process, loaded again, and once it runs.

Prompts are computed anew each time, so that nothing kept from the run before makes it look faster. The first
runs only warm up. Figures of a busy machine mean little: `Latency.busy` says what else it had to do.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from tinykit.charts import Bars
from tinykit.errors import BackendError
from tinykit.generation.result import Chunk, Completion
from tinykit.many import checked_count
from tinykit.markup import Bundle, Table, bundle
from tinykit.plurals import counted
from tinykit.progress import Progress
from tinykit.recipes import Recipe
from tinykit.session import TinySession

T = TypeVar("T")
PROMPT = "Explain in simple words how a bicycle stays upright."
MESSAGES = (
    "why does my docker container exit with code 137",
    "Plan a three day trip to Lisbon with two kids, we like beaches and trains",
    "Can you help me write a SQL query that joins orders and customers?",
)
_START = """
import json, sys, time
begun = time.perf_counter()
from tinykit import TinySession
imported = time.perf_counter()
model, adapter, device, dtype, message = json.loads(sys.argv[1])
session = TinySession(model, adapter=adapter, device=device, dtype=dtype, progress=False, lazy=True)
session.load()
loaded = time.perf_counter()
session.title(message)
print(json.dumps([imported - begun, loaded - imported, time.perf_counter() - loaded]))
"""
_START_TIMEOUT_S = 600
_ERROR = re.compile(r"[\w.]*(Error|Exception|Interrupt): ")


@dataclass(frozen=True)
class Spread:
    """Seconds, or tokens per second, of several runs.

    Attributes:
        values: One number for each run, in their order.
    """

    values: tuple[float, ...]

    @property
    def p50(self) -> float:
        """The median."""
        return statistics.median(self.values)

    @property
    def p95(self) -> float:
        """The 95th percentile: nearly the slowest of few runs."""
        ordered = sorted(self.values)
        at = 0.95 * (len(ordered) - 1)
        low = int(at)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (at - low)

    @property
    def least(self) -> float:
        """The smallest number."""
        return min(self.values)


@dataclass(frozen=True)
class Measured:
    """What one answer took; None for what it did not have."""

    prompt_tokens: int
    ttft_s: float | None
    tokens: int
    tokens_per_s: float | None
    total_s: float
    prefill_s: float

    @classmethod
    def of(cls, completion: Completion) -> Self:
        """The figures of a completion."""
        timings, usage = completion.timings, completion.usage
        return cls(
            usage.prompt_tokens,
            timings.ttft_s,
            usage.completion_tokens,
            completion.decode_tokens_per_s,
            timings.total_s,
            timings.prefill_s,
        )

    @property
    def prefill_tokens_per_s(self) -> float:
        """Speed of reading the prompt."""
        return self.prompt_tokens / max(self.prefill_s, 1e-9)


def measured_answer(
    session: TinySession,
    prompt: str,
    *,
    max_tokens: int,
    on_chunk: Callable[[Chunk], object] | None = None,
) -> Measured | None:
    """The figures of one answer that profits from nothing that was kept before; None if it was cancelled."""
    completion = session.complete(prompt, max_tokens=max_tokens, reuse=False, on_chunk=on_chunk)
    return None if completion.finish_reason == "cancelled" else Measured.of(completion)


@dataclass(frozen=True)
class ColdStart:
    """Seconds of a new process: until tinykit is imported, the model loaded, and the first title there.

    The files are in the system's memory from the run before, unless it is the first since the machine began.
    """

    import_s: float
    load_s: float
    first_title_s: float
    process_s: float

    def rows(self) -> list[tuple[str, str]]:
        """What took how many milliseconds."""
        names = ("import", "load", "first title", "all")
        seconds = (self.import_s, self.load_s, self.first_title_s, self.process_s)
        return [
            (f"new process: {name}, ms", f"{1000 * s:.0f}") for name, s in zip(names, seconds, strict=True)
        ]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        table = Table.of("From the start of a process to its first title", ("what", "time"), self.rows(), {1})
        return bundle(table.text(), table.html(), asdict(self))


@dataclass(frozen=True)
class Latency:
    """What was measured; ``str()`` and notebooks show it as a table, `plot` as bars.

    Attributes:
        model: The model's key.
        runs: How often each thing was done.
        load_s: Loading the model in a process that has the libraries.
        ttft_s: From the call to the first token of an answer.
        answer_s: To the end of it.
        title_s: A title, with all its alternatives.
        decode_tokens_per_s: Speed after the first token.
        prefill_tokens_per_s: Speed of reading the prompt.
        cold: A new process, if one was started.
        busy: Processes for each core that the machine had to run before; None if it does not tell.
        about: Device, precision, threads and the like.
    """

    model: str
    runs: int
    load_s: Spread
    ttft_s: Spread
    answer_s: Spread
    title_s: Spread
    decode_tokens_per_s: Spread
    prefill_tokens_per_s: Spread
    cold: ColdStart | None
    busy: float | None
    about: dict[str, Any]

    def table(self) -> Table:
        """Medians and 95th percentiles; for speeds the slow end."""
        rows: list[tuple[str, str, str]] = []
        if self.cold is not None:
            rows += [(*row, "-") for row in self.cold.rows()]
        times = {"load again": self.load_s, "first token": self.ttft_s, "answer": self.answer_s,
                 "title": self.title_s}  # fmt: skip
        rows += [
            (f"{name}, ms", f"{1000 * of.p50:.0f}", f"{1000 * of.p95:.0f}") for name, of in times.items()
        ]
        speeds = {"read": self.prefill_tokens_per_s, "write": self.decode_tokens_per_s}
        rows += [(f"{name}, tokens/s", f"{of.p50:.0f}", f"{of.least:.0f}") for name, of in speeds.items()]
        threads = counted(self.about["threads"], "thread")
        caption = f"{self.model}: {counted(self.runs, 'run')} on {self.about['device']}, {threads}"
        if self.busy is not None and self.busy > 0.3:
            caption += f"; the machine was busy ({self.busy:.1f} processes a core), so these mean little"
        return Table.of(caption, ("what", "median", "95 % (speeds: slowest)"), rows, {1, 2})

    def plot(self) -> Bars:
        """Milliseconds until a user sees something, as bars."""
        bars = []
        if self.cold is not None:
            bars.append(("new process, first title", 1000 * self.cold.process_s))
        for name, of in (("load again", self.load_s), ("first token", self.ttft_s), ("title", self.title_s)):
            bars += [(f"{name}, median", 1000 * of.p50), (f"{name}, 95 %", 1000 * of.p95)]
        return Bars.of(f"Milliseconds to wait for {self.model}", bars)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return self.table().text()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return bundle(str(self), self.table().html(), self.to_dict())


def cold_start(session: TinySession, message: str = MESSAGES[0]) -> ColdStart:
    """Start a new process that loads this session's model and titles a message.

    Raises:
        BackendError: it failed, or took longer than ten minutes.
    """
    options = session.load_options
    given = json.dumps([*session.asked_for, options["device"], options["dtype"], message])
    started = time.perf_counter()
    # the same tinykit as here, also where it is not installed
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    try:
        done = subprocess.run(
            [sys.executable, "-c", _START, given],
            capture_output=True, text=True, check=True, timeout=_START_TIMEOUT_S,
            env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
        )  # fmt: skip
        process_s = time.perf_counter() - started
        import_s, load_s, title_s = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()
        why = next((line for line in reversed(said) if _ERROR.match(line)), said[-1] if said else "")
        raise BackendError(f"The new process for {session.spec.key} failed: {why}") from error
    return ColdStart(import_s, load_s, title_s, process_s)


def measure(
    session: TinySession,
    *,
    recipe: str | Path | Recipe | None = None,
    runs: int = 5,
    warmup: int = 1,
    max_tokens: int = 48,
    messages: Sequence[str] = MESSAGES,
    cold: bool = True,
) -> Latency:
    """Measure a session's model; takes some ten seconds for a small one.

    Args:
        session: Its model is loaded anew some times, and stays loaded.
        recipe: How to title; the session's own by default.
        runs: How often to do each thing.
        warmup: So many runs before do not count.
        max_tokens: Length of the answers.
        messages: What to title, one after the other.
        cold: Whether to start a new process as well.

    Raises:
        OptionError: `runs`, `warmup` or `max_tokens` out of range, or a judge model.
        KeyboardInterrupt: Ctrl-C; nothing is returned then.
    """
    checked_count(runs, "runs")
    busy = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else None
    count = warmup + runs
    started = _phase(session, "process starts", int(cold), lambda _: cold_start(session))
    loads = _phase(session, "loads", min(runs, 3), lambda _: _load_s(session))
    answers = _phase(session, "answers", count, lambda _: _answer(session, max_tokens))[warmup:]
    titles = _phase(
        session, "titles", count, lambda number: _title_s(session, messages[number % len(messages)], recipe)
    )[warmup:]
    info = session.info
    return Latency(
        model=session.spec.key,
        runs=runs,
        load_s=Spread(tuple(loads)),
        ttft_s=Spread(tuple(one.ttft_s or one.total_s for one in answers)),
        answer_s=Spread(tuple(one.total_s for one in answers)),
        title_s=Spread(tuple(titles)),
        decode_tokens_per_s=Spread(tuple(one.tokens_per_s or 0.0 for one in answers)),
        prefill_tokens_per_s=Spread(tuple(one.prefill_tokens_per_s for one in answers)),
        cold=started[0] if started else None,
        busy=busy,
        about={"device": info.device, "dtype": info.dtype, "backend": info.backend, "threads": info.threads},
    )


def _phase(session: TinySession, name: str, count: int, act: Callable[[int], T]) -> list[T]:
    """The results of so many measurements; how far they are is told where the session tells such things."""
    progress: Progress = session.load_options["progress"]
    found: list[T] = []
    if count:
        label, key = f"{session.spec.key}: measure", session.spec.key
        with progress.stage(label, total=count, unit=name, model=key) as stage:
            for number in range(count):
                found.append(act(number))
                stage.advance(1)
    return found


def _answer(session: TinySession, max_tokens: int) -> Measured:
    """The figures of an answer.

    Raises:
        BackendError: another thread cancelled it.
    """
    one = measured_answer(session, PROMPT, max_tokens=max_tokens)
    if one is None:
        raise BackendError("The measurement was cancelled.", hint="Measure again.")
    return one


def _load_s(session: TinySession) -> float:
    session.unload()
    started = time.perf_counter()
    session.load()
    return time.perf_counter() - started


def _title_s(session: TinySession, message: str, recipe: str | Path | Recipe | None) -> float:
    started = time.perf_counter()
    session.title(message, recipe=recipe)
    return time.perf_counter() - started
