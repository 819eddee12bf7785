"""The command ``tinykit lab``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinykit.plurals import counted

if TYPE_CHECKING:
    from tinykit.lab.differences import Side
    from tinykit.lab.local import Runner
    from tinykit.lab.plots import Kind
    from tinykit.lab.scoring import RunScores

_INTERRUPTED = 130
_as_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")
_metric = click.option("--metric", "metrics", multiple=True, help="A metric; may be given several times.")


@click.group()
def lab() -> None:
    """Compare recipes and models on your own messages, and keep the titles that they make.

    Exit codes are for scripts: 1 says that titles failed, a bound was missed, something got worse or changed.
    """


@lab.command()
@click.argument("cases")
@click.option(
    "-r", "--recipe", "recipes", multiple=True, help="A name or a file; may be given several times."
)
@click.option("-m", "--model", "models", multiple=True, help="As for 'tinykit title'; several make a sweep.")
@click.option("-o", "--out", type=click.Path(file_okay=False), help="Folder of the run.")
@click.option("-d", "--device", help="Where to compute.")
@click.option("--dtype", "dtypes", multiple=True, help="Precision of the weights; several make a sweep.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads to compute with.")
@click.option("--repeats", default=1, show_default=True, help="Times to ask for each title.")
@click.option("--batch-size", default=16, show_default=True, help="Titles at once; 1 for honest times.")
@click.option("--limit", type=click.IntRange(min=1), help="Take only so many cases.")
@click.option("--column", default="message", show_default=True, help="Column or field of the message.")
@click.option("--runner", type=click.Choice(["local", "dask"]), default="local", help="Who makes the titles.")
@click.option("--workers", type=click.IntRange(min=1), help="With dask: processes here; one for each core.")
@click.option("--scheduler", metavar="ADDRESS", help="With dask: a cluster that runs, such as host:8786.")
@click.option("--update", is_flag=True, help="Change the run in --out to these arguments.")
@click.option("--no-cache", is_flag=True, help="Take no titles of earlier runs.")
@click.option("--retry", is_flag=True, help="Also ask again for titles that failed.")
def run(
    cases: str,
    recipes: tuple[str, ...],
    models: tuple[str, ...],
    out: str | None,
    device: str | None,
    dtypes: tuple[str, ...],
    threads: int | None,
    limit: int | None,
    column: str,
    runner: str,
    workers: int | None,
    scheduler: str | None,
    no_cache: bool,
    retry: bool,
    **options: Any,
) -> int:
    """Title all CASES: a JSONL, CSV or JSON file, a chat export, or 'titles' for those of tinykit.

    Ctrl-C ends the run and keeps what there is; the same command goes on with it.
    """
    from tinykit.lab.cases import read_cases
    from tinykit.lab.datasets import titles
    from tinykit.lab.plan import Target
    from tinykit.lab.running import run as make_run

    rows = titles() if cases == "titles" else read_cases(cases, message=column)
    targets = [
        Target(model=model, device=device, dtype=dtype, threads=threads)
        for model in models or (None,)
        for dtype in dtypes or (None,)
    ]
    with _runner(runner, workers, scheduler) as maker:
        options |= {"out": out, "cache": not no_cache, "runner": maker}
        found = make_run(rows[:limit], recipes or None, targets, **options)
        if retry and found.failures() and not found.was_interrupted:
            found = found.retry_failures(runner=maker)
    click.echo(str(found.scores().table()))
    click.echo(f"The run is in {found.path}", err=True)
    for failure in found.failures()[:1]:
        click.echo(f"{counted(len(found.failures()), 'title')} failed; the first: {failure.error}", err=True)
    if found.was_interrupted:
        return _INTERRUPTED
    return 1 if found.failures() or not found.is_complete else 0


@contextmanager
def _runner(name: str, workers: int | None, scheduler: str | None) -> Iterator[Runner | None]:
    """Who makes the titles; None stands for this process."""
    if name == "local":
        for option, value in (("--workers", workers), ("--scheduler", scheduler)):
            if value is not None:
                raise click.UsageError(f"{option} goes with --runner dask.")
        yield None
        return
    if workers is not None and scheduler is not None:
        raise click.UsageError("--workers starts a cluster, --scheduler names one that runs: give one.")
    from tinykit.lab.dask_runner import DaskRunner

    with closing(DaskRunner(scheduler, workers=workers)) as runner:
        yield runner


@lab.command()
@click.argument("path", metavar="RUN")
@_metric
@click.option("--min", "lowest", multiple=True, metavar="METRIC=NUMBER", help="Fail if a mean is below this.")
@click.option(
    "--max", "highest", multiple=True, metavar="METRIC=NUMBER", help="Fail if a mean is above this."
)
@click.option("--variant", help="Check the bounds of this variant only; else of all that ask a model.")
@_as_json
def score(
    path: str,
    metrics: tuple[str, ...],
    lowest: tuple[str, ...],
    highest: tuple[str, ...],
    variant: str | None,
    as_json: bool,
) -> int:
    """Score the titles of RUN, a folder; no model is needed.

    Bounds are in percent, or in the unit of the metric: --min keywords=60 --max invented=2.
    """
    from tinykit.lab.runs import load
    from tinykit.lab.scoring import score_run

    found = load(path)
    bounds = [_bound(text, +1) for text in lowest] + [_bound(text, -1) for text in highest]
    wanted = dict.fromkeys([*metrics, *(name for name, _, _ in bounds)])
    scores = score_run(found, list(wanted) if metrics else None)
    bound_scores = score_run(found, list(wanted)) if bounds else scores
    click.echo(json.dumps(scores.to_dict(), indent=1) if as_json else str(scores))
    asking = [v.label for v in found.plan.variants if v.recipe.method == "model"]
    chosen = [found.plan.variant(variant).label] if variant else asking or list(found.variants)
    missed = [text for bound in bounds for name in chosen if (text := _missed(bound_scores, name, bound))]
    for text in missed:
        click.echo(text, err=True)
    return 1 if missed else 0


def _bound(text: str, sign: int) -> tuple[str, float, int]:
    name, _, number = text.partition("=")
    try:
        return name, float(number), sign
    except ValueError:
        raise click.UsageError(f"{text!r} is no bound; give METRIC=NUMBER, such as keywords=60.") from None


def _missed(scores: RunScores, variant: str, bound: tuple[str, float, int]) -> str | None:
    name, number, sign = bound
    mean = scores.mean(variant, name)
    if mean is None:
        return f"{variant}: {name} has no value, so it is not known to be within {number:g}"
    if sign * (mean - number) >= 0:
        return None
    return f"{variant}: {name} is {mean:.1f}, which is {'below' if sign > 0 else 'above'} {number:g}"


@lab.command()
@click.argument("a")
@click.argument("b")
@_metric
@click.option("--only-common", is_flag=True, help="Compare the cases that both have.")
@click.option("--changes", is_flag=True, help="Also list the titles that differ.")
@click.option("--fail-if-worse", is_flag=True, help="Exit with 1 if A is shown to be better in a metric.")
@_as_json
def diff(
    a: str,
    b: str,
    metrics: tuple[str, ...],
    only_common: bool,
    changes: bool,
    fail_if_worse: bool,
    as_json: bool,
) -> int:
    """Compare A and B case by case; each is a run's folder, or FOLDER:VARIANT."""
    from tinykit.lab.differences import diff as compare

    found = compare(_side(a), _side(b), metrics=list(metrics) or None, only_common=only_common)
    click.echo(json.dumps(found.to_dict(), indent=1, ensure_ascii=False) if as_json else str(found))
    if changes and not as_json:
        click.echo(f"\n{found.changes()}")
    worse = [one for one in found.differences if one.winner == found.a]
    return 1 if worse and fail_if_worse else 0


def _side(text: str) -> Side:
    from tinykit.lab.differences import side_of
    from tinykit.lab.runs import load

    if Path(text).is_dir():
        return side_of(load(text))
    folder, _, variant = text.rpartition(":")
    return load(folder)[variant] if folder else side_of(load(text))


@lab.command()
@click.argument("path", metavar="RUN")
@click.argument("kind", default="quality", type=click.Choice(["quality", "scores", "latency"]))
@click.option("--metric", help="What is shown; by default keywords, chrf or words_3_7.")
@click.option("--against", help="For 'quality': what goes across; by default the wait, or tokens.")
@click.option("-o", "--out", type=click.Path(dir_okay=False), help="A page to write, .html.")
def plot(path: str, kind: Kind, metric: str | None, against: str | None, out: str | None) -> None:
    """Draw RUN as text or as a page: quality against the wait, how scores spread, how long titles take."""
    from tinykit.lab.reports import write_page
    from tinykit.lab.runs import load

    chart = load(path).plot(kind, metric, against=against)
    click.echo(str(write_page(out, f"{kind}: {Path(path).name}", chart.html())) if out else chart.text())


@lab.command()
@click.argument("path", metavar="RUN")
@click.argument("variants", nargs=-1)
@click.option("--rater", default="me", show_default=True, help="Who is asked.")
@click.option("-o", "--out", type=click.Path(dir_okay=False), help="File of the votes; else in the run.")
@click.option("--results", "only_results", is_flag=True, help="Ask nothing, and tell what the votes say.")
@_as_json
def rate(
    path: str, variants: tuple[str, ...], rater: str, out: str | None, only_results: bool, as_json: bool
) -> None:
    """Say which titles of RUN are better, without knowing which of its VARIANTS made them.

    A key answers: 1 or 2 is better, 0 equally good, x both bad, s skip, u undo, q quit. Each answer is kept
    at once, and the same command goes on.
    """
    from tinykit.lab.rating import rate as make_rating
    from tinykit.lab.runs import load

    rating = make_rating(load(path), *variants, out=out, rater=rater)
    if not only_results:
        rating.ask()
    if only_results or rating.question is None:
        found = rating.results()
        click.echo(json.dumps(found.to_dict(), indent=1, ensure_ascii=False) if as_json else f"\n{found}")
    else:
        click.echo("Which is which: the same command with --results.")


@lab.command()
@click.argument("path", metavar="RUN")
@click.option("-o", "--out", default="report.html", show_default=True, help="File, .html or .md.")
@click.option("--all", "is_all", is_flag=True, help="Also show cases for which all titles are the same.")
@click.option("--limit", type=click.IntRange(min=1), help="Show the titles of so many cases at most.")
def report(path: str, out: str, is_all: bool, limit: int | None) -> None:
    """Write a report of RUN: one HTML page that needs nothing else, or Markdown."""
    from tinykit.lab.reports import write_report
    from tinykit.lab.runs import load

    click.echo(str(write_report(load(path), out, only_different=not is_all, limit=limit)))


@lab.command()
@click.argument("path", metavar="RUN")
@click.argument("variant")
@click.option("-o", "--out", required=True, type=click.Path(file_okay=False), help="Folder to write to.")
def freeze(path: str, variant: str, out: str) -> None:
    """Keep the titles of a VARIANT of RUN as a regression test."""
    from tinykit.lab.freezing import freeze as write
    from tinykit.lab.runs import load

    folder = write(load(path), variant, out)
    click.echo(f"Frozen in {folder}. Check with: tinykit lab check {shlex.quote(str(folder))}")


@lab.command()
@click.argument("path", metavar="FOLDER")
def check(path: str) -> int:
    """Make the titles that were frozen in FOLDER again; exits with 1 if one has changed."""
    from tinykit.lab.freezing import check as make_again

    found = make_again(path, progress=None)
    click.echo(str(found))
    return 0 if found.is_same else 1
