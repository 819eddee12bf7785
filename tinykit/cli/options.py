"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tinykit import settings
from tinykit.devices import device_name


def check_setting(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """The option as given; if it or the setting behind it is bad, that is said before anything is fetched."""
    chosen = settings.get(str(option.name), value)
    if option.name == "device":
        with settings.blaming(device=value):
            device_name(chosen)
    return value


offline_option = click.option(
    "--offline", is_flag=True, default=None, callback=check_setting, help="Never use the network."
)

shared_option = click.option(
    "--shared", is_flag=True, help="Ask the process that holds the model for all programs; it stays loaded."
)


def session_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that uses a model."""
    options = (
        click.option("-m", "--model", help="A key of 'tinykit models', a hub id, a .gguf file or a folder."),
        click.option("-a", "--adapter", help="Folder of a LoRA adapter to merge into the model."),
        click.option("-d", "--device", callback=check_setting, help="Where to compute."),
        click.option("--dtype", help="Precision of the weights."),
        click.option("--threads", type=int, callback=check_setting, help="Threads to compute with."),
        offline_option,
    )
    for option in reversed(options):
        command = option(command)
    return command
