"""Two variants compared case by case, with a verdict in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tinykit.charts import Charts
from tinykit.errors import OptionError
from tinykit.lab import statistics
from tinykit.lab.metric import Metric
from tinykit.lab.metrics import STANDARD, checked_margins
from tinykit.lab.names import unknown
from tinykit.lab.plots import differences_plot
from tinykit.lab.scoring import Named, chosen_metrics, score_variant
from tinykit.lab.tables import Table, Tabular, changes_table
from tinykit.plurals import counted

if TYPE_CHECKING:
    from tinykit.lab.runs import Run

MARGINS = {"%": 3.0, "s": 0.1}  # smallest differences that matter, as they are shown
_LEVEL = 0.05
_SHOWN_IDS = 8


@dataclass(frozen=True)
class Side:
    """One variant of a run, ready to be compared: ``run["titles"]``."""

    run: Run
    variant: str

    @property
    def titles(self) -> dict[str, str | None]:
        """The titles by case id."""
        return self.run.titles(self.variant)

    def __repr__(self) -> str:
        return f"<{self.variant} of {self.run!r}>"


@dataclass(frozen=True)
class Difference:
    """What one metric says of a change from `a` to `b`; numbers as they are shown, `b` minus `a`.

    Attributes:
        cases: Cases for which both have a value.
        better, worse, same: For how many of them `b` is the better or the worse one.
        low, high: 95 % interval of the mean difference.
        p: Two-sided; of the sign test for pass and fail, of a permutation test for other numbers.
        p_holm: The same, corrected for all comparisons that are shown together.
        margin: The smallest difference that matters.
        needed: Cases at which a difference of the margin would show.
        smallest: The difference that would show with these cases.
    """

    metric: Metric
    a: str
    b: str
    mean_a: float
    mean_b: float
    cases: int
    better: int
    worse: int
    same: int
    low: float
    high: float
    p: float
    p_holm: float
    margin: float
    needed: int
    smallest: float

    @property
    def mean(self) -> float:
        """The mean difference."""
        return self.mean_b - self.mean_a

    @property
    def is_decided(self) -> bool:
        """Whether one of them is shown to be better."""
        return self.is_shown and bool(self.metric.better)

    @property
    def is_shown(self) -> bool:
        """Whether the two are shown to differ, in a metric of which neither way is better too."""
        return self.p_holm < _LEVEL and not self.low <= 0 <= self.high

    @property
    def word(self) -> str:
        """The verdict in a word or two, as a plot has room for."""
        if self.winner is not None:
            return f"{self.winner} better"
        if self.better == self.worse == 0 and not self.mean:
            return "the same"
        if self.is_shown:
            return "higher" if self.mean > 0 else "lower"
        return "no difference" if -self.margin < self.low and self.high < self.margin else "undecided"

    @property
    def winner(self) -> str | None:
        """The better variant, if that is shown."""
        if not self.is_decided:
            return None
        return self.b if (self.mean > 0) == (self.metric.better == "high") else self.a

    @property
    def verdict(self) -> str:
        """What can be said, in words."""
        unit = {"%": "points", "s": "s"}.get(self.metric.unit, self.metric.unit)
        if self.winner is not None:
            return f"{self.winner} better by {abs(self.mean):{self._format}} {unit}"
        if self.better == self.worse == 0 and not self.mean:
            return "no difference: the same on every case"
        if self.is_shown:
            return (
                f"{self.b} {'higher' if self.mean > 0 else 'lower'} by {abs(self.mean):{self._format}} {unit}"
            )
        if -self.margin < self.low and self.high < self.margin:
            return f"no difference shown: less than {self.margin:g} {unit}"
        more = self.needed - self.cases
        shown = f"show{'s' if self.cases == 1 else ''} {self.smallest:{self._format}} {unit} or more"
        shows = f"undecided: {counted(self.cases, 'case')} {shown}"
        return f"{shows}; about {_rounded(more)} more would show {self.margin:g}" if more > 0 else shows

    @property
    def _format(self) -> str:
        return ".3f" if self.metric.unit == "s" else ".1f"

    def cells(self) -> list[str]:
        """As a row of a table."""
        numbers = [self.mean_a, self.mean_b, self.mean, self.low, self.high]
        a, b, mean, low, high = (f"{number:{self._format}}" for number in numbers)
        sign = "+" if self.mean > 0 else ""
        return [
            str(self.cases), a, b, f"{sign}{mean}", f"{low} to {high}",
            f"{self.better} / {self.same} / {self.worse}", _p_text(self.p_holm), self.verdict,
        ]  # fmt: skip


_COLUMNS = ("cases", "a", "b", "b - a", "95 % interval", "better / same / worse", "p (Holm)", "verdict")


@dataclass(frozen=True, repr=False)
class Diff(Tabular):
    """What `lab.diff` returns: the differences by metric, and the cases whose titles changed."""

    a: str
    b: str
    differences: tuple[Difference, ...]
    changed: tuple[tuple[str, str | None, str | None], ...]
    cases: int

    def __getitem__(self, metric: str) -> Difference:
        """The difference in one metric.

        Raises:
            OptionError: it was not asked for, or applies to no case that both have.
        """
        for one in self.differences:
            if one.metric.name == metric:
                return one
        raise unknown("metric", metric, [one.metric.name for one in self.differences], "Not compared:")

    def table(self) -> Table:
        """Metrics down, with intervals and verdicts."""
        caption = f"a = {self.a}, b = {self.b}; {len(self.changed)} of {counted(self.cases, 'title')} differ"
        rows = [[one.metric.name, *one.cells()] for one in self.differences]
        return Table(caption, ["", *_COLUMNS], rows, _notes(self.differences))

    def changes(self) -> Table:
        """The titles that differ; words that only one of them has are marked."""
        return changes_table("Titles that differ", ("case", self.a, self.b), self.changed)

    def plot(self) -> Charts:
        """The differences with their intervals."""
        return differences_plot(f"{self.b} minus {self.a}", self.differences)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "a": self.a,
            "b": self.b,
            "cases": self.cases,
            "changed": len(self.changed),
            "metrics": {one.metric.name: difference_fields(one) for one in self.differences},
        }


@dataclass(frozen=True, repr=False)
class Ranking(Tabular):
    """Every variant of a run against one of them, corrected for their number."""

    base: str
    differences: Mapping[str, tuple[Difference, ...]]

    def table(self) -> Table:
        """Variants and metrics down."""
        every = [one for ones in self.differences.values() for one in ones]
        rows = [[one.b, one.metric.name, *one.cells()] for one in every]
        return Table(f"a = {self.base}", ["b", "metric", *_COLUMNS], rows, _notes(every))

    def plot(self) -> Charts:
        """The differences with their intervals."""
        every = [one for ones in self.differences.values() for one in ones]
        return differences_plot(f"Each minus {self.base}", every, is_ranking=True)


def difference_fields(one: Difference) -> dict[str, Any]:
    """A difference as plain values."""
    names = ("cases", "better", "same", "worse", "mean_a", "mean_b", "mean", "low", "high", "p", "p_holm",
             "verdict", "winner")  # fmt: skip
    return {name: getattr(one, name) for name in names}


def diff(
    a: Run | Side | str,
    b: Run | Side | str,
    *,
    metrics: Named | None = None,
    margins: Mapping[str, float] | None = None,
    only_common: bool = False,
) -> Diff:
    """What changes from `a` to `b`, case by case.

    Args:
        a, b: ``run["variant"]``, or runs that have one variant besides the baseline. A name is a variant of
            the other one's run.
        metrics: Names, `Metric`s or functions; the standard ones by default.
        margins: By metric, the smallest difference that matters, as it is shown; 3 points by default.
        only_common: Compare the cases that both have, where one has others too.

    Raises:
        OptionError: there is no such variant, one has cases that the other has not, or the same ids are other
            messages.
    """
    left, right = side_of(a, other=b), side_of(b, other=a)
    _check_cases(left, right, only_common)
    chosen = chosen_metrics(right.run, metrics if metrics is not None else STANDARD)
    margins = checked_margins(margins, chosen)
    found = [_difference(left, right, metric, margins) for metric in chosen]
    names = _names(left, right)
    ours, theirs = left.titles, right.titles
    common = [case for case in ours if case in theirs]
    changed = tuple((case, ours[case], theirs[case]) for case in common if ours[case] != theirs[case])
    present = [replace(one, a=names[0], b=names[1]) for one in found if one is not None]
    return Diff(*names, tuple(corrected(present)), changed, len(common))


def rank(
    run: Run, base: str, *, metrics: Named | None = None, margins: Mapping[str, float] | None = None
) -> Ranking:
    """Every other variant of a run against `base`, with one correction for all comparisons."""
    chosen = chosen_metrics(run, metrics if metrics is not None else ("keywords", "chrf"))
    margins = checked_margins(margins, chosen)
    others = [variant for variant in run.variants if variant != base]
    run.plan.variant(base)
    found = [
        one
        for other in others
        for metric in chosen
        if (one := _difference(Side(run, base), Side(run, other), metric, margins)) is not None
    ]
    checked = corrected(found)
    return Ranking(base, {other: tuple(one for one in checked if one.b == other) for other in others})


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """The differences with p values for all of them together."""
    p_values = statistics.holm([one.p for one in differences])
    return [replace(one, p_holm=p) for one, p in zip(differences, p_values, strict=True)]


def _difference(a: Side, b: Side, metric: Metric, margins: Mapping[str, float]) -> Difference | None:
    ours = score_variant(a.run, a.variant, metric).values
    theirs = score_variant(b.run, b.variant, metric).values
    common = [case for case in ours if case in theirs]
    if not common or (metric.unit == "s" and a.run.machine != b.run.machine):
        return None
    return paired([ours[case] for case in common], [theirs[case] for case in common], metric, a.variant,
                  b.variant, margins.get(metric.name))  # fmt: skip


def paired(
    ours: Sequence[float],
    theirs: Sequence[float],
    metric: Metric,
    a: str,
    b: str,
    margin: float | None = None,
) -> Difference:
    """The difference of two lists of values of the same cases."""
    scale = metric.scale
    changes = [scale * (after - before) for before, after in zip(ours, theirs, strict=True)]
    up, down = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
    is_binary = {*ours, *theirs} <= {0.0, 1.0}
    p = statistics.sign_test(up, down) if is_binary else statistics.permutation_test(changes)
    better, worse = (down, up) if metric.better == "low" else (up, down)
    low, high = statistics.interval(changes)
    margin = margin if margin is not None else MARGINS.get(metric.unit, 1.0)
    return Difference(
        metric, a, b, scale * fmean(ours), scale * fmean(theirs), len(changes), better, worse,
        len(changes) - up - down, low, high, p, p, margin,
        statistics.cases_needed(changes, margin), statistics.smallest_effect(changes),
    )  # fmt: skip


def side_of(given: Run | Side | str, other: Run | Side | str = "") -> Side:
    """The one variant of a run that can be meant; a name is one of the other side's run.

    Raises:
        OptionError: there are several, or none of that name.
    """
    if isinstance(given, Side):
        return given
    if isinstance(given, str):
        if isinstance(other, str):
            raise OptionError(
                f"{given!r} and {other!r} are names; of which run is not said.",
                hint=f"Give them as run[{given!r}] and run[{other!r}].",
                name="a",
                value=given,
            )
        run = other.run if isinstance(other, Side) else other
        return Side(run, run.plan.variant(given).label)
    if not hasattr(given, "plan"):
        raise OptionError(
            f"What is compared must be a run or a variant of one, not {given!r:.80}.",
            hint='For example: lab.diff(run["plain"], run["titles"])',
            name="a",
            value=given,
        )
    others = [v.label for v in given.plan.variants if v.recipe.method == "model"]
    names = others or list(given.variants)
    if len(names) != 1:
        raise OptionError(
            f"The run has the variants {', '.join(names)}; say which one to compare.",
            hint=f"For example: run[{names[-1]!r}]",
            name="run",
            value=names,
        )
    return Side(given, names[0])


def _names(a: Side, b: Side) -> tuple[str, str]:
    if a.variant != b.variant:
        return a.variant, b.variant
    return f"{a.variant} ({a.run.path.name})", f"{b.variant} ({b.run.path.name})"


def _check_cases(a: Side, b: Side, only_common: bool) -> None:
    if a.run is b.run:
        return
    ours = {case.id: case.message for case in a.run.cases}
    theirs = {case.id: case.message for case in b.run.cases}
    odd = sorted(ours.keys() ^ theirs.keys())
    if odd and not only_common:
        many = f"{counted(len(odd), 'case')} {'is' if len(odd) == 1 else 'are'}"
        raise OptionError(
            f"{many} only in one of the runs: {_listed(odd)}.",
            hint="Compare the common ones with only_common=True.",
            name="cases",
            value=odd,
        )
    other = sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])
    if other:
        many = f"{counted(len(other), 'case')} {'has' if len(other) == 1 else 'have'}"
        raise OptionError(
            f"{many} the same id and another message: {_listed(other)}.",
            name="cases",
            value=other,
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN_IDS]) + (", …" if len(names) > _SHOWN_IDS else "")


def _notes(differences: Sequence[Difference]) -> list[str]:
    notes = [
        "Intervals: paired bootstrap over cases. p: exact sign test for pass and fail, permutation test for "
        f"other numbers, corrected for {counted(len(differences), 'comparison')} (Holm)."
    ]
    lower = list(dict.fromkeys(one.metric.name for one in differences if one.metric.better == "low"))
    return [*notes, *([f"Lower is better: {', '.join(lower)}."] if lower else [])]


def _p_text(p: float) -> str:
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def _rounded(number: int) -> int:
    """A number of cases to two digits: more would pretend to know it."""
    digits = max(0, len(str(number)) - 2)
    return int(round(number, -digits)) if digits else number
