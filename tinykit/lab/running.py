"""Making a run: what is there is kept, what an earlier run has made is copied, what is missing is made."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tinykit
from tinykit import store
from tinykit.call_options import names_options
from tinykit.errors import OptionError, TinykitError
from tinykit.generation.batch import DEFAULT_BATCH_SIZE
from tinykit.generation.request import checked_switch
from tinykit.lab.cache import RowCache, as_cached
from tinykit.lab.cases import read_cases
from tinykit.lab.folder import RowWriter, RunFolder, checked_path
from tinykit.lab.keys import FORMAT, machine, no_model_facts
from tinykit.lab.local import LocalRunner, Runner, Show, failed_row, now
from tinykit.lab.plan import Cell, Plan, Target, digest, new_plan
from tinykit.lab.runs import Run, target_name
from tinykit.progress import Progress, Stage


@names_options
def run(
    cases: Any,
    recipes: Any = None,
    models: Any = None,
    *,
    out: str | Path | None = None,
    repeats: int = 1,
    batch_size: int = DEFAULT_BATCH_SIZE,
    exact: bool = False,
    baseline: bool = True,
    update: bool = False,
    cache: bool | Path = True,
    runner: Runner | str | Any = None,
    progress: Show = None,
) -> Run:
    """Titles for all cases by all recipes and models, kept on disk as they are made.

    Called again with the same arguments it makes only what is missing. Ctrl-C ends it with what there is;
    `Run.resume` goes on. A title that fails is a row that says why.

    Args:
        cases: Whatever `read_cases` reads, such as a list of messages or a file.
        recipes: Names, files or `Recipe`s, or `Variant`s that fix a model too; by default the model's own.
        models: Keys, paths or `Target`s with device and precision; by default the title model.
        out: Folder of the run; by default one in tinykit's cache that follows from what is asked for.
        repeats: Times to ask for each title.
        batch_size: Titles under way at once; with 1 the times of the rows are those of single titles.
        exact: As for `TinySession.titles`.
        baseline: Whether `first-words`, which needs no model, takes part.
        update: Whether a run in `out` that was made with other arguments is changed to these; what is the
            same in both is kept.
        cache: Whether to take titles of earlier runs, or the folder of a cache of one's own.
        runner: Where titles are made; by default here. A `distributed.Client` stands for its cluster, and
            ``"dask"`` for the one that this program has, or else for processes on this machine.
        progress: As for `TinySession`.

    Raises:
        UnknownModelError, UnknownRecipeError: there is no model or recipe of that name.
        OptionError: something else in the arguments is wrong, or `out` holds another run.
    """
    plan = new_plan(
        read_cases(cases),
        recipes,
        models,
        repeats=repeats,
        batch_size=batch_size,
        exact=exact,
        baseline=baseline,
    )
    for target in plan.targets:
        _check(target)
    folder = RunFolder(out if out is not None else _default_folder(plan))
    _begin(folder, plan, checked_switch(update, "update"))
    return carry_on(Run(folder), runner=runner, progress=progress, cache=cache)


def _check(target: Target) -> None:
    """Raise what is wrong with the names in a target; nothing is loaded, and its device may be elsewhere."""
    from tinykit.session import TinySession

    TinySession(lazy=True, shared=True, **target.options())


def _default_folder(plan: Plan) -> Path:
    return store.home() / "lab" / "runs" / digest(plan.to_dict())[:12]


def _begin(folder: RunFolder, plan: Plan, update: bool) -> None:
    if not folder.is_run():
        header: dict[str, Any] = {
            "format": FORMAT,
            "tinykit": tinykit.__version__,
            "created": now(),
            "machine": machine(),
        }
        folder.write_plan({**header, "targets": {}}, plan)
        return
    header = folder.header()
    different = _differences(header["plan"], plan.to_dict())
    if different and not update:
        raise OptionError(
            f"{folder.path} holds another run: {', '.join(different)} differ.",
            hint="Choose another folder; titles come from the cache. Or change this run with update=True.",
            name="out",
            value=str(folder.path),
        )
    if different or not folder.has_cases():
        folder.write_plan(header, plan)


def _differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    return [name for name in theirs if ours.get(name) != theirs[name]]


def carry_on(
    run: Run,
    *,
    only: Collection[Cell] | None = None,
    runner: Runner | str | Any = None,
    progress: Show = None,
    cache: bool | Path = True,
) -> Run:
    """Make what a run has not; with `only` ask for these cells again instead."""
    with ExitStack() as stack:
        if not isinstance(runner, Runner):
            runner = _new_runner(runner, progress)
            stack.callback(runner.close)

        def make(writer: RowWriter) -> None:
            run.reload()
            _Maker(run, writer, runner, _cache(cache), only).make_all(Progress(progress))

        try:
            run.write(make)
            was_interrupted = False
        except KeyboardInterrupt:
            was_interrupted = True
    run.reload()
    run.was_interrupted = was_interrupted
    return run


def _new_runner(given: Any, progress: Show) -> Runner:
    if given is None or given == "local":
        return LocalRunner(progress)
    if given != "dask" and not hasattr(given, "scheduler_info"):
        raise OptionError(
            f"runner must be 'local', 'dask', a distributed.Client or a Runner, not {given!r:.80}.",
            hint="Leave it out to make the titles here.",
            name="runner",
            value=given,
        )
    from tinykit.lab.dask_runner import DaskRunner

    return DaskRunner(None if given == "dask" else given)


def _cache(given: bool | Path) -> RowCache | None:
    if given is False:
        return None
    return RowCache(None if given is True else checked_path(given, "cache"))


class _Maker:
    """One pass over what a run lacks."""

    def __init__(
        self,
        run: Run,
        writer: RowWriter,
        runner: Runner,
        cache: RowCache | None,
        only: Collection[Cell] | None,
    ) -> None:
        self._run = run
        self._plan = run.plan
        self._writer = writer
        self._runner = runner
        self._cache = cache
        self._only = only

    def make_all(self, progress: Progress) -> None:
        total = self._plan.size if self._only is None else len(self._only)
        before = total - len(self._wanted())
        with progress.stage("lab", total=total, unit="titles", initial=before) as stage:
            for target in (None, *self._plan.targets):
                if not self._make(target, stage):
                    return  # cancelled

    def _make(self, target: Target | None, stage: Stage) -> bool:
        """The rows of one model; False after a cancel."""
        try:
            is_known = self._is_known(target)
        except TinykitError as error:
            return self._fail(target, error, stage)
        wanted = self._of(target)
        if self._only is not None and not wanted:
            return True
        if is_known:
            wanted = self._from_cache(wanted, stage)
        if not wanted and is_known is not False:
            return True
        try:
            facts = self._learn(target)
        except TinykitError as error:
            return self._fail(target, error, stage)
        # only now it is known for certain what counts as the same
        wanted = self._from_cache(self._of(target), stage)
        made = 0
        for row in self._runner.rows(self._plan.jobs(target, wanted, facts)):
            self._writer.append(row)
            if self._cache is not None:
                self._cache.put(row)
            made += 1
            stage.advance(1)
        return made == len(wanted)

    def _wanted(self) -> list[Cell]:
        """The cells that are to be made, in the order of the plan."""
        if self._only is not None:
            return [cell for cell in self._run.cell_keys if cell in self._only]
        done = {row.cell for row in self._run.rows if row.key}
        return [cell for cell in self._run.cell_keys if cell not in done]

    def _of(self, target: Target | None) -> list[Cell]:
        names = {variant.label for variant in self._plan.variants if variant.target == target}
        return [cell for cell in self._wanted() if cell.variant in names]

    def _is_known(self, target: Target | None) -> bool | None:
        """Whether the header's facts of a target still hold; None if it cannot be told without loading."""
        facts = self._run.facts(target)
        if target is None:
            if facts != no_model_facts():
                self._note(target, {}, no_model_facts())
            return True
        if facts is None:
            return None
        noted, now_asked = (
            self._run.header["targets"][target_name(target)]["asked"],
            self._runner.asked(target),
        )
        if now_asked["weights"] is None:
            return None if noted == {**now_asked, "weights": noted["weights"]} else False
        return bool(noted == now_asked)

    def _learn(self, target: Target | None) -> dict[str, Any]:
        """Load the model, and note what it is."""
        if target is None:
            return no_model_facts()
        facts = self._runner.facts(target)
        self._note(target, self._runner.asked(target), facts)
        return facts

    def _note(self, target: Target | None, asked: dict[str, Any], facts: dict[str, Any]) -> None:
        """Write what a target is before the first row that it makes."""
        entry = {"asked": asked, "facts": facts}
        header = self._run.header
        if header["targets"].get(target_name(target)) != entry:
            header["targets"][target_name(target)] = entry
            self._run.write_header(header)

    def _from_cache(self, wanted: list[Cell], stage: Stage) -> list[Cell]:
        """Copy what was made before, here or in another run; returns what is left."""
        if self._only is not None:
            return wanted
        keys = self._run.cell_keys
        here = {row.key: row for row in self._run.rows if row.status != "failed"}
        left = []
        for cell in wanted:
            recipe = self._plan.variant(cell.variant).recipe.name
            row = as_cached(here[keys[cell]], cell, recipe) if keys[cell] in here else None
            if row is None and self._cache is not None:
                row = self._cache.get(keys[cell], cell, recipe, batch_size=self._plan.batch_size)
            if row is None:
                left.append(cell)
            else:
                self._writer.append(row)
                stage.advance(1)
        if len(left) < len(wanted):
            self._run.reload()
        return left

    def _fail(self, target: Target | None, error: TinykitError, stage: Stage) -> bool:
        """Rows that say why a model could not be loaded; the other models go on."""
        for cell in self._of(target):
            self._writer.append(failed_row(cell, self._plan.variant(cell.variant), error))
            stage.advance(1)
        return True
