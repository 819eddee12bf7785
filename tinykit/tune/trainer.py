"""The training loop: steps against a budget, checks in between, the best state kept, everything resumable.

The learning rate follows the steps or the time, whichever is further, so that a training which its budget
ends has come to rest too.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from tinykit.errors import BackendError, ModelFileError, OptionError
from tinykit.tune.adapters import save_adapter
from tinykit.tune.batches import LowerStates, batches, summed_loss
from tinykit.tune.decoder import Decoder
from tinykit.tune.lora import Tensor
from tinykit.tune.options import Check, TrainingOptions
from tinykit.tune.prompts import Example

STATE_NAME = "state.pt"
_WARM_UP = 0.04  # share of the training in which the learning rate rises
_LEAST_RATE = 0.03  # of the highest one, at the end
_CHECKS = 6
_SAVE_S = 300  # a crash costs no more than this
_SMOOTHING = 0.03


class Trainer:
    """Trains a decoder's adapter, and keeps the best of it in `folder`.

    Args:
        decoder: The model with the adapter.
        prefix: What all prompts begin with.
        examples: What to train on.
        held_out: What to choose the best state by; without any, the last one is kept.
        options: How.
        folder: For the adapter; its state is kept in the folder ``training`` in it.
        base_name: What the adapter calls its base.
        fingerprint: Of the data, so that a training goes on only with the same.
    """

    def __init__(
        self,
        decoder: Decoder,
        prefix: Sequence[int],
        examples: Sequence[Example],
        held_out: Sequence[Example],
        *,
        options: TrainingOptions,
        folder: Path,
        base_name: str,
        fingerprint: str = "",
    ) -> None:
        self.options = options
        self.step = 0
        self.best_loss = math.inf
        self.history: list[Check] = []
        self._decoder = decoder
        self._prefix = tuple(prefix)
        self._examples = tuple(examples)
        self._held_out = tuple(held_out)
        self._folder = folder
        self._base_name = base_name
        self._identity = {"data": fingerprint, **options.fixed()}
        self._lower = LowerStates(decoder)
        self._train_loss = math.nan
        self._check_s = 0.0
        self._checked_at = 0.0  # progress
        self._saved_at = 0.0  # seconds
        self._spent_s = 0.0
        self._began_s = time.monotonic()
        self._optimizer = torch.optim.AdamW(
            decoder.parameters, lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, foreach=True
        )
        self.steps_per_epoch = math.ceil(len(self._examples) / options.batch_size)
        self.steps = max(1, int(self.steps_per_epoch * options.epochs))

    @property
    def seconds(self) -> float:
        """Training time so far, that of earlier sittings included."""
        return self._spent_s + time.monotonic() - self._began_s

    @property
    def progress(self) -> float:
        """From 0 to 1, by steps or by time, whichever is further."""
        share = self.step / self.steps
        if self.options.minutes is None:
            return share
        # the last check must fit in too
        budget_s = max(1e-9, self.options.minutes * 60 - 1.2 * self._check_s)
        return max(share, self.seconds / budget_s)

    @property
    def planned_steps(self) -> int:
        """Steps that there will be in the end, as far as one can tell by now."""
        return self.steps if self.step == 0 else min(self.steps, math.ceil(self.step / self.progress))

    @property
    def left_s(self) -> float:
        """Seconds that are left, as far as one can tell by now."""
        return self.seconds * (1 / self.progress - 1) if self.progress > 0 else math.inf

    def run(self, stop: threading.Event, on_step: Callable[[], None]) -> None:
        """Train until the budget is used up or `stop` is set; the best state is in the folder then.

        A KeyboardInterrupt after `stop` leaves out the last check.
        """
        with _single_threaded(), ThreadPoolExecutor(self.options.threads, initializer=_one_thread) as pool:
            try:
                self._take_steps(pool, stop, on_step)
                if not self.history or self.history[-1].step != self.step:
                    self._check(pool)
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                self._keep(None)
                self._save_state()
                if not stop.is_set():
                    raise

    def resume(self) -> bool:
        """Go on from the folder's state; False if there is none.

        Raises:
            OptionError: that was a training on other pairs or with other settings.
            ModelFileError: the state cannot be read.
        """
        path = self._state_path
        if not path.is_file():
            return False
        try:
            state = torch.load(path, weights_only=True)
        except Exception as error:  # torch raises errors of many kinds for a damaged file
            raise ModelFileError(f"{path} cannot be read: {error}", path=path) from error
        self._check_identity(state["identity"])
        self.step, self._spent_s, self.best_loss = state["step"], state["spent_s"], state["best_loss"]
        self._train_loss, self._check_s = state["train_loss"], state["check_s"]
        self.history = [Check(**check) for check in state["history"]]
        self._optimizer.load_state_dict(state["optimizer"])
        with torch.no_grad():
            for tensor, saved in zip(self._decoder.parameters, state["parameters"], strict=True):
                tensor.copy_(saved)
        self._began_s = time.monotonic()
        self._checked_at, self._saved_at = self.progress, self.seconds
        return True

    @property
    def _state_path(self) -> Path:
        return self._folder / "training" / STATE_NAME

    def _check_identity(self, found: dict[str, Any]) -> None:
        for name, value in self._identity.items():
            if found.get(name) != value:
                what = "on other pairs" if name == "data" else f"with {name}={found.get(name)!r}"
                raise OptionError(
                    f"The training in {self._folder} was {what}, and cannot go on with these.",
                    hint="Train into another folder, or give what it began with.",
                    name=name,
                    value=value,
                )

    def _batches(self) -> Iterator[list[Example]]:
        """The batches that are left, epoch by epoch."""
        while self.step < self.steps:
            epoch, done = divmod(self.step, self.steps_per_epoch)
            order = batches(self._examples, self.options.batch_size, seed=self.options.seed, epoch=epoch)
            for batch in order[done:]:
                yield [self._examples[index] for index in batch]

    def _take_steps(
        self, pool: ThreadPoolExecutor, stop: threading.Event, on_step: Callable[[], None]
    ) -> None:
        for examples in self._batches():
            if self.progress >= 1 or stop.is_set():
                return
            self._take_step(examples, pool)
            on_step()
            if self._is_check_due():
                self._check(pool)
            elif self.seconds - self._saved_at >= _SAVE_S:
                self._save_state()

    def _take_step(self, examples: list[Example], pool: ThreadPoolExecutor) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate()
        loss = self._set_gradients(examples, pool)
        if not math.isfinite(loss):
            raise BackendError(
                f"The training broke down at step {self.step}: the loss is {loss}.",
                hint="Train again with a lower learning_rate.",
            )
        torch.nn.utils.clip_grad_norm_(self._decoder.parameters, 1.0, foreach=True)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.step += 1
        is_first = math.isnan(self._train_loss)
        self._train_loss = loss if is_first else (1 - _SMOOTHING) * self._train_loss + _SMOOTHING * loss

    def _learning_rate(self) -> float:
        progress = self.progress
        warm_up = min(1.0, max((self.step + 1) / (_WARM_UP * self.steps), progress / _WARM_UP))
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return self.options.learning_rate * warm_up * (_LEAST_RATE + (1 - _LEAST_RATE) * cosine)

    def _set_gradients(self, examples: list[Example], pool: ThreadPoolExecutor) -> float:
        """Put the gradients of a batch's mean loss in place, and return that loss.

        Each thread takes a part of the examples: on a machine that does other things too, threads that
        share every product would wait for each other most of the time.
        """
        parameters = self._decoder.parameters

        def part(some: list[Example]) -> tuple[float, int, Sequence[Tensor]]:
            loss, tokens = summed_loss(self._decoder, self._prefix, some, self._lower)
            return float(loss.detach()), tokens, torch.autograd.grad(loss, parameters)

        count = min(self.options.threads, len(examples))
        done = list(pool.map(part, [examples[first::count] for first in range(count)]))
        tokens = sum(part_tokens for _, part_tokens, _ in done)
        with torch.no_grad():
            for parameter, *gradients in zip(parameters, *(grads for _, _, grads in done), strict=True):
                parameter.grad = sum(gradients[1:], gradients[0]) / tokens
        return sum(loss for loss, _, _ in done) / tokens

    def _held_out_loss(self, pool: ThreadPoolExecutor) -> float | None:
        def part(indices: list[int]) -> tuple[float, int]:
            with torch.no_grad():
                some = [self._held_out[index] for index in indices]
                loss, tokens = summed_loss(self._decoder, self._prefix, some, self._lower)
            return float(loss), tokens

        if not self._held_out:
            return None
        done = list(pool.map(part, batches(self._held_out, self.options.batch_size, seed=0, epoch=0)))
        return sum(loss for loss, _ in done) / sum(tokens for _, tokens in done)

    def _is_check_due(self) -> bool:
        return self.progress - self._checked_at >= 1 / _CHECKS

    def _check(self, pool: ThreadPoolExecutor) -> None:
        began_s = time.monotonic()
        loss = self._held_out_loss(pool)
        self._check_s = time.monotonic() - began_s
        self.history.append(Check(self.step, self.seconds, self._train_loss, loss))
        self._keep(loss)
        self._save_state()
        self._checked_at = self.progress

    def _keep(self, loss: float | None) -> None:
        """Write the adapter if it is the best so far; one that was not judged, if there is no other."""
        if loss is None and self._held_out and self.best_loss < math.inf:
            return
        if loss is not None and loss > self.best_loss:
            return
        self.best_loss = math.inf if loss is None else loss
        save_adapter(self._decoder, self._folder, base_name=self._base_name)

    def _save_state(self) -> None:
        state = {
            "identity": self._identity,
            "step": self.step,
            "spent_s": self.seconds,
            "best_loss": self.best_loss,
            "train_loss": self._train_loss,
            "check_s": self._check_s,
            "history": [asdict(check) for check in self.history],
            "optimizer": self._optimizer.state_dict(),
            "parameters": [tensor.detach() for tensor in self._decoder.parameters],
        }
        self._state_path.parent.mkdir(parents=True, exist_ok=True)
        part = self._state_path.with_suffix(".part")
        torch.save(state, part)
        part.replace(self._state_path)
        self._saved_at = self.seconds


@contextmanager
def _single_threaded() -> Iterator[None]:
    """One thread for each operation while this runs: the parts of a batch are what is spread."""
    before = torch.get_num_threads()
    _one_thread()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _one_thread() -> None:
    torch.set_num_threads(1)
