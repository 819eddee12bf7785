"""The commands below `tinykit models`: list, download, verify, remove, path, info."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinykit.cli.options import offline_option
from tinykit.errors import NotFoundError, OptionError, TinykitError

if TYPE_CHECKING:
    from tinykit.model_spec import BackendName
    from tinykit.registry import ModelSpec

_as_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")
_dtype = click.option("--dtype", help="Precision of the weights.")
_backend = click.option(
    "--backend",
    type=click.Choice(["onnx", "mlx"]),
    default="onnx",
    show_default=True,
    help="What is to run it.",
)


@click.group(invoke_without_command=True)
@_as_json
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """Show the models that tinykit knows, and what is on this machine."""
    if context.invoked_subcommand is None:
        from tinykit.inventory import model_rows, model_table

        click.echo(json.dumps(model_rows(), indent=1) if as_json else model_table())


@models.command()
@click.argument("keys", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All models that the backend can run.")
@_dtype
@_backend
@click.option("--force", is_flag=True, help="Ask the hub for a newer version, and mend files that changed.")
@offline_option
@_as_json
def download(
    keys: tuple[str, ...],
    is_all: bool,
    dtype: str | None,
    backend: BackendName,
    force: bool,
    offline: bool | None,
    as_json: bool,
) -> int:
    """Fetch models, so that they are there when they are needed; without KEYS, the default one.

    A key is one of 'tinykit models', a repo of the hub (owner/name), a .gguf file or a folder.
    """
    from tinykit.loading import DEFAULT_MODEL

    def fetch(spec: ModelSpec) -> dict[str, Any]:
        folder = _fetch(spec, dtype, backend, force=force, offline=offline)
        return {"text": f"{spec.key} is ready in {folder}", "path": str(folder)}

    specs = _chosen(keys or (() if is_all else (DEFAULT_MODEL,)), is_all)
    if is_all:
        specs = [spec for spec in specs if spec.refusal(backend) is None and spec.sources_for(backend)]
    return _each(specs, fetch, as_json=as_json)


@models.command()
@click.argument("keys", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All models that are here.")
@_as_json
def verify(keys: tuple[str, ...], is_all: bool, as_json: bool) -> int:
    """Read every file of the models KEYS and compare it with its hash."""
    from tinykit.inventory import verify_model

    def check(spec: ModelSpec) -> dict[str, Any]:
        checked = verify_model(spec)
        if not checked:
            raise _not_here(spec)
        return {"text": f"{spec.key} is intact", "checked": checked}

    return _each(_here(_chosen(keys, is_all), is_all), check, as_json=as_json)


@models.command()
@click.argument("keys", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All models that are here.")
@_as_json
def remove(keys: tuple[str, ...], is_all: bool, as_json: bool) -> int:
    """Remove the models KEYS from tinykit's own cache, and nothing outside it."""
    from tinykit.inventory import remove_model
    from tinykit.progress import size_text

    def clear(spec: ModelSpec) -> dict[str, Any]:
        removal = remove_model(spec)
        text = f"{spec.key}: {size_text(removal.freed_bytes)} freed"
        if removal.kept:
            text += f"; left where they are: {', '.join(map(str, removal.kept))}"
        return {
            "text": text, "freed_bytes": removal.freed_bytes, "kept": [str(path) for path in removal.kept],
        }  # fmt: skip

    return _each(_here(_chosen(keys, is_all), is_all), clear, as_json=as_json)


@models.command()
@click.argument("key")
@_dtype
@_backend
def path(key: str, dtype: str | None, backend: BackendName) -> None:
    """Print where the files of the model KEY are."""
    from tinykit import sources
    from tinykit.registry import get_model

    spec = get_model(key)
    found = sources.locate(spec, dtype, backend=backend)
    if found is None:
        raise _not_here(spec)
    click.echo(str(found))


@models.command()
@click.argument("key")
@click.option("--remote", is_flag=True, help="Also ask the hub which files a download would fetch.")
@_dtype
@_backend
@_as_json
def info(key: str, remote: bool, dtype: str | None, backend: BackendName, as_json: bool) -> None:
    """Show what is known of the model KEY, and what of it is here."""
    from tinykit.inventory import info_table, model_row
    from tinykit.registry import get_model

    spec = get_model(key)
    row = model_row(spec)
    if remote:
        row |= _remote_facts(spec, dtype, backend)
    click.echo(json.dumps(row, indent=1) if as_json else info_table(row))


def _remote_facts(spec: ModelSpec, dtype: str | None, backend: BackendName) -> dict[str, Any]:
    from tinykit import hub
    from tinykit.registry import HubSource

    for source in spec.sources_for(backend):
        if isinstance(source, HubSource):
            plan = hub.plan(source, dtype or spec.dtype or "auto")
            return {
                "commit": plan.listing.commit,
                "files": list(plan.choice.names),
                "fetch_bytes": plan.size_bytes,
                "missing_bytes": plan.download_bytes,
            }
    raise OptionError(
        f"{spec.key} does not come from a hub for {backend}, so there is nothing to ask",
        name="remote", value=spec.key,
    )  # fmt: skip


def _fetch(
    spec: ModelSpec, dtype: str | None, backend: BackendName, *, force: bool, offline: bool | None
) -> Path:
    """A model's files, imported if they are of a kind that needs it."""
    from tinykit import hub, settings, sources
    from tinykit.loading import checked_dtype, prepare
    from tinykit.progress import Progress
    from tinykit.registry import HubSource

    progress, chosen = Progress(), checked_dtype(dtype, spec)
    source = next(iter(spec.sources_for(backend)), None)
    if isinstance(source, HubSource):
        spec.check_backend(backend)
        if force:
            is_offline = bool(settings.get("offline", offline))
            hub.fetch(source, chosen, model=spec.key, progress=progress, offline=is_offline, force=True)
        return sources.fetch(spec, chosen, backend=backend, progress=progress, offline=offline)
    if source is None or backend != "onnx":
        return sources.fetch(spec, chosen, backend=backend, progress=progress, offline=offline)
    return prepare(spec, chosen, progress=progress, offline=offline)


def _chosen(keys: Iterable[str], is_all: bool) -> list[ModelSpec]:
    from tinykit.registry import get_model, known_models

    keys = tuple(keys)
    if is_all == bool(keys):
        raise click.UsageError("Give either keys of models or --all.")
    return list(known_models().values()) if is_all else [get_model(key) for key in keys]


def _here(specs: list[ModelSpec], is_all: bool) -> list[ModelSpec]:
    """With --all, only what is on this machine; what was named stays, to be said that it is not here."""
    from tinykit.inventory import model_row

    return [spec for spec in specs if not is_all or model_row(spec)["here"] != "no"]


def _each(specs: list[ModelSpec], act: Callable[[ModelSpec], dict[str, Any]], *, as_json: bool) -> int:
    """Act on one model after the other, also if one fails; returns the exit code of the first failure."""
    from tinykit.cli import exit_code

    results: list[dict[str, Any]] = []
    code = 0
    for spec in specs:
        try:
            done = act(spec)
        except TinykitError as error:
            code = code or exit_code(error)
            results.append({"model": spec.key, "ok": False, "error": str(error), "hint": error.hint})
            if not as_json:
                hint = f"\n{error.hint}" if error.hint else ""
                click.echo(f"Error: {spec.key}: {error}{hint}", err=True)
        else:
            text = done.pop("text")
            results.append({"model": spec.key, "ok": True, **done})
            if not as_json:
                click.echo(text)
    if as_json:
        click.echo(json.dumps({"results": results}, indent=1))
    elif not specs:
        click.echo("No models are here.", err=True)
    return code


def _not_here(spec: ModelSpec) -> NotFoundError:
    return NotFoundError(
        f"{spec.key} is not on this machine", hint=f"Fetch it with: tinykit models download {spec.key}"
    )
