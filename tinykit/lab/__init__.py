"""The lab: cases, runs, metrics and comparisons, to find out whether a recipe is any good.

    from tinykit import lab
    run = lab.run("messages.csv", ["titles", "plain"])
    print(run.scores())
    print(lab.diff(run["plain"], run["titles"]))

The modules are loaded when they are first used.
"""

import importlib
from typing import Any

_MODULES = ("datasets", "metrics", "statistics")
_HOMES = {
    "Case": "datasets",
    "Metric": "metric",
    "Rating": "rating",
    "Row": "rows",
    "Run": "runs",
    "Target": "plan",
    "Variant": "plan",
    "ablate": "ablation",
    "check": "freezing",
    "copy_bait": "copybait",
    "diff": "differences",
    "load": "runs",
    "rate": "rating",
    "read_cases": "cases",
    "register_metric": "metrics",
    "run": "running",
    "write_cases": "cases",
}

__all__ = sorted([*_MODULES, *_HOMES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tinykit.lab.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"tinykit.lab.{_HOMES[name]}"), name.removesuffix("_metric"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
