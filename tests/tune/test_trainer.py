import itertools
import math
import signal
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (extra tune)")

from tests.tune.test_decoder import decoder_of  # noqa: E402
from tinykit.errors import BackendError, ModelFileError, OptionError  # noqa: E402
from tinykit.tune.adapters import load_adapter  # noqa: E402
from tinykit.tune.interrupts import stop_on_interrupt  # noqa: E402
from tinykit.tune.options import TrainingOptions  # noqa: E402
from tinykit.tune.prompts import Example  # noqa: E402
from tinykit.tune.trainer import Trainer  # noqa: E402

EXAMPLES = [Example(tuple(range(20 + i, 26 + i % 5 + i)), (60 + i, 90, 2)) for i in range(11)]
HELD_OUT = [Example((30, 31, 32), (70, 90, 2)), Example((40, 41), (80, 90, 2))]
OPTIONS = TrainingOptions(
    minutes=None, epochs=4, rank=4, alpha=8, first_layer=1, learning_rate=1e-2, batch_size=4
)


def trainer_of(gguf, folder, options=OPTIONS, held_out=HELD_OUT, **more):
    decoder = decoder_of(
        gguf, rank=options.rank, alpha=options.alpha, first_layer=options.first_layer, seed=1
    )
    return Trainer(
        decoder, (1, 30), EXAMPLES, held_out, options=options, folder=folder, base_name="tiny", **more
    )


def run(trainer, steps=None):
    """Run to the end, or until this many more steps are done."""
    stop, count = threading.Event(), itertools.count(1)
    trainer.run(stop, lambda: stop.set() if next(count) == steps else None)
    return trainer


def parameters(trainer):
    return [tensor.detach().clone() for tensor in trainer._decoder.parameters]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_training_lowers_both_losses(gguf, tmp_path):
    trainer = run(trainer_of(gguf, tmp_path, TrainingOptions(**{**OPTIONS.__dict__, "epochs": 20})))
    first, last = trainer.history[0], trainer.history[-1]
    assert last.step == trainer.steps == trainer.step == 60
    assert last.train_loss < first.train_loss - 0.5
    assert trainer.best_loss == min(check.held_out_loss for check in trainer.history)
    assert len(trainer.history) == 6


@pytest.mark.parametrize("steps", [1, 3, 5, 11])
def test_resumed_training_ends_where_an_uninterrupted_one_does(gguf, tmp_path, steps):
    whole = run(trainer_of(gguf, tmp_path / "whole"))
    run(trainer_of(gguf, tmp_path / "parts"), steps)
    second = trainer_of(gguf, tmp_path / "parts")
    assert second.resume()
    assert second.step == steps
    run(second)
    assert second.step == whole.step == 12
    assert same(parameters(whole), parameters(second))
    assert second.history[-1].held_out_loss == whole.history[-1].held_out_loss
    assert second.history[-1].train_loss == pytest.approx(whole.history[-1].train_loss)


def test_threads_change_the_sums_only_by_rounding(gguf, tmp_path):
    one = run(trainer_of(gguf, tmp_path / "1"), 3)
    two = run(trainer_of(gguf, tmp_path / "2", TrainingOptions(**{**OPTIONS.__dict__, "threads": 2})), 3)
    for a, b in zip(parameters(one), parameters(two), strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-2)


def test_finished_training_has_nothing_to_resume(gguf, tmp_path):
    before = run(trainer_of(gguf, tmp_path))
    again = trainer_of(gguf, tmp_path)
    assert again.resume()
    run(again)
    assert same(parameters(before), parameters(again))
    assert again.history == before.history


def test_empty_folder_has_nothing_to_resume(gguf, tmp_path):
    assert not trainer_of(gguf, tmp_path).resume()


@pytest.mark.parametrize(
    ("change", "more", "message"),
    [
        ({"learning_rate": 1e-3}, {}, "with learning_rate=0.01"),
        ({}, {"fingerprint": "other"}, "on other pairs"),
    ],
    ids=["settings", "data"],
)
def test_training_on_something_else_does_not_go_on(gguf, tmp_path, change, more, message):
    run(trainer_of(gguf, tmp_path), 1)
    with pytest.raises(OptionError, match=message):
        trainer_of(gguf, tmp_path, TrainingOptions(**{**OPTIONS.__dict__, **change}), **more).resume()


def test_damaged_state_is_named(gguf, tmp_path):
    run(trainer_of(gguf, tmp_path), 1)
    (tmp_path / "training" / "state.pt").write_bytes(b"PK damaged")
    with pytest.raises(ModelFileError, match=r"state\.pt cannot be read"):
        trainer_of(gguf, tmp_path).resume()


def test_best_state_is_kept_and_not_the_last(gguf, tmp_path, monkeypatch):
    trainer = trainer_of(gguf, tmp_path)
    losses, states = iter([3.0, 1.0, 2.0, 4.0, 5.0, 6.0]), []

    def loss(pool):
        states.append(parameters(trainer))
        return next(losses)

    monkeypatch.setattr(trainer, "_held_out_loss", loss)
    run(trainer)
    kept = decoder_of(gguf, rank=4, alpha=8, first_layer=1)
    load_adapter(kept, tmp_path)
    assert same(kept.parameters, [tensor.bfloat16().float() for tensor in states[1]])
    assert trainer.best_loss == 1.0


def test_without_held_out_pairs_the_last_state_is_kept(gguf, tmp_path):
    trainer = run(trainer_of(gguf, tmp_path, held_out=[]))
    kept = decoder_of(gguf, rank=4, alpha=8, first_layer=1)
    load_adapter(kept, tmp_path)
    assert same(kept.parameters, [tensor.bfloat16().float() for tensor in parameters(trainer)])
    assert trainer.history[-1].held_out_loss is None


def test_interrupt_ends_after_the_step_and_a_second_one_leaves_out_the_check(gguf, tmp_path, monkeypatch):
    trainer = trainer_of(gguf, tmp_path)
    said = []

    def interrupt(*arguments):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(trainer, "_held_out_loss", interrupt)
    monkeypatch.setattr(trainer, "_is_check_due", lambda: False)
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt(lambda: said.append(trainer.step)) as stop:
        trainer.run(stop, lambda: interrupt() if trainer.step == 2 else None)
    assert signal.getsignal(signal.SIGINT) is before
    assert (trainer.step, said, stop.is_set()) == (2, [2], True)
    assert trainer.history == []
    assert (tmp_path / "adapter_model.safetensors").is_file()
    again = trainer_of(gguf, tmp_path)
    assert again.resume()
    assert again.step == 2


def test_interrupt_from_elsewhere_passes_on_and_keeps_what_there_is(gguf, tmp_path):
    trainer = trainer_of(gguf, tmp_path)

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.run(threading.Event(), interrupt)
    assert (tmp_path / "adapter_model.safetensors").is_file()


def test_outside_of_the_main_thread_nothing_is_listened_to():
    found = []

    def listen():
        with stop_on_interrupt(lambda: None) as stop:
            found.append(stop.is_set())

    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()
    assert found == [False]


def test_time_ends_a_training_and_brings_the_learning_rate_down(gguf, tmp_path, monkeypatch):
    trainer = trainer_of(
        gguf, tmp_path, TrainingOptions(**{**OPTIONS.__dict__, "minutes": 1, "epochs": 1000})
    )
    clock = itertools.count(0, 4)  # each step takes four seconds
    monkeypatch.setattr(Trainer, "seconds", property(lambda self: 4.0 * self.step))
    assert next(clock) == 0
    rates = []
    trainer.run(threading.Event(), lambda: rates.append(trainer._optimizer.param_groups[0]["lr"]))
    assert 13 <= trainer.step <= 15
    assert max(rates) > 0.9e-2
    assert rates[-1] < 0.1e-2
    assert trainer.planned_steps == pytest.approx(15, abs=1)


def test_broken_training_says_so(gguf, tmp_path, monkeypatch):
    trainer = trainer_of(gguf, tmp_path)
    monkeypatch.setattr(trainer, "_set_gradients", lambda *a: math.nan)
    with pytest.raises(BackendError, match="broke down at step 0"):
        run(trainer)


def test_threads_of_torch_are_as_before(gguf, tmp_path):
    before = torch.get_num_threads()
    run(trainer_of(gguf, tmp_path), 1)
    assert torch.get_num_threads() == before
