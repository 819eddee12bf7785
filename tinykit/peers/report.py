"""Figures as tables, bars and JSON; each ratio beside the mark that it is to reach."""

from __future__ import annotations

import html
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tinykit.charts import Bars
from tinykit.markup import Table
from tinykit.peers import bystanders
from tinykit.peers.accuracy import LEAST_TOP1, MOST_KL, Accuracy
from tinykit.peers.engines import PEERS, SCRIPTED, Peer
from tinykit.peers.figures import Figures, Ratio, unpaired_ratio
from tinykit.peers.work import FIXED_TOKENS, LENGTHS, Length, Mode

OURS = ("tinykit", "tinykit-q8")  # families: the default build, and the one with 8 bits in blocks
BATCHED = 64  # how many at once stand for throughput


class Comparison(NamedTuple):
    """A ratio of ours to another's; `mark` is what it is to reach, `at_least` which side of it is good."""

    what: str
    ours: str
    theirs: str
    ratio: Ratio
    mark: float | None = None
    at_least: bool = False

    @property
    def is_reached(self) -> bool | None:
        """Whether the mark is reached; None where there is none."""
        if self.mark is None:
            return None
        return self.ratio.value >= self.mark if self.at_least else self.ratio.value <= self.mark


def tables(figures: Figures, gates: Sequence[Accuracy] = ()) -> list[Table]:
    """All tables that have rows, the latency first."""
    names = figures.engines()
    found = [_latency(figures, names), _speeds(figures, names), _batches(figures, names)]
    found += [_ratios(comparisons(figures)), _gates(gates)]
    return [table for table in found if table.rows]


def plots(figures: Figures) -> list[Bars]:
    """Bars of the medians for titles, short and long."""
    found = []
    for length in LENGTHS:
        timed = [(name, figures.median(name, length, "nat")) for name in figures.engines()]
        bars = [(name, 1000 * value) for name, value in timed if value is not None]
        found.append(Bars.of(f"Milliseconds for a title, {length} messages, median", bars))
    return found


def page(figures: Figures, gates: Sequence[Accuracy] = ()) -> str:
    """Plots and tables as a page of HTML."""
    parts = [bars.html() for bars in plots(figures)] + [table.html() for table in tables(figures, gates)]
    verdict = html.escape(verdict_line(figures))
    head = '<!doctype html><meta charset="utf-8"><title>tinykit and its peers</title>'
    return f"{head}<p>{verdict}</p>{''.join(parts)}\n"


def verdict_line(figures: Figures) -> str:
    """Whether these are measurements, in one sentence."""
    shares = [one for one in figures.others if one is not None]
    if not shares:
        return "Whether the machine had other work cannot be seen here."
    worst, middle = max(shares), statistics.median(shares)
    said = f"others used {middle:.0%} of the machine at the median, {worst:.0%} at most"
    if is_measurement(figures):
        return f"The machine was quiet: {said}."
    return f"The machine was busy, so these are no measurements: {said}."


def notes(figures: Figures) -> list[str]:
    """What makes engines less comparable than they should be."""
    found = []
    names = figures.engines()
    for name in names:
        fixed = [s.tokens for length in LENGTHS for s in figures.of(name, length, "fix8")]
        if fewer := sum(tokens != FIXED_TOKENS for tokens in fixed):
            found.append(
                f"{name} wrote another number than {FIXED_TOKENS} tokens in {fewer} of {len(fixed)} cases."
            )
    counts: dict[tuple[Length, int], dict[str, int]] = {}
    for sample in figures.samples:
        if sample.prompt_tokens is not None:
            counts.setdefault((sample.length, sample.message), {})[sample.engine] = sample.prompt_tokens
    for name in names[1:]:
        pairs = [(one[names[0]], one[name]) for one in counts.values() if {names[0], name} <= one.keys()]
        if unlike := sum(a != b for a, b in pairs):
            found.append(f"{name} makes other tokens than {names[0]} of {unlike} of {len(pairs)} prompts.")
    return found


def is_measurement(figures: Figures) -> bool:
    """Whether others left the machine alone in nine of ten processes, as far as can be seen."""
    shares = [one for one in figures.others if one is not None]
    loud = sum(one > bystanders.MOST_SHARE for one in shares)
    return loud <= len(shares) / 10


def to_json(figures: Figures, gates: Sequence[Accuracy] = ()) -> dict[str, Any]:
    """Medians, ratios and the gate as plain values; without the single samples."""
    engines = {name: _summary(figures, name) for name in figures.engines()}
    ratios = [
        {**one._asdict(), "ratio": one.ratio._asdict(), "reached": one.is_reached}
        for one in comparisons(figures)
    ]
    return {
        "is_measurement": is_measurement(figures),
        "engines": engines,
        "ratios": ratios,
        "accuracy": [gate.to_dict() for gate in gates],
        "failed": figures.failed,
        "notes": notes(figures),
        "others": [None if one is None else round(one, 4) for one in figures.others],
        **figures.about,
    }


def comparisons(figures: Figures) -> list[Comparison]:
    """Ours to each other family, each with its best extras for titles, and without extras else."""
    families = dict.fromkeys(_peer(name).family for name in figures.engines())
    others = [family for family in families if family not in OURS]
    found: list[Comparison] = []
    for ours in OURS:
        if ours in families:
            for theirs in others:
                found += _of_families(figures, ours, theirs)
            found += _fastest_start(figures, ours)
    return found


_MARKS: dict[tuple[str, Length, Mode], float] = {
    ("openvino", "short", "nat"): 0.50,
    ("openvino", "short", "fix8"): 0.62,
    ("openvino", "long", "nat"): 0.60,
    ("llamacpp-q4", "short", "nat"): 0.35,
}


def _of_families(figures: Figures, our_family: str, family: str) -> Iterable[Comparison]:
    for length in LENGTHS:
        ours = figures.best(_members(figures, our_family), length, "nat")
        theirs = figures.best(_members(figures, family), length, "nat")
        if ours and theirs and (ratio := figures.ratio(ours, theirs, length, "nat")):
            mark = _MARKS.get((family, length, "nat"))
            yield Comparison(f"a title, {length}", ours, theirs, ratio, mark)
        if ratio := figures.ratio(our_family, family, length, "fix8"):
            mark = _MARKS.get((family, length, "fix8"))
            yield Comparison(f"8 tokens, {length}", our_family, family, ratio, mark)
    ours_s, theirs_s = figures.throughput(our_family, BATCHED), figures.throughput(family, BATCHED)
    if ours_s and theirs_s:
        value = ours_s / theirs_s
        mark = 1.3 if family == "openvino" else None
        what = f"titles/s, {BATCHED} at once"
        yield Comparison(what, our_family, family, Ratio(value, value, value), mark, at_least=True)
    ours_bytes, theirs_bytes = figures.peak_bytes.get(our_family), figures.peak_bytes.get(family)
    if ours_bytes and theirs_bytes:
        value = ours_bytes / theirs_bytes
        mark = 0.7 if family == "openvino" else None
        yield Comparison("peak memory", our_family, family, Ratio(value, value, value), mark)


def _fastest_start(figures: Figures, ours: str) -> Iterable[Comparison]:
    others = {name: values for name, values in figures.cold_s.items() if _peer(name).family not in OURS}
    if ours in figures.cold_s and others:
        fastest = min(others, key=lambda name: statistics.median(others[name]))
        ratio = unpaired_ratio(figures.cold_s[ours], others[fastest])
        yield Comparison("cold start, fastest peer", ours, fastest, ratio, 1.0)


def _members(figures: Figures, family: str) -> list[str]:
    return [name for name in figures.engines() if _peer(name).family == family]


def _peer(name: str) -> Peer:
    return PEERS.get(name, SCRIPTED)


def _summary(figures: Figures, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"about": _peer(name).about}
    for length in LENGTHS:
        for mode in ("nat", "fix8"):
            found[f"{length}_{mode}_p50_ms"] = _ms(figures.median(name, length, mode))
            found[f"{length}_{mode}_p95_ms"] = _ms(figures.p95(name, length, mode))
        found[f"{length}_ttft_ms"] = _ms(figures.ttft(name, length))
    found["prefill_ms_per_token"] = _ms(figures.prefill_s(name))
    found["decode_ms_per_token"] = _ms(figures.decode_s(name))
    found["cold_s"] = round(statistics.median(figures.cold_s[name]), 3) if name in figures.cold_s else None
    found["peak_bytes"] = figures.peak_bytes.get(name)
    sizes = dict.fromkeys(one.batch for one in figures.batches)
    found["titles_per_s"] = {
        size: round(rate, 2) for size in sizes if (rate := figures.throughput(name, size)) is not None
    }
    return found


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


def _latency(figures: Figures, names: Sequence[str]) -> Table:
    header = ["engine", "what"]
    for length in LENGTHS:
        header += [f"{length} p50", "p95", "8 tokens", "first token"]
    rows = []
    for name in names:
        row = [name, _peer(name).about]
        for length in LENGTHS:
            row += map(_ms_text, (
                figures.median(name, length, "nat"), figures.p95(name, length, "nat"),
                figures.median(name, length, "fix8"), figures.ttft(name, length),
            ))  # fmt: skip
        rows.append(row)
    return Table.of(
        "Milliseconds for a title, for 8 tokens, and to the first token", header, rows, range(2, 10)
    )


def _speeds(figures: Figures, names: Sequence[str]) -> Table:
    rows = []
    for name in names:
        cold = figures.cold_s.get(name, [])
        peak = figures.peak_bytes.get(name) or None
        rows.append([
            name, _text(figures.prefill_s(name), 1000, 2), _text(figures.decode_s(name), 1000, 1),
            _text(statistics.median(figures.load_s[name]) if cold else None, 1, 2),
            _text(statistics.median(cold) if cold else None, 1, 2), _text(peak, 1e-6, 0),
        ])  # fmt: skip
    header = ("engine", "ms/prompt token", "ms/new token", "load s", "process to title s", "peak MB")
    return Table.of("Speeds, start and memory", header, rows, range(1, 6))


def _batches(figures: Figures, names: Sequence[str]) -> Table:
    sizes = sorted({one.batch for one in figures.batches})
    rows = [
        [name, *(_text(figures.throughput(name, size), 1, 2) for size in sizes)]
        for name in names
        if any(one.engine == name for one in figures.batches)
    ]
    header = ("engine", *(f"{size} at once" for size in sizes))
    return Table.of("Titles per second", header, rows, range(1, len(header)))


def _ratios(found: Sequence[Comparison]) -> Table:
    rows = []
    for one in found:
        sign = "at least" if one.at_least else "at most"
        mark = "-" if one.mark is None else f"{sign} {one.mark:.2f}"
        reached = {None: "-", True: "yes", False: "no"}[one.is_reached]
        ratio = one.ratio
        interval = "-" if ratio.low == ratio.high else f"{ratio.low:.2f} to {ratio.high:.2f}"
        rows.append([one.what, one.ours, one.theirs, f"{ratio.value:.2f}", interval, mark, reached])
    header = ("figure", "ours", "theirs", "ratio", "95 % interval", "mark", "reached")
    return Table.of("Ours over theirs", header, rows, {3, 4})


def _gates(gates: Sequence[Accuracy]) -> Table:
    rows = [
        [
            gate.model, gate.dtype, f"{gate.messages}", f"{gate.tokens}", f"{gate.kl:.4f}",
            f"{gate.kl_p95:.4f}", f"{gate.top1:.3f}", "yes" if gate.passes else "no",
        ]
        for gate in gates
    ]  # fmt: skip
    caption = f"Builds against float weights: KL at most {MOST_KL}, top-1 at least {LEAST_TOP1}"
    header = ("model", "build", "messages", "tokens", "mean KL", "95 %", "top-1", "passes")
    return Table.of(caption, header, rows, range(2, 7))


def _ms_text(seconds: float | None) -> str:
    return _text(seconds, 1000, 0)


def _text(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{factor * value:.{digits}f}"


Emit = Callable[[str], object]


def show(figures: Figures, gates: Sequence[Accuracy], emit: Emit) -> None:
    """All of it as text: tables, bars, what failed, and whether it is a measurement."""
    for table in tables(figures, gates):
        emit(f"{table.text()}\n")
    for bars in plots(figures):
        emit(f"{bars.text()}\n")
    for name, why in figures.failed.items():
        emit(f"{name} is left out, or has fewer rounds: {why}")
    for note in notes(figures):
        emit(note)
    emit(verdict_line(figures))
