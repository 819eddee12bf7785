"""The command ``tinykit tune``."""

from __future__ import annotations

import shlex
from typing import Any

import click


@click.command()
@click.argument("pairs", type=click.Path(exists=True, dir_okay=False))
@click.option("-o", "--out", help="Folder for the adapter.", type=click.Path(file_okay=False))
@click.option("-b", "--base", default="smollm2-135m", show_default=True, help="The model to train.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=20, show_default=True,
              help="Time to train at most.")  # fmt: skip
@click.option("--epochs", type=float, default=3, show_default=True, help="Times to see each pair at most.")
@click.option("-r", "--recipe", default="titles", show_default=True, help="How titles are asked for.")
@click.option("--rank", type=int, default=16, show_default=True, help="Rank of the adapter.")
@click.option("--held-out", type=float, default=0.1, show_default=True, help="Share kept out for the scores.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the training.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads to compute with.")
@click.option("--resume", is_flag=True, help="Go on with the training in the folder --out.")
@click.option("--offline", is_flag=True, default=None, help="Never use the network.")
def tune(pairs: str, **options: Any) -> None:
    """Train titles of your own from PAIRS, a JSONL, CSV or JSON file of messages with titles.

    A chat export works too. Ctrl-C ends the training and keeps the best so far.
    """
    from tinykit.tune import tune as train

    result = train(pairs, **options)
    click.echo(str(result))
    if result.stopped:
        click.echo(f"Go on with: tinykit tune {pairs} --out {result.folder} --resume", err=True)
    click.echo(
        f"Use it with: TinySession({result.base!r}, adapter={str(result.folder)!r})\n"
        f"or: tinykit title -m {result.base} --adapter {shlex.quote(str(result.folder))} MESSAGE",
        err=True,
    )
