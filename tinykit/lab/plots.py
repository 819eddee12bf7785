"""What there is to see of a run: quality against the wait, how scores spread, how long titles take.

Every plot is also text, with the same numbers: `print(run.plot())`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Any, Literal, get_args

from tinykit.charts import Bars, Chart, Charts, Histograms, Interval, Intervals
from tinykit.errors import OptionError
from tinykit.lab import statistics
from tinykit.lab.metric import Metric
from tinykit.lab.metrics import get_metric
from tinykit.lab.scatter import Point, Scatter, Value
from tinykit.lab.scoring import Column, score_variant

if TYPE_CHECKING:
    from tinykit.lab.differences import Difference
    from tinykit.lab.runs import Run

Kind = Literal["quality", "scores", "latency"]
_QUALITY = ("keywords", "chrf", "words_3_7")  # the first of them that applies to the cases
_BINS = 10
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_ALONE = "Only times that are a title's own can be shown: run with batch_size=1."


def plot(run: Run, kind: Kind = "quality", metric: Any = None, *, against: Any = None) -> Chart:
    """A picture of a run.

    Args:
        run: The run.
        kind: ``quality``: the mean of a metric against the wait or another metric, one point for each
            variant; ``scores``: how the values of a metric spread; ``latency``: percentiles of the wait.
        metric: By default the first of keywords, chrf and words_3_7 that applies to the cases.
        against: For ``quality``, the metric that goes across; by default the wait, or the tokens of the
            answer where titles were made in batches and have no times of their own.

    Raises:
        OptionError: there is no such plot, or nothing to show in it.
    """
    if kind not in get_args(Kind):
        kinds = ", ".join(get_args(Kind))
        raise OptionError(f"A run has the plots {kinds}, not {kind!r}.", name="kind", value=kind)
    if kind == "latency":
        return latency_plot(run)
    chosen = get_metric(metric) if metric is not None else quality_metric(run)
    if kind == "scores":
        return scores_plot(run, chosen)
    if against is None:
        against = "latency_s" if _times_of_models(run) else "completion_tokens"
    return quality_plot(run, chosen, get_metric(against))


def quality_metric(run: Run) -> Metric:
    """What quality is here, if nobody says: the first metric that applies to the cases."""
    for name in _QUALITY:
        if any(score_variant(run, variant, get_metric(name)).values for variant in run.variants):
            return get_metric(name)
    return get_metric(_QUALITY[-1])


def quality_plot(run: Run, metric: Metric, against: Metric) -> Scatter:
    """The mean of a metric, with its interval, against the wait (median and 95th percentile) or a mean."""
    points, left_out = [], []
    for variant in run.variants:
        up = score_variant(run, variant, metric)
        across = _wait(run, variant) if against.name == "latency_s" else _mean(run, variant, against)
        if across is None or not up.values:
            left_out.append(variant)
            continue
        value = _spread(up)
        told = f"{metric.name} {value.middle:.1f} ({value.low:.1f} to {value.high:.1f})"
        points.append(Point(variant, across, value, f"{told}, {_told_across(against, across)}"))
    if not points or (against.name == "latency_s" and not _times_of_models(run)):
        hint = "Or plot against completion_tokens, which needs no times." if against.unit == "s" else None
        raise OptionError(
            _ALONE if against.unit == "s" else f"{metric.name} or {against.name} has no value in this run.",
            hint=hint, name="against", value=against.name,
        )  # fmt: skip
    name = "median wait" if against.name == "latency_s" else f"mean {against.name}"
    notes = [f"Not shown, without a value: {', '.join(left_out)}."] if left_out else []
    return Scatter(
        f"{metric.name} against {'the wait for a title' if against.name == 'latency_s' else against.name}",
        f"{name}, {_unit(against)}" if _unit(against) else name,
        f"{metric.name}, {_unit(metric)}{_way(metric)}" if _unit(metric) else f"{metric.name}{_way(metric)}",
        tuple(points),
        (*notes, "Lines: 95 % interval of the mean over cases" + _line_across(against)),
        digits=(2 if against.unit == "s" else 1, 1),
    )


def _told_across(against: Metric, value: Value) -> str:
    if against.name == "latency_s":
        return f"wait {value.middle:.2f} s (95th percentile {value.high:.2f} s)"
    return f"{against.name} {value.middle:.1f} ({value.low:.1f} to {value.high:.1f})"


def _line_across(against: Metric) -> str:
    return "; to the right, up to the 95th percentile." if against.name == "latency_s" else "."


def _unit(metric: Metric) -> str:
    return "" if metric.unit == metric.name else metric.unit


def _way(metric: Metric) -> str:
    return " (lower is better)" if metric.better == "low" else ""


def _spread(column: Column) -> Value:
    values = [column.metric.scale * value for value in column.values.values()]
    low, high = statistics.interval(values)
    if column.metric.unit == "%":  # the interval of a mean near the end is widened beyond what there can be
        low, high = max(0.0, low), min(100.0, high)
    return Value(fmean(values), low, high)


def _mean(run: Run, variant: str, metric: Metric) -> Value | None:
    column = score_variant(run, variant, metric)
    return _spread(column) if column.values else None


def _wait(run: Run, variant: str) -> Value | None:
    times = waits(run, variant)
    return Value(median(times), median(times), percentile_95(times)) if times else None


def waits(run: Run, variant: str) -> list[float]:
    """Seconds of the titles of a variant that have a time of their own, made on the run's own machine.

    Of a variant with a model only those count for which it was asked.
    """
    needs_model = run.plan.variant(variant).target is not None
    return sorted(
        row.elapsed_s
        for row in run.of(variant)
        if row.elapsed_s is not None
        and not row.contended
        and row.machine == run.machine
        and row.status != "failed"
        and (row.asked_model or not needs_model)
    )


def _times_of_models(run: Run) -> bool:
    names = [variant.label for variant in run.plan.variants if variant.target is not None]
    return any(waits(run, name) for name in names) or not names


def percentile_95(times: Sequence[float]) -> float:
    """The 95th percentile of times in order, as in `run.latency`."""
    return quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]


def latency_plot(run: Run) -> Bars:
    """Median, 95th percentile and longest time of each variant.

    Raises:
        OptionError: no title has a time of its own.
    """
    bars = []
    for variant in run.variants:
        times = waits(run, variant)
        if times:
            bars += [
                (f"{variant}, median", median(times)),
                (f"{variant}, 95 %", percentile_95(times)),
                (f"{variant}, longest", times[-1]),
            ]
    if not _times_of_models(run):
        raise OptionError(_ALONE, name="kind", value="latency")
    return Bars.of("Seconds from message to title, one at a time", bars, digits=3)


def scores_plot(run: Run, metric: Metric) -> Histograms:
    """How the values of a metric spread over the cases, by variant.

    Raises:
        OptionError: the metric applies to no case.
    """
    columns = [score_variant(run, variant, metric) for variant in run.variants]
    values = [[metric.scale * value for value in column.values.values()] for column in columns]
    if not any(values):
        raise OptionError(f"{metric.name} applies to none of the cases.", name="metric", value=metric.name)
    edges, names = _bins([value for some in values for value in some], metric)
    rows = []
    for column, some in zip(columns, values, strict=True):
        mean = f"mean {fmean(some):.1f} of {len(some)}" if some else "no value"
        rows.append((f"{column.variant} ({mean})", _counted(some, edges)))
    unit = f", {_unit(metric)}" if _unit(metric) else ""
    return Histograms(f"Cases by their {metric.name}{unit}{_way(metric)}", names, tuple(rows))


def _bins(values: Sequence[float], metric: Metric) -> tuple[list[float], tuple[str, ...]]:
    """The upper edges of the bins, and their names."""
    if metric.unit == "%" and set(values) <= {0.0, 100.0}:
        return [50.0, math.inf], ("no", "yes")
    low, high = (0.0, 100.0) if metric.unit == "%" else (min(values), max(values))
    step = _step((high - low) / _BINS)
    first = math.floor(low / step) * step
    count = max(1, math.ceil((high - first) / step - 1e-9))
    edges = [first + step * (at + 1) for at in range(count)]
    digits = max(0, -math.floor(math.log10(step)) + (step == 2.5))
    names = tuple(f"{edge - step:.{digits}f}-{edge:.{digits}f}" for edge in edges)
    return [*edges[:-1], math.inf], names


def _step(least: float) -> float:
    """A round number that is no smaller."""
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * step for step in _STEPS if power * step >= least * (1 - 1e-9))


def _counted(values: Iterable[float], edges: Sequence[float]) -> tuple[int, ...]:
    counts = [0] * len(edges)
    for value in values:
        counts[next(at for at, edge in enumerate(edges) if value < edge)] += 1
    return tuple(counts)


def differences_plot(caption: str, differences: Sequence[Difference], *, is_ranking: bool = False) -> Charts:
    """Mean differences with their intervals, one chart for each unit."""
    units = list(dict.fromkeys(one.metric.unit for one in differences))
    charts = []
    for unit in units:
        rows = [_interval(one, is_ranking) for one in differences if one.metric.unit == unit]
        named = {"%": "points", "s": "seconds"}.get(unit, unit)
        charts.append(
            Intervals(
                f"{caption}, {named}", tuple(rows), digits=3 if unit == "s" else 1, legend="shown to differ"
            )
        )
    return Charts(tuple(charts))


def _interval(one: Difference, is_ranking: bool) -> Interval:
    name = f"{one.b}, {one.metric.name}" if is_ranking else one.metric.name
    name += " (low is good)" if one.metric.better == "low" else ""
    return Interval(name, one.low, one.mean, one.high, one.word, one.is_shown)
