"""What the titles of a run score. Needs no model: stored runs are scored again with whatever is new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tinykit.errors import OptionError
from tinykit.lab.datasets import Case
from tinykit.lab.metric import Metric
from tinykit.lab.metrics import STANDARD, get_metric, is_own
from tinykit.lab.names import unknown
from tinykit.lab.rows import Row
from tinykit.lab.tables import Table, Tabular
from tinykit.plurals import counted

if TYPE_CHECKING:
    from tinykit.lab.runs import Run

_EXTRA = ("find_it", "latency_s")
Named = Iterable[str | Metric | Callable[..., Any]]


@dataclass(frozen=True)
class Column:
    """The values of one metric for one variant.

    Attributes:
        values: By case id; of repeats the mean. Cases where it does not apply are left out.
        wanted: Cases of the run.
        failed: Titles for which the metric raised an error.
        error: The first of these errors.
    """

    variant: str
    metric: Metric
    values: Mapping[str, float]
    wanted: int
    failed: int = 0
    error: str = ""

    @property
    def mean(self) -> float | None:
        """The mean as it is shown: in percent for values from 0 to 1."""
        return self.metric.scale * fmean(self.values.values()) if self.values else None


@dataclass(frozen=True, repr=False)
class RunScores(Tabular):
    """Every metric for every variant of a run."""

    caption: str
    columns: Mapping[tuple[str, str], Column]
    variants: tuple[str, ...]
    metrics: tuple[Metric, ...]
    made: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def __getitem__(self, key: tuple[str, str]) -> Column:
        """The values of ``[variant, metric]``.

        Raises:
            OptionError: there is no such variant, or the metric was not asked for.
        """
        if key in self.columns:
            return self.columns[key]
        variant, metric = key
        if variant not in self.variants:
            raise unknown("variant", variant, self.variants, "The run has no")
        raise unknown("metric", metric, [one.name for one in self.metrics], "Not scored:")

    def mean(self, variant: str, metric: str) -> float | None:
        """A mean as it is shown; None where the metric never applies."""
        return self[variant, metric].mean

    def table(self) -> Table:
        """Variants down, metrics across; a dash where nothing applies."""
        shown = [metric for metric in self.metrics if any(self._values(metric))]
        names = ["", "titles", *(metric.name for metric in shown)]
        rows = [
            [variant, self.made[variant], *(_cell(self.columns[variant, metric.name]) for metric in shown)]
            for variant in self.variants
        ]
        return Table(self.caption, names, rows, (*self._explained(shown), *self.notes))

    def to_dict(self) -> dict[str, Any]:
        """Means and counts by variant, ready for JSON."""
        return {
            variant: {
                metric.name: {"mean": column.mean, "cases": len(column.values), "errors": column.failed}
                for metric in self.metrics
                for column in [self.columns[variant, metric.name]]
            }
            for variant in self.variants
        }

    def _values(self, metric: Metric) -> list[Mapping[str, float]]:
        return [self.columns[variant, metric.name].values for variant in self.variants]

    def _explained(self, shown: Sequence[Metric]) -> list[str]:
        """What the columns are, and over how many cases, where that is not all the same."""
        found = []
        for metric in shown:
            columns = [self.columns[variant, metric.name] for variant in self.variants]
            counts = sorted({len(column.values) for column in columns})
            over = counted(counts[-1], "case")
            over = over if len(counts) == 1 else f"{counts[0]} to {over}"
            way = {"high": "", "low": "; lower is better", "": "; no better or worse"}[metric.better]
            found.append(f"{metric.name}: {metric.help or 'your metric'}; over {over}{way}.")
            found += [
                f"{metric.name} failed for {counted(column.failed, 'title')} of {column.variant}: "
                f"{column.error}"
                for column in columns
                if column.failed
            ]
        return found


def score_run(run: Run, metrics: Named | None = None) -> RunScores:
    """Score a run; a metric that fails loses its own values and nothing else."""
    chosen = chosen_metrics(run, metrics if metrics is not None else (*STANDARD, *_EXTRA))
    columns = {
        (variant, metric.name): score_variant(run, variant, metric)
        for variant in run.variants
        for metric in chosen
    }
    made = {variant: _made(run, variant) for variant in run.variants}
    notes = () if run.is_complete else (_still_missing(run.missing),)
    return RunScores(run.summary(), columns, run.variants, chosen, made, notes)


def chosen_metrics(run: Run, names: Named) -> tuple[Metric, ...]:
    """The named metrics; one whose function gives a dict is a metric for each of its keys."""
    given: Any = names
    is_one = isinstance(given, str | Metric) or not isinstance(given, Iterable)
    return tuple(part for name in ([given] if is_one else given) for part in _parts(run, get_metric(name)))


def _parts(run: Run, metric: Metric) -> list[Metric]:
    if metric.of == "set" or is_own(metric):
        return [metric]
    cases = {case.id: case for case in run.cases}
    keys: dict[str, None] = {}
    for row in run.rows:
        value = _raw(metric, cases[row.case], row, run.plan.variant(row.variant).recipe)
        if isinstance(value, Mapping):
            keys |= dict.fromkeys(map(str, value))
        elif value is not None:
            return [metric]
    return [_part(metric, key) for key in keys] or [metric]


def _part(metric: Metric, key: str) -> Metric:
    def value(*given: Any) -> Any:
        found = metric.function(*given)
        return None if found is None else found.get(key)

    return replace(metric, name=f"{metric.name}.{key}", function=value)


def _raw(metric: Metric, case: Case, row: Row, recipe: Any) -> Any:
    try:
        return metric.function(case, row, recipe) if metric.of == "row" else metric.function(case, row.title)
    except Exception:  # a metric is the user's own code; its errors are counted when it is scored
        return None


def score_variant(run: Run, variant: str, metric: Metric) -> Column:
    """The values of one metric for one variant."""
    rows = [row for row in run.of(variant) if row.status != "failed"]
    if metric.unit == "s":  # a title from the cache brings the time of the machine that made it
        rows = [row for row in rows if row.machine == run.machine]
    cases = {case.id: case for case in run.cases}
    found: dict[str, list[float]] = {}
    errors: list[str] = []
    for case_id, value in _values(run, variant, metric, rows, cases, errors):
        if value is not None:
            found.setdefault(case_id, []).append(float(value))
    values = {case.id: fmean(found[case.id]) for case in run.cases if case.id in found}
    return Column(variant, metric, values, len(cases), len(errors), errors[0] if errors else "")


def breakdown(run: Run, metric: Any, by: str) -> Table:
    """Groups of cases down, variants across, the mean of one metric in each cell.

    Raises:
        OptionError: `by` is nothing that cases can be grouped by.
    """
    if by not in _GROUPS:
        raise OptionError(f"Cases are grouped by {', '.join(_GROUPS)}, not by {by!r}.", name="by", value=by)
    chosen = get_metric(metric)
    groups: dict[str, list[str]] = {}
    for case in run.cases:
        for name in _GROUPS[by](case):
            groups.setdefault(name or "-", []).append(case.id)
    columns = [score_variant(run, variant, chosen) for variant in run.variants]
    rows = []
    for name, ids in groups.items():
        parts = [replace(c, values={i: c.values[i] for i in ids if i in c.values}) for c in columns]
        rows.append([name, str(len(ids)), *map(_cell, parts)])
    return Table(f"{chosen.name} by {by}", [by, "cases", *run.variants], rows)


_GROUPS: dict[str, Callable[[Case], Sequence[str]]] = {
    "category": lambda case: [case.category],
    "language": lambda case: [case.language.split("-")[0]],
    "tags": lambda case: case.tags,
}


def _values(
    run: Run, variant: str, metric: Metric, rows: Sequence[Row], cases: Mapping[str, Case], errors: list[str]
) -> list[tuple[str, float | None]]:
    if metric.of != "set":
        recipe = run.plan.variant(variant).recipe
        return [(row.case, _value(metric, cases[row.case], row, recipe, errors)) for row in rows]
    found: list[tuple[str, float | None]] = []
    for repeat in sorted({row.repeat for row in rows}):
        these = [row for row in rows if row.repeat == repeat]
        try:
            values = list(metric.function([cases[row.case] for row in these], [row.title for row in these]))
            found += zip([row.case for row in these], values, strict=True)
        except Exception as error:  # a metric is the user's own code
            errors.append(f"{type(error).__name__}: {error}")
    return found


def _value(metric: Metric, case: Case, row: Row, recipe: Any, errors: list[str]) -> float | None:
    try:
        value = metric.function(case, row, recipe) if metric.of == "row" else metric.function(case, row.title)
        return None if value is None else float(value)
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")
        return None


def _still_missing(count: int) -> str:
    return f"{counted(count, 'title')} {'is' if count == 1 else 'are'} still missing."


def _made(run: Run, variant: str) -> str:
    """How many titles there are, and why the others are none: '193 of 200 (5 too_long, 2 failed)'."""
    rows = run.of(variant)
    reasons = Counter(
        row.status if row.status == "failed" else (row.why[-1] if row.why else "no title")
        for row in rows
        if row.status != "title"
    )
    reasons["missing"] = len(run.cases) * run.plan.repeats - len(rows)
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common() if count)
    titles = sum(row.status == "title" for row in rows)
    return f"{titles} of {len(run.cases) * run.plan.repeats}" + (f" ({told})" if told else "")


def _cell(column: Column) -> str:
    mean = column.mean
    if mean is None:
        return "-"
    return f"{mean:.3f}" if column.metric.unit == "s" else f"{mean:.1f}"
