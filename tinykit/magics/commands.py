"""`%tiny use`, `models`, `load` and the others that ask no model anything."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from tinykit.errors import OptionError
from tinykit.magics.options import MagicOptions
from tinykit.magics.sessions import Pool
from tinykit.markup import Bundle, Table, bundle


@dataclass(frozen=True)
class Command:
    """One word behind `%tiny`: what it shows, and the name that it may be given."""

    run: Callable[[Pool, MagicOptions], Any]
    help: str
    metavar: str = ""


def run(name: str, pool: Pool, options: MagicOptions, words: list[str]) -> Any:
    """Run a command.

    Raises:
        OptionError: more words than it takes.
        TinykitError: what was named does not exist, or cannot be loaded.
    """
    command = COMMANDS[name]
    most = 1 if command.metavar else 0
    if len(words) > most:
        what = f"takes one {command.metavar.lower()} at most" if most else "takes nothing more"
        raise OptionError(
            f"%tiny {name} {what}, got {' '.join(words)!r}.",
            hint=f"To ask the model: %tiny -- {name} {' '.join(words)}",
            name=name,
            value=words,
        )
    if words:
        named: dict[str, Any] = {command.metavar.lower(): words[0]}
        options = replace(options, **named)
    return command.run(pool, options)


def near(word: str) -> str | None:
    """The command that somebody may have meant with a single word."""
    found = difflib.get_close_matches(word, COMMANDS, 1, 0.8)
    return found[0] if found else None


def _use(pool: Pool, options: MagicOptions) -> Any:
    pool.use(options)
    return _defaults(pool)


def _defaults(pool: Pool) -> Table:
    rows = []
    for field in fields(pool.defaults):
        value = getattr(pool.defaults, field.name)
        if field.name in ("model", "device", "dtype", "recipe") or value != field.default:
            rows.append((field.name, "(the default)" if value is None else _named(value)))
    return Table.of("Used by %title and %tiny", ("what", "value"), rows)


def _named(value: Any) -> str:
    return str(getattr(value, "name", value))


def _models(pool: Pool, options: MagicOptions) -> Any:
    from tinykit.inventory import models_view

    return models_view(with_sizes=options.stats)


def _load(pool: Pool, options: MagicOptions) -> Any:
    session = pool.get(options)
    session.load()
    return session


def _unload(pool: Pool, options: MagicOptions) -> Any:
    released = pool.unload(options.model)
    rows = [(name,) for name in released] or [("(nothing was loaded)",)]
    return Table.of("Unloaded", ("model",), rows)


def _info(pool: Pool, options: MagicOptions) -> Any:
    if options.model is None:
        from tinykit.progress import size_text
        from tinykit.residents import loaded

        rows = [(one.model, one.dtype, one.device, size_text(one.size_bytes)) for one in loaded()]
        defaults = _defaults(pool)
        if not rows:
            return defaults
        memory = Table.of("In memory", ("model", "precision", "device", "size"), rows, {3})
        return Tables((defaults, memory))
    from tinykit.inventory import find_model, info_view, model_row

    return info_view(model_row(find_model(str(options.model))), with_paths=options.stats)


@dataclass(frozen=True)
class Tables:
    """Several tables, one below the other."""

    tables: tuple[Table, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        return bundle(str(self), "".join(table.html() for table in self.tables))


def _recipe(pool: Pool, options: MagicOptions) -> Any:
    from tinykit.recipes import RECIPES, get_recipe

    if options.recipe is None:
        rows = [(name, recipe.description) for name, recipe in RECIPES.items()]
        return Table.of("Recipes for titles", ("recipe", "how"), rows)
    recipe = get_recipe(options.recipe)
    return Table.of(f"Recipe {recipe.name}", ("field", "value"), _fields(recipe))


def _fields(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    rows = []
    for field in fields(value):
        inner = getattr(value, field.name)
        if is_dataclass(inner):
            rows += _fields(inner, f"{field.name}.")
        else:
            rows.append((prefix + field.name, inner if isinstance(inner, str) else repr(inner)))
    return rows


def _bench(pool: Pool, options: MagicOptions) -> Any:
    from tinykit.latency import measure

    return measure(pool.get(options), recipe=pool.with_defaults(options).recipe)


def _worker(pool: Pool, options: MagicOptions) -> Any:
    from tinykit.worker.admin import HEADER, cells, running

    names = HEADER if options.stats else ("name", "state", "clients", "waiting", "served")
    columns = [HEADER.index(name) for name in names]
    rows = [[cells(row)[at] for at in columns] for row in running()]
    return Table.of("Shared workers", names, rows or [["(none runs)", *[""] * (len(names) - 1)]])


def _doctor(pool: Pool, options: MagicOptions) -> Any:
    from tinykit.doctor import doctor

    return doctor()


COMMANDS: dict[str, Command] = {
    "use": Command(_use, "take this model (-d, --dtype, -r) where none is named", "MODEL"),
    "models": Command(_models, "models that are known or here; --stats: with sizes"),
    "load": Command(_load, "load a model now", "MODEL"),
    "unload": Command(_unload, "release the memory of one model, or of all", "MODEL"),
    "info": Command(_info, "what is in use, or what is known of a model", "MODEL"),
    "recipe": Command(_recipe, "the recipes, or all of one", "RECIPE"),
    "bench": Command(_bench, "measure how fast a model is here", "MODEL"),
    "worker": Command(_worker, "shared models that are loaded; --stats: with pid, memory and uptime"),
    "doctor": Command(_doctor, "versions, memory, disk and caches of this machine"),
}
