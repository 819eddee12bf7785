"""A model that is ready: an engine that generates, or a judge."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tinykit.backends.base import BackendInfo, EncoderInfo
from tinykit.devices import Failure
from tinykit.errors import OptionError
from tinykit.folders import Skipped
from tinykit.generation.engine import Engine
from tinykit.generation.judging import Judge
from tinykit.registry import ModelSpec
from tinykit.residents import release


@dataclass(frozen=True)
class Loaded:
    """A model that is ready to generate or to judge, and the seconds it took, with download and import the
    first time.

    `skipped` tells which precisions `auto` tried in vain, and why; `failures` the same of devices. What was
    asked for is in `asked`, what it runs on in `info`.
    """

    spec: ModelSpec
    runner: Engine | Judge
    folder: Path
    load_s: float
    skipped: tuple[Skipped, ...] = ()
    asked: str = "cpu"
    failures: tuple[Failure, ...] = ()

    @property
    def is_judge(self) -> bool:
        """Whether it judges; if not, it generates."""
        return isinstance(self.runner, Judge)

    @property
    def engine(self) -> Engine:
        """What generates.

        Raises:
            OptionError: it is a judge model.
        """
        if isinstance(self.runner, Judge):
            raise not_for_text(self.spec)
        return self.runner

    @property
    def judge(self) -> Judge:
        """What judges.

        Raises:
            OptionError: it is a model that generates.
        """
        if isinstance(self.runner, Engine):
            raise not_a_judge(self.spec)
        return self.runner

    @property
    def info(self) -> BackendInfo | EncoderInfo:
        """What it runs on."""
        return self.runner.backend.info

    def close(self) -> None:
        """Release the model; a session that has loaded it says so from then on.

        Raises:
            RestartNeededError: the library failed to release it.
        """
        release(self.runner)


def not_for_text(spec: ModelSpec) -> OptionError:
    """The error for a judge model that was asked to write."""
    return OptionError(
        f"{spec.key} is a judge model: it chooses, says yes or no and scores, but it cannot write.",
        hint="Use choose(), yes_no(), score() or judge(), or take a chat model: tinykit models",
        name="model",
        value=spec.key,
    )


def not_a_judge(spec: ModelSpec) -> OptionError:
    """The error for a model that writes and was asked as a judge."""
    return OptionError(
        f"{spec.key} is no judge model, so judge() cannot ask it.",
        hint="choose(), yes_no() and score() work with every model; TinySession('julia-1') is a judge.",
        name="model",
        value=spec.key,
    )
