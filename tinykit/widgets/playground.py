"""The title playground: one message, several recipes side by side.

Here is what it does; how it looks is in `title_form`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from tinykit import settings
from tinykit.errors import OptionError
from tinykit.inventory import text_table
from tinykit.loading import DEFAULT_MODEL
from tinykit.plurals import counted
from tinykit.recipes import RECIPES, Recipe, get_recipe
from tinykit.session import TinySession
from tinykit.widgets.background import Background
from tinykit.widgets.job import Job
from tinykit.widgets.title_form import TitleForm
from tinykit.widgets.title_runs import Choice, Sessions, TitleRow, run_title
from tinykit.widgets.view import Pace, error_text, seconds_text

_EXAMPLE = "my raspberry pi 4 keeps rebooting when i plug in the external ssd"


class TitlePlayground(Background):
    """Titles for a message by several recipes, side by side, written as you watch.

    Show it as the last line of a cell. The work runs in the background: the cell ends at once, another run
    ends the one before, and Stop ends the last.

    Args:
        session: A session to use; by default one is made for what the pickers say, and closed by `close`.
        recipes: What to offer: names, files or recipes; by default all that tinykit has.
        message: What stands in the message box.
    """

    _purpose = "the title playground"

    def __init__(
        self,
        session: TinySession | None = None,
        *,
        recipes: Iterable[str | Path | Recipe] | None = None,
        message: str = _EXAMPLE,
    ) -> None:
        super().__init__()
        offered = map(get_recipe, RECIPES if recipes is None else recipes)
        self.recipes: dict[str, Recipe] = {recipe.name: recipe for recipe in offered}
        if not self.recipes:
            raise OptionError("A playground needs at least one recipe.", name="recipes", value=recipes)
        self.form: TitleForm | None = None
        self._session = session
        self._sessions = Sessions(session)
        self._choice = Choice(session.spec.key if session else str(settings.get("model") or DEFAULT_MODEL))
        self._message = message
        self._rows: dict[str, TitleRow] = {}
        self._changed: TitleRow | None = None
        self._pace = Pace(self._draw_changed, self.lock)

    @property
    def rows(self) -> tuple[TitleRow, ...]:
        """The titles of the last run, in the order of the recipes."""
        with self.lock:
            return tuple(self._rows.values())

    def start(
        self,
        message: str | None = None,
        *,
        recipes: Iterable[str] | None = None,
        choice: Choice | None = None,
    ) -> Job:
        """Make titles in the background; what was running is stopped. What is left out, the widgets say.

        Raises:
            OptionError: there is no message, or no recipe of that name.
        """
        form = self.form
        if message is None:
            message = str(form.message.value) if form else self._message
        if recipes is None:
            recipes = form.ticked if form else self._usual()
        if choice is None:
            choice = form.choice if form else self._choice
        chosen = [self._recipe(name) for name in recipes]
        if not chosen:
            raise OptionError("Tick at least one recipe.", name="recipes", value=chosen)
        if not message.strip():
            raise OptionError("Write a message to title.", name="message", value=message)
        with self.lock:
            rows = [TitleRow(one.name, choice.model if one.method == "model" else "-") for one in chosen]
            self._rows = {row.recipe: row for row in rows}
            self._changed = None
            self._pace.drop()
            if form:
                form.show_rows(rows)
            work = partial(self._work, message=message, recipes=chosen, choice=choice)
            return self._begin("Running …", work)

    def close(self) -> None:
        """Stop, release what this playground has loaded, and take the widgets out of the notebook."""
        super().close()
        self._sessions.close()

    def text(self) -> str:
        """The titles of the last run with their timings and reasons, or what this is."""
        rows = self.rows
        if not rows:
            return (
                f"Title playground: {', '.join(self.recipes)} with {self._choice.model}.\n"
                "Without widgets: playground.start(message), playground.wait(), print(playground)."
            )
        header = ("recipe", "model", "title", "seconds", "first token", "tokens/s")
        table = text_table(header, [(row.recipe, row.model, row.shown, *row.facts) for row in rows])
        whys = [f"\n{row.recipe}: why\n{row.why}" for row in rows if row.why]
        return "\n".join([self._status, table, *whys])

    def _work(self, job: Job, message: str, recipes: list[Recipe], choice: Choice) -> None:
        """All titles of one run, in a thread of its own."""
        note, started = "", time.perf_counter()
        if any(one.method == "model" for one in recipes):
            self._say(f"Loading {choice.model} …", job)
            session, note = self._sessions.loaded(choice, job, self.progress)
            self.progress.clear()
            if (load_s := time.perf_counter() - started) >= 0.1:
                note = f"Loaded in {seconds_text(load_s)}. {note}"
        else:
            session = self._sessions.get(choice)
        started = time.perf_counter()
        for recipe in recipes:
            job.check()
            self._say(f"Asking {recipe.name} … {note}", job)
            try:
                run_title(session, message, recipe, job, partial(self._show, job))
            except Exception as error:
                row = TitleRow(recipe.name, choice.model, "failed", error=error_text(error))
                self._show(job, row)
        job.check()
        done = sum(row.state == "done" for row in self.rows)
        seconds = time.perf_counter() - started
        self._say(f"{done} of {counted(len(recipes), 'title')} in {seconds_text(seconds)}. {note}", job)

    def _end(self, job: Job) -> None:
        with self.lock:
            if self._is_current(job):
                for row in self.rows:
                    if row.state in ("waiting", "running"):
                        self._show(job, replace(row, state="stopped"))
            super()._end(job)

    def _show(self, job: Job, row: TitleRow) -> None:
        with self.lock:
            if not self._is_current(job):
                return
            is_change = row.state != self._rows[row.recipe].state
            self._rows[row.recipe] = row
            if self._changed is not None and self._changed.recipe != row.recipe:
                self._pace.now()
            self._changed = row
            if is_change:
                self._pace.now()
            else:
                self._pace.soon()

    def _draw_changed(self) -> None:
        if self.form and self._changed:
            self.form.show_row(self._changed)

    def _build(self, widgets: ModuleType) -> Any:
        ticked = self._usual()
        self.form = TitleForm(
            widgets,
            message=self._message,
            model=self._choice.model,
            is_own=self._session is not None,
            recipes={name: (one.description, name in ticked) for name, one in self.recipes.items()},
            status=self._new_status_line(widgets),
            progress=self.progress.box,
            run=self._told(self.start),
            stop=self.stop,
        )
        self.form.show_rows(self.rows)
        return self.form.box

    def _usual(self) -> list[str]:
        """The recipes that are ticked at first."""
        usual = self._session.recipe.name if self._session else "titles"
        return [name for name in self.recipes if name in (usual, "first-words")] or list(self.recipes)

    def _recipe(self, name: str) -> Recipe:
        if name not in self.recipes:
            raise OptionError(
                f"No recipe {name!r} here; there are {', '.join(self.recipes)}.", name="recipes", value=name
            )
        return self.recipes[name]
