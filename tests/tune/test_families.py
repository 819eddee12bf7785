from pathlib import Path

import pytest

from tests import tiny_models as tiny
from tinykit.convert.importer import open_source
from tinykit.errors import UnsupportedModelError
from tinykit.tune.families import TRAINABLE, require_trainable

FIXTURES = Path(__file__).parent.parent / "fixtures" / "gguf"


@pytest.mark.parametrize("family", TRAINABLE)
def test_families_that_can_be_tuned(family, tmp_path):
    require_trainable(open_source(tiny.write_gguf(tmp_path / "m.gguf", family, tiny.random_weights(family))))


@pytest.mark.parametrize("family", ["gemma3", "lfm2"])
def test_other_families_are_named_before_any_training(family):
    with pytest.raises(UnsupportedModelError, match=rf"'{family}' cannot be tuned; known are llama, qwen2"):
        require_trainable(open_source(FIXTURES / f"{family}-Q8_0.gguf"))
