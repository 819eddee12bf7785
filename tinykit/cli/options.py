"""Options that several commands have."""

from __future__ import annotations

from typing import Any

import click

from tinykit import settings
from tinykit.devices import device_name


def check_setting(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """The option as given; if it or the setting behind it is bad, that is said before anything is fetched."""
    chosen = settings.get(str(option.name), value)
    if option.name == "device":
        device_name(chosen)
    return value


offline_option = click.option(
    "--offline", is_flag=True, default=None, callback=check_setting, help="Never use the network."
)
