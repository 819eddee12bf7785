"""What the pickers offer."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tinykit.builds import IMPORT_DTYPES
from tinykit.devices import DEVICES, ORDERS
from tinykit.errors import TinykitError
from tinykit.model_spec import DTYPES
from tinykit.progress import size_text
from tinykit.registry import HubSource, get_model

_DEFAULT = ("default", "")


def model_options(
    rows: Sequence[Mapping[str, Any]], chosen: str, *, is_own: bool = False
) -> list[tuple[str, str]]:
    """Models that can write, with what one should know in picking one; the chosen one and those here first.

    Args:
        rows: Of `inventory.model_rows`.
        chosen: The model that is picked at first, which need not be among them.
        is_own: Whether the chosen one is that of the user's session.
    """
    found = [(_model_label(row), str(row["key"])) for row in rows if row["task"] == "chat" and row["from"]]
    here = {str(row["key"]) for row in rows if row["here"] in ("ready", "fetched")}
    if is_own or chosen not in {key for _, key in found}:
        found = [(f"{chosen} (your session)" if is_own else chosen, chosen)] + [
            (label, key) for label, key in found if key != chosen
        ]
    return sorted(found, key=lambda option: (option[1] != chosen, option[1] not in here))


def _model_label(row: Mapping[str, Any]) -> str:
    size_bytes = row["download_bytes"]
    if row["here"] == "ready":
        return f"{row['key']} (ready)"
    if row["here"] == "damaged":
        return f"{row['key']} (damaged)"
    if row["here"] == "fetched":
        return f"{row['key']} (fetched)"
    return f"{row['key']} (download{f' of {size_text(size_bytes)}' if size_bytes else ''})"


def device_options() -> list[tuple[str, str]]:
    """Devices that exist on this kind of system, whether or not this machine has one."""
    known = [(device.name, device.label) for device in DEVICES.values() if sys.platform in device.systems]
    orders = [("auto", "the best there is"), ("gpu", "any GPU")]
    assert {name for name, _ in orders} == set(ORDERS)
    cpu, *others = known
    return [_DEFAULT, *((f"{name}: {label}", name) for name, label in (cpu, *orders, *others))]


def dtype_options(model: str) -> list[tuple[str, str]]:
    """Precisions that the model may come in."""
    try:
        spec = get_model(model)
    except TinykitError:  # the run will say what is wrong with it
        return [_DEFAULT]
    is_import = spec.adapter is not None or not any(isinstance(one, HubSource) for one in spec.sources)
    return [_DEFAULT, *((name, name) for name in (IMPORT_DTYPES if is_import else DTYPES))]
