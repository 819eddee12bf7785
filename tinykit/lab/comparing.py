"""The titles of a run beside each other: cases down, variants across."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from numbers import Integral
from statistics import median, quantiles
from typing import TYPE_CHECKING

from tinykit.errors import OptionError
from tinykit.lab.marking import marked
from tinykit.lab.names import unknown
from tinykit.lab.rows import Row
from tinykit.lab.tables import Table
from tinykit.plurals import counted

if TYPE_CHECKING:
    from tinykit.lab.runs import Run

_MESSAGE_CHARS = 80


def titles_table(
    run: Run,
    variants: Sequence[str] | None = None,
    *,
    only_different: bool = False,
    limit: int | None = None,
    against: str | None = None,
) -> Table:
    """All titles; of repeats the most frequent one, with how many different ones there were.

    Args:
        run: The run.
        variants: The names of those to show; all by default.
        only_different: Leave out the cases for which all variants have the same title.
        limit: Show so many cases at most.
        against: One of them; in the titles of the others the words are marked that its title has not.

    Raises:
        OptionError: there is no such variant.
    """
    names = run.variants if variants is None else _names(run, variants)
    _check_limit(limit)
    base = None
    if against is not None:
        if run.plan.variant(against).label not in names:
            raise unknown("variant", against, names, "Not shown:")
        base = names.index(against)
    cells = {case.id: [_shown(run, variant, case.id) for variant in names] for case in run.cases}
    kept = [case for case in run.cases if not only_different or len(set(cells[case.id])) > 1]
    shown = kept[:limit]
    rows = [[case.id, _short(case.message), *_marked(cells[case.id], base)] for case in shown]
    notes = (
        [] if base is None else [f"Marked, {{+so+}} or bold and underlined: not in the title of {against}."]
    )
    if only_different:
        verb = "has" if len(kept) == 1 else "have"
        notes.append(f"{len(kept)} of {counted(len(run.cases), 'case')} {verb} titles that differ.")
    if len(shown) < len(kept):
        more = len(kept) - len(shown)
        notes.append(f"{counted(more, 'more case')} {'is' if more == 1 else 'are'} not shown.")
    return Table("Titles by case", ["case", "message", *names], rows, notes, is_text=True)


def _names(run: Run, variants: Sequence[str]) -> tuple[str, ...]:
    """The names as they were given, once each; one alone may be text."""
    given = [variants] if isinstance(variants, str) else variants
    return tuple(dict.fromkeys(run.plan.variant(name).label for name in given))


def _marked(titles: list[str], base: int | None) -> list[str]:
    """Titles with what the one at `base` lacks; texts in parentheses are none."""
    if base is None or titles[base].startswith("("):
        return titles
    return [
        title if at == base or title.startswith("(") else marked(titles[base], title, shows_gone=False)
        for at, title in enumerate(titles)
    ]


def _check_limit(limit: object) -> None:
    if limit is None or (not isinstance(limit, bool) and isinstance(limit, Integral) and int(limit) >= 0):
        return
    raise OptionError(
        f"limit must be a whole number from 0, not {limit!r}.",
        hint="Leave it out to show all.",
        name="limit",
        value=limit,
    )


def _shown(run: Run, variant: str, case: str) -> str:
    rows = run.at(variant, case)
    if not rows:
        return "(missing)"
    texts = Counter(map(_text, rows))
    best, _ = texts.most_common(1)[0]
    return best if len(texts) == 1 else f"{best} ({len(texts)} different of {len(rows)})"


def _text(row: Row) -> str:
    if row.title:
        return row.title
    return f"(failed: {row.error})" if row.status == "failed" else f"({row.why[-1] if row.why else 'none'})"


def _short(message: str) -> str:
    text = " ".join(message.split())
    return text if len(text) <= _MESSAGE_CHARS else f"{text[:_MESSAGE_CHARS]}…"


def reasons_table(run: Run) -> Table:
    """How often each reason is given on the way to a title or to none, by variant."""
    counts = {
        variant: Counter(code for row in run.of(variant) for code in set(row.why)) for variant in run.variants
    }
    codes = [code for code, _ in sum(counts.values(), Counter[str]()).most_common()]
    rows = [[code, *(str(counts[variant][code]) for variant in run.variants)] for code in codes]
    return Table(
        "Reasons: what was done to answers, or why there is no title", ["reason", *run.variants], rows
    )


def latency_table(run: Run) -> Table:
    """Seconds from message to title, by variant and machine; only times that are one title's own."""
    rows = []
    for variant in run.variants:
        mine = [row for row in run.of(variant) if row.asked_model and not row.contended]
        for machine in sorted({row.machine for row in mine}):
            times = sorted(row.elapsed_s or 0.0 for row in mine if row.machine == machine)
            cached = sum(row.cached for row in mine if row.machine == machine)
            p95 = quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
            values = [median(times), p95, times[-1]]
            rows.append(
                [variant, machine, str(len(times)), str(cached), *(f"{value:.3f}" for value in values)]
            )
    notes = [] if rows else ["No row has a time of its own: run with batch_size=1."]
    columns = ["", "machine", "titles", "of them cached", "p50 s", "p95 s", "longest s"]
    return Table("Seconds from message to title, where a model was asked", columns, rows, notes)


def stability_table(run: Run) -> Table:
    """Of each variant, for how many cases all repeats gave the same title."""
    rows = []
    for variant in run.variants:
        groups = [run.at(variant, case.id) for case in run.cases]
        whole = [group for group in groups if len(group) > 1]
        kinds = Counter(len({row.title for row in group}) for group in whole)
        rows.append([variant, str(len(whole)), str(kinds[1]), str(max(kinds, default=0))])
    notes = ["Decoding is greedy: what differs between repeats is not due to chance in the recipe."]
    columns = ["", "cases with repeats", "always the same title", "most different titles of a case"]
    return Table("Repeats", columns, rows, notes)
