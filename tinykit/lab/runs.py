"""A run: rows of titles, whole or in part, that can be looked at, scored and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tinykit.charts import Chart
from tinykit.lab import comparing
from tinykit.lab.datasets import Case
from tinykit.lab.differences import Ranking, Side, rank
from tinykit.lab.folder import RowWriter, RunFolder
from tinykit.lab.keys import NO_MODEL, call_base, call_key
from tinykit.lab.plan import BASELINE, Cell, Plan, Target, Variant
from tinykit.lab.plots import Kind, plot
from tinykit.lab.rows import Row
from tinykit.lab.scoring import Named, RunScores, breakdown, score_run
from tinykit.lab.tables import Table
from tinykit.optional import require
from tinykit.plurals import counted

if TYPE_CHECKING:
    from tinykit.lab.local import Runner, Show

T = TypeVar("T")


class Run:
    """The titles of cases by recipes and models; what `lab.run` and `lab.load` return.

    A partial run can do all that a whole one can, with the rows that are there.

    Attributes:
        path: The folder that it lies in.
        plan: What was to be done.
        rows: What has been done, in the order of the plan.
        cell_keys: What is wanted, with the key that each row must have; empty while a model is unknown.
        notes: What was found odd while reading it.
        was_interrupted: Whether the call that returned it was ended by Ctrl-C.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.path = folder.path
        self.header = folder.header()
        self.plan: Plan = folder.plan()
        self.was_interrupted = False
        self.cell_keys: dict[Cell, str] = {}
        self.rows: tuple[Row, ...] = ()
        self._by_case: dict[tuple[str, str], tuple[Row, ...]] = {}
        self.notes: tuple[str, ...] = ()
        self.reload()

    def reload(self) -> None:
        """Read the rows again, which another process may be writing."""
        self.header = self._folder.header()
        found, notes = self._folder.rows()
        self.notes = tuple(notes)
        self.cell_keys = keys = self._keys()
        # a row without a key says that the model could not be loaded
        latest = {row.cell: row for row in found if row.cell in keys and row.key in ("", keys[row.cell])}
        self.rows = tuple(latest[cell] for cell in keys if cell in latest)
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.variant, row.case), []).append(row)
        self._by_case = {name: tuple(rows) for name, rows in groups.items()}

    def write(self, act: Callable[[RowWriter], T]) -> T:
        """What `act` returns, called with the only writer of this run; for what makes rows.

        Raises:
            OptionError: another process is writing.
        """
        return self._folder.write(act)

    def write_header(self, header: dict[str, Any]) -> None:
        """Give the run another header: rows that do not follow from it do not count any more."""
        self._folder.write_header(header)
        self.reload()

    @property
    def cases(self) -> tuple[Case, ...]:
        """The cases."""
        return self.plan.cases

    @property
    def variants(self) -> tuple[str, ...]:
        """The names of what is compared: recipes, or recipes with models."""
        return tuple(variant.label for variant in self.plan.variants)

    @property
    def machine(self) -> str:
        """The machine that the run was begun on; times of others are not compared with its own."""
        return str(self.header.get("machine", {}).get("id", ""))

    @property
    def missing(self) -> int:
        """Titles that are still to be made."""
        return self.plan.size - sum(bool(row.key) for row in self.rows)

    @property
    def is_complete(self) -> bool:
        """Whether every title that was wanted was asked for; some may have failed."""
        return self.missing == 0

    def failures(self) -> tuple[Row, ...]:
        """The rows that failed; their `error` says why."""
        return tuple(row for row in self.rows if row.status == "failed")

    def of(self, variant: str) -> tuple[Row, ...]:
        """The rows of one variant.

        Raises:
            OptionError: there is none of that name.
        """
        self.plan.variant(variant)
        return tuple(row for row in self.rows if row.variant == variant)

    def at(self, variant: str, case: str) -> tuple[Row, ...]:
        """The rows of one case, one for each repeat."""
        return self._by_case.get((variant, case), ())

    def __getitem__(self, variant: str) -> Side:
        """One variant, for `lab.diff`.

        Raises:
            OptionError: there is none of that name.
        """
        return Side(self, self.plan.variant(variant).label)

    def titles(self, variant: str, *, repeat: int = 0) -> dict[str, str | None]:
        """The titles of one variant by case id; cases that failed or are missing are left out."""
        rows = self.of(variant)
        return {row.case: row.title for row in rows if row.repeat == repeat and row.status != "failed"}

    def resume(self, *, runner: Runner | str | Any = None, progress: Show = None, cache: Any = True) -> Run:
        """Make the titles that are missing; failed ones stay as they are."""
        from tinykit.lab.running import carry_on

        return carry_on(self, runner=runner, progress=progress, cache=cache)

    def retry_failures(self, *, runner: Runner | str | Any = None, progress: Show = None) -> Run:
        """Ask again for the titles that failed, and for nothing else."""
        from tinykit.lab.running import carry_on

        cells = {row.cell for row in self.failures()}
        return carry_on(self, only=cells, runner=runner, progress=progress, cache=False)

    def scores(self, metrics: Named | None = None) -> RunScores:
        """What the titles score, variant by variant; no model is needed.

        Args:
            metrics: Names of `lab.metrics.METRICS`, or functions of a case and a title.
        """
        return score_run(self, metrics)

    def breakdown(self, metric: Any = "keywords", *, by: str = "category") -> Table:
        """One metric by groups of cases: their category, language, or tags."""
        return breakdown(self, metric, by)

    def table(
        self,
        variants: Sequence[str] | None = None,
        *,
        only_different: bool = False,
        limit: int | None = None,
        against: str | None = None,
    ) -> Table:
        """The titles, cases down and variants across.

        Args:
            variants: The names of those to show; all by default.
            only_different: Leave out the cases for which all of them have the same title.
            limit: Show so many cases at most.
            against: One of them; in the titles of the others the words are marked that its title has not.

        Raises:
            OptionError: there is no such variant.
        """
        return comparing.titles_table(
            self, variants, only_different=only_different, limit=limit, against=against
        )

    def rank(self, base: str = BASELINE, *, metrics: Named | None = None) -> Ranking:
        """Every variant against one of them, with intervals and a verdict each."""
        return rank(self, base, metrics=metrics)

    def reasons(self) -> Table:
        """Reason codes by variant."""
        return comparing.reasons_table(self)

    def latency(self) -> Table:
        """Seconds by variant, where they are a title's own (``batch_size=1``)."""
        return comparing.latency_table(self)

    def plot(self, kind: Kind = "quality", metric: Any = None, *, against: Any = None) -> Chart:
        """A picture of the run, and the same numbers as text.

        Args:
            kind: ``quality``: a metric against the wait, a point for each variant; ``scores``: how the values
                of a metric spread; ``latency``: percentiles of the wait.
            metric: By default the first of keywords, chrf and words_3_7 that applies to the cases.
            against: For ``quality``, another metric than the wait, such as ``completion_tokens``, which is
                the default where titles were made in batches.

        Raises:
            OptionError: there is nothing to show, such as times of titles that were made in batches.
        """
        return plot(self, kind, metric, against=against)

    def stability(self) -> Table:
        """Whether repeats gave the same titles."""
        return comparing.stability_table(self)

    def freeze(self, variant: str, folder: str | Path) -> Path:
        """Write a variant's titles and recipe as a regression test, with a notebook that nbval checks.

        Raises:
            OptionError: titles are missing or failed.
        """
        from tinykit.lab.freezing import freeze

        return freeze(self, variant, folder)

    def report(self, path: str | Path, *, only_different: bool = True, limit: int | None = None) -> Path:
        """Write a report of everything: a page of HTML that needs nothing else, or Markdown.

        Raises:
            OptionError: the file ends neither in .html nor in .md.
        """
        from tinykit.lab.reports import write_report

        return write_report(self, path, only_different=only_different, limit=limit)

    def to_frame(self) -> Any:
        """The rows as a DataFrame of pandas.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        pandas = require("pandas", extra="lab", purpose="a DataFrame of a run")
        return pandas.DataFrame([row.to_dict() for row in self.rows])

    def facts(self, target: Target | None) -> dict[str, Any] | None:
        """What a model was found to be and to run on; None if it was never loaded."""
        found = self.header.get("targets", {}).get(target_name(target), {})
        facts = found.get("facts")
        return facts if isinstance(facts, dict) else None

    def _keys(self) -> dict[Cell, str]:
        """The key that the row of each cell must have; an empty one where the model is not known yet."""
        found: dict[Cell, str] = {}
        messages = {case.id: case.message for case in self.plan.cases}
        for variant in self.plan.variants:
            facts = self.facts(variant.target)
            base = self._base(variant, facts) if facts else ""
            for cell in self.plan.cells(variant):
                found[cell] = call_key(base, messages[cell.case], cell.repeat) if facts else ""
        return found

    def _base(self, variant: Variant, facts: dict[str, Any]) -> str:
        return call_base(variant.recipe, facts, exact=self.plan.exact, batch_size=self.plan.batch_size)

    def summary(self) -> str:
        """How far it is, in a sentence."""
        counts: dict[str, int] = {}
        for row in self.rows:
            name = "failed" if row.status == "failed" else "from the cache" if row.cached else "made"
            counts[name] = counts.get(name, 0) + 1
        parts = [f"{count:,} {name}" for name, count in sorted(counts.items())]
        if self.missing:
            parts.append(f"{self.missing:,} missing")
        size = f"{counted(len(self.plan.cases), 'case')} × {counted(len(self.plan.variants), 'variant')}"
        size += f" × {self.plan.repeats} repeats" if self.plan.repeats > 1 else ""
        return f"{size}: {', '.join(parts) or 'nothing yet'}"

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return self.summary()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows: how far it is, and the scores."""
        printer.text(f"{self.summary()}\n\n{self.scores()}" if self.rows else self.summary())

    def _repr_html_(self) -> str:
        return self.scores().table().to_html()

    def __repr__(self) -> str:
        return f"<Run {str(self.path)!r}: {self.summary()}>"


def load(path: str | Path) -> Run:
    """A stored run, whole or in part, from its folder; no model is needed.

    Raises:
        OptionError: there is none, or one that cannot be read.
    """
    return Run(RunFolder(path))


def target_name(target: Target | None) -> str:
    """What a model is called in the header."""
    return target.label if target is not None else NO_MODEL
