"""From a run to a regression test: titles as they are, and whether they still come out the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinykit.errors import OptionError
from tinykit.lab.cases import json_bytes
from tinykit.lab.keys import NO_MODEL, facts_of, no_model_facts
from tinykit.lab.local import Show, open_session
from tinykit.lab.plan import Target
from tinykit.lab.tables import Table, changes_table
from tinykit.plurals import counted
from tinykit.recipes import Recipe

if TYPE_CHECKING:
    from tinykit.lab.runs import Run

FORMAT = 1
TITLES, RECIPE, NOTEBOOK = "regression.json", "recipe.json", "regression.ipynb"


@dataclass(frozen=True)
class Check:
    """Whether frozen titles still come out.

    Attributes:
        count: Titles that were frozen.
        changed: Case, frozen title, title now.
        ingredients: What of model, library and code is another now, by name: then and now.
    """

    count: int
    changed: tuple[tuple[str, str | None, str | None], ...]
    ingredients: Mapping[str, tuple[Any, Any]]

    @property
    def is_same(self) -> bool:
        """Whether no title changed."""
        return not self.changed

    def table(self) -> Table:
        """The titles that changed."""
        return changes_table(self._headline(), ("case", "frozen", "now"), self.changed, self._reasons())

    def _headline(self) -> str:
        same = self.count - len(self.changed)
        return _headline(same, self.count)

    def _reasons(self) -> list[str]:
        return [f"{name} was {then!r}, is {now!r}." for name, (then, now) in self.ingredients.items()]

    def __str__(self) -> str:
        return str(self.table()) if self.changed else self._headline()

    def __repr__(self) -> str:
        return str(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows: one stable line, as long as nothing changed."""
        printer.text(str(self))


def freeze(run: Run, variant: str, folder: str | Path) -> Path:
    """Write a variant's titles, its recipe, and a notebook whose one cell checks them.

    Raises:
        OptionError: titles are missing or failed.
    """
    chosen = run.plan.variant(variant)
    titles = run.titles(variant)
    lacking = [case.id for case in run.cases if case.id not in titles]
    if lacking:
        many = f"{counted(len(lacking), 'title')} of {variant} {'is' if len(lacking) == 1 else 'are'}"
        raise OptionError(
            f"{many} missing or failed, such as {lacking[0]}.",
            hint="run.resume() and run.retry_failures() make them.",
            name="variant",
            value=variant,
        )
    path = Path(folder).expanduser()
    path.mkdir(parents=True, exist_ok=True)
    facts = run.facts(chosen.target) or {"identity": {}}
    values = {
        "format": FORMAT,
        "recipe": chosen.recipe.to_dict(),
        "target": asdict(chosen.target) if chosen.target else None,
        "made_with": facts["identity"],
        "cases": [{"id": c.id, "message": c.message, "title": titles[c.id]} for c in run.cases],
    }
    _write(path / TITLES, values)
    chosen.recipe.save(path / RECIPE)
    _write(path / NOTEBOOK, _notebook(len(run.cases)))
    return path


def check(path: str | Path, *, progress: Show = False) -> Check:
    """Make frozen titles again and compare.

    Args:
        path: What `Run.freeze` wrote: the folder, or `regression.json` in it.
        progress: As for `TinySession`.

    Raises:
        OptionError: it is no such file.
    """
    values = _read(Path(path).expanduser())
    recipe = Recipe.from_dict(values["recipe"])
    target = Target(**values["target"]) if values["target"] else None
    cases = values["cases"]
    with open_session(target or Target(), progress) as session:
        found = session.title_results([case["message"] for case in cases], recipe=recipe)
        facts = facts_of(session) if target else no_model_facts()
    changed = tuple(
        (case["id"], case["title"], title.text)
        for case, title in zip(cases, found, strict=True)
        if case["title"] != title.text
    )
    return Check(len(cases), changed, _ingredients(values["made_with"], facts["identity"]))


def _ingredients(then: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    before, after = _flat(then), _flat(now)
    names = sorted(before.keys() | after.keys())
    return {n: (before.get(n), after.get(n)) for n in names if before.get(n) != after.get(n)}


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in identity.items() if name != "packages"}
    return {**rest, **identity.get("packages", {}), "model": identity.get("model", NO_MODEL)}


def _headline(same: int, count: int) -> str:
    verb = "is as it was" if count == 1 else "are as they were"
    return f"{same:,} of {counted(count, 'title')} {verb} frozen."


def _read(path: Path) -> dict[str, Any]:
    file = path / TITLES if path.is_dir() else path
    try:
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if values["format"] != FORMAT or not isinstance(values["cases"], list):
            raise ValueError(f"its format is {values['format']}, not {FORMAT}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"{file} holds no frozen titles: {error}.",
            hint="run.freeze(variant, folder) writes them.",
            name="path",
            value=str(file),
        ) from error
    return values


def _write(path: Path, values: dict[str, Any]) -> None:
    path.write_bytes(json_bytes(values, indent=1))


def _notebook(count: int) -> dict[str, Any]:
    """A notebook of one cell with the output that it has as long as no title changes."""
    expected = _headline(count, count)
    source = ["from tinykit import lab\n", "\n", f'lab.check("{TITLES}")']
    data = {"text/plain": [expected]}
    output = {"output_type": "execute_result", "execution_count": 1, "metadata": {}, "data": data}
    cell = {
        "cell_type": "code",
        "id": "frozen-titles",
        "execution_count": 1,
        "metadata": {},
        "source": source,
        "outputs": [output],
    }
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": [cell], "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
