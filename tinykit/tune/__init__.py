"""Train a title model of one's own: a small adapter on top of a model, on the CPU, in minutes.

from tinykit.tune import tune

result = tune("pairs.jsonl", minutes=20)
print(result)
session = TinySession("smollm2-135m", adapter=result.folder)

Needs the extra `tune` (torch), which is imported when training begins.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinykit.tune.pairs import Pair, read_pairs
    from tinykit.tune.result import TuneResult
    from tinykit.tune.tuning import tune

__all__ = ["Pair", "TuneResult", "read_pairs", "tune"]

_HOMES = {
    "Pair": "tinykit.tune.pairs",
    "TuneResult": "tinykit.tune.result",
    "read_pairs": "tinykit.tune.pairs",
    "tune": "tinykit.tune.tuning",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the command line needs none of them to show its help."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tinykit.tune' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
