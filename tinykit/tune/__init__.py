"""Train a title model of one's own: a small adapter on top of a model, on the CPU, in minutes.

from tinykit.tune import tune

result = tune("pairs.jsonl", minutes=20)
print(result)
session = TinySession("smollm2-135m", adapter=result.folder)

Needs the extra `tune` (torch), which is imported when training begins.
"""

from tinykit.tune.pairs import Pair, read_pairs
from tinykit.tune.result import TuneResult
from tinykit.tune.tuning import tune

__all__ = ["Pair", "TuneResult", "read_pairs", "tune"]
