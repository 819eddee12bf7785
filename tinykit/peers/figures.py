"""What was measured, and what follows from it: medians, speeds, ratios with intervals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tinykit.peers.work import Length, Mode

RESAMPLES = 4000
_SEED = 7
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """One title of one engine; `message` is its index, `round` the process it came from."""

    engine: str
    length: Length
    mode: Mode
    message: int
    round: int
    total_s: float
    ttft_s: float | None
    tokens: int
    prompt_tokens: int | None
    text: str


@dataclass(frozen=True)
class Batch:
    """Titles by the dozen: how many at once, and how many came in a second."""

    engine: str
    batch: int
    titles_per_s: float
    peak_bytes: int


class Ratio(NamedTuple):
    """A quotient and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass
class Figures:
    """All that a run found.

    Attributes:
        samples: Titles one by one.
        batches: Titles by the dozen.
        cold_s: By engine, seconds from the start of a process to its first title.
        load_s: By engine, what of that was loading.
        peak_bytes: By engine, the most memory of a process that titled short and long messages.
        failed: By engine, why it is not there, or not in all rounds.
        others: By round, the part of the machine that others used; None where it cannot be seen.
        about: Threads, versions and the like.
    """

    samples: list[Sample] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    cold_s: dict[str, list[float]] = field(default_factory=dict)
    load_s: dict[str, list[float]] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    others: list[float | None] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)

    def engines(self) -> list[str]:
        """Those that titled anything, in the order in which they came."""
        return list(dict.fromkeys(sample.engine for sample in self.samples))

    def of(self, engine: str, length: Length, mode: Mode) -> list[Sample]:
        """An engine's titles of one kind."""
        return [s for s in self.samples if (s.engine, s.length, s.mode) == (engine, length, mode)]

    def by_message(self, engine: str, length: Length, mode: Mode) -> dict[int, float]:
        """The median seconds of each message."""
        found: dict[int, list[float]] = {}
        for sample in self.of(engine, length, mode):
            found.setdefault(sample.message, []).append(sample.total_s)
        return {message: statistics.median(values) for message, values in sorted(found.items())}

    def median(self, engine: str, length: Length, mode: Mode) -> float | None:
        """The median of the messages' medians."""
        values = self.by_message(engine, length, mode)
        return statistics.median(values.values()) if values else None

    def p95(self, engine: str, length: Length, mode: Mode) -> float | None:
        """The 95th percentile of all titles."""
        values = [sample.total_s for sample in self.of(engine, length, mode)]
        return float(np.percentile(values, 95)) if values else None

    def ttft(self, engine: str, length: Length) -> float | None:
        """The median time to the first token of a title."""
        values = [s.ttft_s for s in self.of(engine, length, "nat") if s.ttft_s is not None]
        return statistics.median(values) if values else None

    def decode_s(self, engine: str) -> float | None:
        """Seconds for one further token: the median of the titles of a fixed length."""
        values = [
            (s.total_s - s.ttft_s) / (s.tokens - 1)
            for s in self.of(engine, "short", "fix8")
            if s.ttft_s is not None and s.tokens > 1
        ]
        return statistics.median(values) if values else None

    def prefill_s(self, engine: str) -> float | None:
        """Seconds for one further token of the prompt.

        The median slope of the time to the first token over the prompt's length (Theil and Sen): what an
        engine keeps of the common beginning does not count.
        """
        points = [
            (s.prompt_tokens, s.ttft_s)
            for s in self.samples
            if s.engine == engine and s.prompt_tokens is not None and s.ttft_s is not None
        ]
        slopes = [
            (later - sooner) / (longer - shorter)
            for at, (shorter, sooner) in enumerate(points)
            for longer, later in points[at + 1 :]
            if abs(longer - shorter) >= 32  # of nearly equal prompts it is all noise
        ]
        return statistics.median(slopes) if slopes else None

    def throughput(self, engine: str, batch: int) -> float | None:
        """Titles per second, the median of the runs."""
        found = [one.titles_per_s for one in self.batches if (one.engine, one.batch) == (engine, batch)]
        return statistics.median(found) if found else None

    def ratio(self, ours: str, theirs: str, length: Length, mode: Mode) -> Ratio | None:
        """Our median title time over theirs on the messages that both titled; chance picks the messages."""
        a, b = self.by_message(ours, length, mode), self.by_message(theirs, length, mode)
        both = sorted(a.keys() & b.keys())
        return paired_ratio([a[key] for key in both], [b[key] for key in both]) if both else None

    def best(self, engines: Sequence[str], length: Length, mode: Mode) -> str | None:
        """The engine with the least median."""
        timed = {name: found for name in engines if (found := self.median(name, length, mode)) is not None}
        return min(timed, key=lambda name: timed[name], default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The quotient of two medians of the same cases, with the percentiles of resampled cases."""
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    picks = np.random.default_rng(_SEED).integers(0, len(a), (RESAMPLES, len(a)))
    return _ratio(a, b, a[picks], b[picks])


def unpaired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """The same of values that do not belong together, such as starts of processes."""
    a, b = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    chance = np.random.default_rng(_SEED)
    return _ratio(a, b, *(chance.choice(values, (RESAMPLES, len(values))) for values in (a, b)))


def _ratio(a: _Floats, b: _Floats, a_drawn: _Floats, b_drawn: _Floats) -> Ratio:
    found = np.median(a_drawn, axis=1) / np.median(b_drawn, axis=1)
    low, high = np.percentile(found, [2.5, 97.5])
    return Ratio(float(np.median(a) / np.median(b)), float(low), float(high))
