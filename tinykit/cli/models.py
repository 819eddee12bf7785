"""The commands below `tinykit models`: list, download, verify, remove, path, info."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from tinykit.cli.options import offline_option
from tinykit.cli.results import for_each
from tinykit.errors import NotFoundError

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
        from tinykit.disk import home_problem
        from tinykit.inventory import model_rows, model_table
        from tinykit.store import home

        click.echo(json.dumps(model_rows(), indent=1) if as_json else model_table())
        if problem := home_problem():
            click.echo(
                f"The cache folder {home()} cannot be used: {problem}.\n"
                "Set TINYKIT_HOME to a folder that you can write to.",
                err=True,
            )


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

    A key is one of 'tinykit models', a repo of the hub (owner/name), a .gguf file or a folder. What 'verify'
    found damaged is fetched again.
    """
    from tinykit.fetching import fetch_model
    from tinykit.inventory import damaged_dtypes, drop_damaged
    from tinykit.loading import DEFAULT_MODEL
    from tinykit.registry import get_model, known_models

    def fetch(name: str) -> dict[str, Any]:
        spec = get_model(name)
        drop_damaged(spec)
        folder = fetch_model(spec, dtype, backend=backend, force=force, offline=offline)
        damaged = damaged_dtypes(spec)
        more = "".join(f"\nIts {one} is damaged; mend it with: --dtype {one}" for one in damaged)
        return {
            "text": f"{spec.key} is ready in {folder}{more}", "path": str(folder), "damaged_dtypes": damaged,
        }  # fmt: skip

    names = _names(keys or (() if is_all else (DEFAULT_MODEL,)), is_all)
    if is_all:
        names = [
            key
            for key, spec in known_models().items()
            if spec.refusal(backend) is None and spec.sources_for(backend)
        ]
    return for_each(names, fetch, as_json=as_json)


@models.command()
@click.argument("keys", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All models that are here.")
@_as_json
def verify(keys: tuple[str, ...], is_all: bool, as_json: bool) -> int:
    """Read every file of the models KEYS and compare it with its hash.

    What has changed is not used any more: 'download', or the next use, fetches or makes it again.
    """
    from tinykit.inventory import find_model, verify_model

    def check(name: str) -> dict[str, Any]:
        checked = verify_model(spec := find_model(name))
        if not checked:
            raise _not_here(spec)
        return {"text": f"{spec.key} is intact", "checked": checked}

    return for_each(_names(keys, is_all), check, as_json=as_json)


@models.command()
@click.argument("keys", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All models that are here.")
@click.option("--old", "is_old", is_flag=True, help="Only what is of no use any more.")
@_as_json
def remove(keys: tuple[str, ...], is_all: bool, is_old: bool, as_json: bool) -> int:
    """Remove the models KEYS from tinykit's own cache, and nothing outside it.

    With --old, only imports of weights or adapters that have changed since, or by earlier versions.
    """
    from tinykit.inventory import find_model, remove_model, remove_old_builds
    from tinykit.progress import size_text

    def clear(name: str) -> dict[str, Any]:
        spec = find_model(name)
        removal = remove_old_builds(spec) if is_old else remove_model(spec)
        text = f"{spec.key}: {size_text(removal.freed_bytes)} freed"
        if removal.kept:
            text += f"; left where they are: {', '.join(map(str, removal.kept))}"
        if removal.hint:
            text += f"\n{removal.hint}"
        return {
            "text": text, "freed_bytes": removal.freed_bytes, "kept": [str(path) for path in removal.kept],
            "hint": removal.hint,
        }  # fmt: skip

    nothing = (
        "Nothing old is here: every import belongs to weights as they are now."
        if is_old
        else "No models are here."
    )
    return for_each(_names(keys, is_all, is_old), clear, as_json=as_json, nothing=nothing)


@models.command()
@click.argument("key")
@_dtype
@_backend
@_as_json
def path(key: str, dtype: str | None, backend: BackendName, as_json: bool) -> None:
    """Print where the files of the model KEY are."""
    from tinykit import sources
    from tinykit.registry import get_model

    spec = get_model(key)
    found = sources.locate(spec, dtype, backend=backend)
    if found is None:
        raise _not_here(spec)
    click.echo(json.dumps({"model": spec.key, "path": str(found)}) if as_json else str(found))


@models.command()
@click.argument("key")
@click.option("--remote", is_flag=True, help="Also ask the hub: precisions, sizes, family, files to fetch.")
@_dtype
@_backend
@_as_json
def info(key: str, remote: bool, dtype: str | None, backend: BackendName, as_json: bool) -> None:
    """Show what is known of the model KEY, and what of it is here.

    For a file, a folder or a model of the hub that is here: also what its files say.
    """
    from tinykit.inventory import find_model, info_table, model_row
    from tinykit.model_facts import local_facts, remote_facts
    from tinykit.registry import HubSource, known_models

    spec = find_model(key)
    row = {**model_row(spec), "is_known": spec.key in known_models()}
    row |= {name: value for name, value in local_facts(spec).items() if not row.get(name)}
    if remote:
        found = remote_facts(spec, dtype, backend)
        row |= {name: value for name, value in found.items() if name == "dtypes" or not row.get(name)}
    elif row["here"] == "no" and any(isinstance(source, HubSource) for source in spec.sources):
        row["hint"] = f"the hub knows more: tinykit models info {key} --remote"
    click.echo(json.dumps(row, indent=1) if as_json else info_table(row))


def _names(keys: Iterable[str], is_all: bool, is_old: bool = False) -> list[str]:
    """The names that were given, each once; with --all, those of all models on this machine.

    With `is_old`, those of which something is here that is of no use any more.
    """
    from tinykit.inventory import model_rows

    names = list(dict.fromkeys(keys))
    if is_all == bool(names):
        raise click.UsageError("Give either keys of models or --all.")
    if not is_all:
        return names
    return [row["key"] for row in model_rows() if (row["old_builds"] if is_old else row["here"] != "no")]


def _not_here(spec: ModelSpec) -> NotFoundError:
    from tinykit.registry import FileSource

    source = spec.sources[0]
    if isinstance(source, FileSource):
        return NotFoundError(
            f"Nothing was made of {source.path} yet, so there is nothing to check or to remove",
            hint=f"Import it with: tinykit models download {source.path}",
        )
    return NotFoundError(
        f"{spec.key} is not on this machine", hint=f"Fetch it with: tinykit models download {spec.key}"
    )
