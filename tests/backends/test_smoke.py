import numpy as np
import pytest

from tinykit.backends.scripted import ScriptedBackend
from tinykit.backends.smoke import check_like, probe_ids
from tinykit.errors import BackendError, DeviceError

RNG = np.random.default_rng(3)
TABLE = RNG.standard_normal((50, 50)).astype(np.float32)


def backend(table=TABLE, **options):
    return ScriptedBackend(lambda seen: table[seen[-1]], vocab_size=table.shape[1], **options)


def test_equal_and_nearly_equal_backends_pass():
    check_like(backend(), backend())
    check_like(backend(TABLE + 1e-3), backend())


def test_another_token_fails_at_the_prompt_and_at_the_step():
    for position in (-2, -1):
        table = TABLE.copy()
        token = probe_ids(50)[position]
        table[token] = np.roll(table[token], 1)
        with pytest.raises(
            DeviceError, match=r"none computes something else: its next token is \d+, the CPU's"
        ):
            check_like(backend(table), backend())


def test_a_near_tie_is_no_difference():
    trusted, tested = np.zeros((50, 50), np.float32), np.zeros((50, 50), np.float32)
    trusted[:, 3], trusted[:, 4] = 10, 9.99
    tested[:, 3], tested[:, 4] = 9.99, 10
    check_like(backend(tested), backend(trusted))
    trusted[:, 4] = 9
    with pytest.raises(DeviceError):
        check_like(backend(tested), backend(trusted))


def test_logits_that_are_not_finite_fail():
    with pytest.raises(DeviceError, match="not finite"):
        check_like(backend(np.full((50, 50), np.nan, np.float32)), backend())


def test_another_vocabulary_fails():
    with pytest.raises(DeviceError, match="gives 40 logits, the CPU 50"):
        check_like(backend(np.ones((50, 40), np.float32)), backend())


def test_a_failing_step_is_passed_on():
    def fail(seen):
        raise BackendError("no kernel image")

    with pytest.raises(BackendError, match="no kernel image"):
        check_like(ScriptedBackend(fail, vocab_size=50), backend())
