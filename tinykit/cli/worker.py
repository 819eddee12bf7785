"""The commands below `tinykit worker`: list, status, start, stop, logs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from tinykit.cli.options import check_setting, offline_option
from tinykit.errors import WorkerError

if TYPE_CHECKING:
    from tinykit.worker.launch import Launch

_as_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")


@click.group(invoke_without_command=True)
@click.pass_context
def worker(context: click.Context) -> None:
    """Show and control the processes that hold models for --shared and TinySession(shared=True)."""
    if context.invoked_subcommand is None:
        context.invoke(list_workers, as_json=False)


@worker.command("list")
@_as_json
def list_workers(as_json: bool) -> None:
    """List the workers that run."""
    from tinykit.worker.admin import running, table

    rows = running()
    click.echo(json.dumps(rows, indent=1) if as_json else table(rows))


@worker.command()
@click.argument("name", required=False)
@_as_json
def status(name: str | None, as_json: bool) -> int:
    """Show all that the worker NAME says of itself, or all workers that run.

    As JSON it is one object, without NAME a list.
    """
    from tinykit.cli import exit_code
    from tinykit.worker.admin import answered, described, every, found

    if name is not None:
        values = answered(found(name))
        click.echo(json.dumps(values, indent=1) if as_json else described(values))
        return 0
    rows: list[dict[str, Any]] = []
    code = 0
    for launch in every():
        try:
            rows.append(answered(launch))
        except WorkerError as error:
            code = exit_code(error)
            rows.append({"name": launch.name, "state": "no answer", "hint": error.hint})
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        click.echo("\n\n".join(map(described, rows)) or "No worker runs.")
    return code


@worker.command()
@click.option("-m", "--model", help="A key of 'tinykit models', a hub id, a .gguf file or a folder.")
@click.option("-a", "--adapter", help="Folder of a LoRA adapter to merge into the model.")
@click.option("-d", "--device", callback=check_setting, help="Where to compute.")
@click.option("--dtype", help="Precision of the weights.")
@click.option("--threads", type=int, callback=check_setting, help="Threads to compute with.")
@click.option("--no-load", is_flag=True, help="Leave loading the model to the first request.")
@offline_option
def start(no_load: bool, **options: Any) -> None:
    """Start the worker of a model, so that the first request finds it warm."""
    from tinykit.session import TinySession
    from tinykit.worker.session import SharedSession

    with TinySession(shared=True, lazy=True, **options) as session:
        assert isinstance(session, SharedSession)
        pid = session.start(is_loading=not no_load)
        click.echo(f"{session.worker_name} runs, pid {pid}.")


@worker.command()
@click.argument("name", required=False)
@click.option("--all", "is_all", is_flag=True, help="Stop every worker.")
def stop(name: str | None, is_all: bool) -> None:
    """Stop the worker NAME, or the only one that runs; what it does for others ends with an error."""
    from tinykit.worker.admin import every, found, to_stop
    from tinykit.worker.spawning import end_worker

    if is_all and name is not None:
        raise click.UsageError("Give either the name of a worker or --all.")
    launches: list[Launch] = every() if is_all else to_stop() if name is None else [found(name)]
    for launch in launches:
        was_there = end_worker(launch)
        click.echo(f"{launch.name} {'was stopped' if was_there else 'did not run'}.")
    if not launches:
        click.echo("No worker runs.")


@worker.command()
@click.argument("name", required=False)
@click.option("-n", "--lines", default=40, show_default=True, help="So many of the last lines.")
def logs(name: str | None, lines: int) -> None:
    """Show the end of a worker's log, also of one that has ended."""
    from tinykit.worker.admin import log_text

    click.echo(log_text(name, lines), nl=False)
