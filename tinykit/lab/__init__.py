"""The lab: cases, metrics and comparisons, to find out whether a recipe is any good.

    from tinykit import lab
    cases = lab.datasets.titles()
    print(lab.metrics.score(cases, [my_title(case.message) for case in cases]).table())

The modules are loaded when they are first used.
"""

import importlib
from types import ModuleType

__all__ = ["datasets", "metrics"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"tinykit.lab.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
