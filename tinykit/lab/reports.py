"""A run as one page: HTML that needs nothing else, or Markdown."""

from __future__ import annotations

import html
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tinykit.charts import Chart
from tinykit.errors import OptionError
from tinykit.lab.folder import checked_path
from tinykit.lab.plan import BASELINE
from tinykit.lab.plots import Kind
from tinykit.lab.rating import rate
from tinykit.lab.tables import Table, markdown
from tinykit.lab.votes import FILE, read_votes

if TYPE_CHECKING:
    from tinykit.lab.runs import Run

_ENDINGS = (".html", ".htm", ".md")
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
body {{ font: 1em/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em }}
table {{ display: block; overflow-x: auto; margin: 1em 0 }}
pre {{ overflow-x: auto; white-space: pre-wrap }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def write_report(
    run: Run, path: str | Path, *, only_different: bool = True, limit: int | None = None
) -> Path:
    """Write a report of a run, as the file's ending says.

    Args:
        run: The run.
        path: A file that ends in .html or .md.
        only_different: Leave out cases for which all variants have the same title.
        limit: Show the titles of so many cases at most.

    Raises:
        OptionError: another ending.
    """
    file = checked_path(path, "path", "a file")
    if file.suffix.lower() not in _ENDINGS:
        raise OptionError(
            f"A report ends in {', '.join(_ENDINGS)}, not {file.suffix or 'nothing'!r}.",
            hint='For example: "report.html"',
            name="path",
            value=str(path),
        )
    is_html = file.suffix.lower() != ".md"
    text = to_html(run, only_different, limit) if is_html else to_markdown(run, only_different, limit)
    return _written(file, text)


def _written(file: Path, text: str) -> Path:
    try:
        file.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
    except OSError as error:
        raise OptionError(
            f"{file} cannot be written: {error.strerror or error}.",
            hint="Is its folder there? Folders are not made.",
            name="path",
            value=str(file),
        ) from error
    return file


def write_page(path: str | Path, title: str, body: str) -> Path:
    """Write one page of HTML that needs nothing else.

    Raises:
        OptionError: the file does not end in .html.
    """
    file = checked_path(path, "path", "a file")
    if file.suffix.lower() not in _ENDINGS[:2]:
        raise OptionError(
            f"A page ends in .html, not {file.suffix or 'nothing'!r}.",
            hint='For example: "plot.html"',
            name="path",
            value=str(path),
        )
    page = _PAGE.format(title=html.escape(title), body=body)
    return _written(file, page)


def to_html(run: Run, only_different: bool = True, limit: int | None = None) -> str:
    """The page, with nothing that is loaded from elsewhere and no script."""
    parts = [f"<p>{html.escape(run.summary())}</p>"]
    for name, part in sections(run, only_different, limit):
        shown = part.to_html() if isinstance(part, Table) else part.html()
        parts.append(f"<h2>{html.escape(name)}</h2>\n{shown}")
    parts.append(f"<h2>Recipes</h2>\n<pre>{html.escape(_recipes(run))}</pre>")
    return _PAGE.format(title=html.escape(f"Titles: {run.path.name}"), body="\n".join(parts))


def to_markdown(run: Run, only_different: bool = True, limit: int | None = None) -> str:
    """The same in Markdown."""
    parts = [f"# Titles: {markdown(run.path.name)}", "", markdown(run.summary()), ""]
    fence = "~" * 8
    for name, part in sections(run, only_different, limit):
        shown = part.to_markdown() if isinstance(part, Table) else f"{fence}text\n{part.text()}\n{fence}\n"
        parts += [f"## {name}", "", shown]
    return "\n".join([*parts, "## Recipes", "", f"{fence}json", _recipes(run), fence, ""])


def sections(run: Run, only_different: bool, limit: int | None) -> list[tuple[str, Table | Chart]]:
    """The tables and plots of a report, with their headings."""
    base = BASELINE if BASELINE in run.variants else run.variants[0]
    found: list[tuple[str, Table | Chart]] = [("Scores", run.scores().table())]
    found += _pictures(run)
    if len(run.variants) > 1:
        ranking = run.rank(base)
        found += [(f"Against {base}", ranking.table()), ("Differences", ranking.plot())]
    if any(row.asked_model and not row.contended for row in run.rows):
        found.append(("Time", run.latency()))
    if run.plan.repeats > 1:
        found.append(("Repeats", run.stability()))
    found += [("Reasons", run.reasons()), ("Titles", run.table(only_different=only_different, limit=limit))]
    failed = [[row.case, row.variant, row.error or ""] for row in run.failures()]
    if failed:
        found.append(("Failures", Table("What failed", ["case", "variant", "why"], failed, is_text=True)))
    votes, _ = read_votes(run.path / FILE)
    rated = [variant for variant in run.variants if any(variant in (v.left, v.right) for v in votes)]
    if len(rated) > 1:
        found.append(("Votes", rate(run, *rated).results().table()))
    return [*found, ("Made with", _made_with(run))]


def _pictures(run: Run) -> list[tuple[str, Chart]]:
    """The plots that there are values for."""
    kinds: dict[Kind, str] = {
        "quality": "Quality and wait", "scores": "How scores spread", "latency": "How long titles take",
    }  # fmt: skip
    found = []
    for kind, name in kinds.items():
        with suppress(OptionError):  # nothing to show
            found.append((name, run.plot(kind, against="latency_s")))
    return found


def _made_with(run: Run) -> Table:
    rows = [["tinykit", str(run.header.get("tinykit", ""))], ["begun", str(run.header.get("created", ""))]]
    rows += [[name, str(value)] for name, value in run.header.get("machine", {}).items()]
    for name, target in run.header.get("targets", {}).items():
        identity = target["facts"]["identity"]
        facts = {**identity, **identity.get("packages", {})}
        told = ("backend", "device", "dtype", "build", "onnxruntime", "tokenizers")
        values = ", ".join(f"{key} {facts[key]}" for key in told if facts.get(key))
        if name:
            rows.append([name, values])
    return Table("What the titles were made with", ["what", "which"], rows, is_text=True)


def _recipes(run: Run) -> str:
    recipes = {variant.label: variant.recipe.to_dict() for variant in run.plan.variants}
    return json.dumps(recipes, ensure_ascii=False, indent=1)
