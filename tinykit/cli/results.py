"""Results and errors of commands, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import click

from tinykit.cli.wording import in_shell_words
from tinykit.errors import TinykitError


def error_fields(error: Exception, said: tuple[str, str | None] | None = None) -> dict[str, Any]:
    """An error as JSON has it: its kind, what happened, what to do, and names that look alike.

    `said` are message and hint in other words than the error's own.
    """
    if isinstance(error, click.ClickException):
        return {"type": type(error).__name__, "message": error.format_message(), "hint": None}
    message, hint = said or (str(error), getattr(error, "hint", None))
    fields = {"type": type(error).__name__, "message": message, "hint": hint}
    nearest = getattr(error, "nearest", None)
    return {**fields, "nearest": list(nearest)} if nearest else fields


def for_each(
    names: Iterable[str],
    act: Callable[[str], dict[str, Any]],
    *,
    as_json: bool,
    nothing: str = "No models are here.",
) -> int:
    """Act on one name after the other, also if one fails; returns the exit code of the first failure.

    Args:
        names: What to act on.
        act: Returns what was done: `model`, `text` for people, and more for JSON.
        as_json: Print one object with all results, instead of a line for each.
        nothing: What people read if there are no names.
    """
    from tinykit.cli import exit_code

    results: list[dict[str, Any]] = []
    code = 0
    for name in names:
        try:
            done = act(name)
        except TinykitError as error:
            code = code or exit_code(error)
            context = click.get_current_context()
            message, hint = in_shell_words(error, context.command)
            results.append({"model": name, "ok": False, "error": error_fields(error, (message, hint))})
            if not as_json:
                click.echo(f"Error: {name}: {message}" + (f"\n{hint}" if hint else ""), err=True)
        else:
            text = done.pop("text")
            results.append({"model": name, "ok": True, **done})
            if not as_json:
                click.echo(text)
    if as_json:
        click.echo(json.dumps({"results": results}, indent=1))
    elif not results:
        click.echo(nothing, err=True)
    return code
