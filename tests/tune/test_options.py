import math

import pytest

from tinykit.errors import OptionError
from tinykit.tune.options import TrainingOptions

BAD = {
    "minutes": [0, -1, "20", True, math.nan],
    "epochs": [0, None],
    "alpha": [-2],
    "learning_rate": [0, "fast"],
    "rank": [0, 1.5, None],
    "batch_size": [0],
    "threads": [0, 2.0],
    "first_layer": [-1],
    "seed": [-1, "x"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_impossible_options_are_refused(name, value):
    with pytest.raises(OptionError, match=name) as caught:
        TrainingOptions(**{name: value})
    assert caught.value.name == name


def test_no_time_limit_is_possible():
    assert TrainingOptions(minutes=None).minutes is None


def test_time_and_threads_may_change_when_a_training_goes_on():
    one, other = (
        TrainingOptions(minutes=1, threads=1, epochs=1),
        TrainingOptions(minutes=9, threads=2, epochs=4),
    )
    assert one.fixed() == other.fixed()
    assert one.fixed() != TrainingOptions(rank=8).fixed()
