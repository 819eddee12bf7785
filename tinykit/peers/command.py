"""A whole run: which engines are there, their weights, the rounds, the gate, the report.

``python benchmarks/peers.py`` and ``tinykit bench --peers``.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tinykit.errors import BackendError, OptionError, TinykitError
from tinykit.peers import bystanders, report
from tinykit.peers.accuracy import MODELS, Accuracy
from tinykit.peers.accuracy import measure as measure_accuracy
from tinykit.peers.engines import DEFAULT, PEERS, Peer
from tinykit.peers.figures import Figures
from tinykit.peers.files import check_given, place
from tinykit.peers.process import Place
from tinykit.peers.rounds import BATCHES, Rounds
from tinykit.peers.work import SHORT, Length, batch_messages, long_messages
from tinykit.progress import Progress

Emit = Callable[[str], object]
_ASK_TIMEOUT_S = 120


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        engines: Names of `PEERS`; empty: all that are usual here. What is not installed is left out and said.
        rounds: Processes for each engine; each titles half of the messages in each way.
        messages: How many short and how many long messages.
        batches: How many at once: of how many messages; empty: none.
        gate: Messages for the accuracy gate; 0: none.
        threads: Threads for each engine; None: the machine's cores.
        pythons: Interpreters, by engine or its family, where they are not this one.
        files: Weights made elsewhere, likewise.
        builder: An interpreter for onnxruntime-genai's builder.
        busy_ok: Measure on a busy machine as well; the report says that these are no measurements.
    """

    engines: Sequence[str] = ()
    rounds: int = 4
    messages: int = 20
    batches: Mapping[int, int] = field(default_factory=lambda: dict(BATCHES))
    gate: int = 100
    threads: int | None = None
    pythons: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    builder: str = sys.executable
    busy_ok: bool = False

    def check(self) -> None:
        """Raise OptionError where a number or a name is wrong."""
        for name in (*self.engines, *self.pythons, *self.files):
            if name not in PEERS:
                raise OptionError(
                    f"There is no engine {name!r}.", hint=f"There are: {', '.join(PEERS)}.", name=name
                )
        for what, least in (("rounds", 2), ("messages", 2), ("gate", 0)):
            if getattr(self, what) < least:
                raise OptionError(f"{what} must be {least} or more, got {getattr(self, what)}.", name=what)


@dataclass(frozen=True)
class Outcome:
    """What a run gives."""

    figures: Figures
    gates: tuple[Accuracy, ...]

    @property
    def passes(self) -> bool:
        """Whether all builds of ours that took part are accurate enough."""
        return all(gate.passes for gate in self.gates)


def run(options: Options, *, say: Emit = lambda text: None, progress: Progress | None = None) -> Outcome:
    """Measure, and return all figures; `say` hears what is going on.

    Raises:
        BackendError: the machine is busy.
        OptionError: a name or a number is wrong.
        TinykitError: our own model cannot be had.
    """
    options.check()
    progress = progress or Progress(False)
    peers, missing = present(options)
    for name, why in missing.items():
        say(f"{name} is left out: {why}")
    refuse_busy(options.busy_ok, say)  # before anything is imported or converted
    places, failed = _places(peers, options, progress)
    lengths: dict[Length, tuple[str, ...]] = {
        "short": SHORT[: options.messages], "long": long_messages(options.messages)
    }  # fmt: skip
    threads = options.threads or os.cpu_count() or 1
    ready = {name: peer for name, peer in peers.items() if name in places}
    rounds = Rounds(ready, places, lengths, threads=threads, say=say)
    rounds.titles(options.rounds)
    if options.batches:
        rounds.batches(batch_messages(max(options.batches.values())), options.batches)
    figures = rounds.figures
    figures.failed = {**missing, **failed, **figures.failed}
    figures.about = {
        "threads": threads, "rounds": options.rounds, "machine": platform.machine(),
        "cores": os.cpu_count(), "versions": _versions(ready, places),
    }  # fmt: skip
    dtypes = dict.fromkeys([None, *(peer.dtype for peer in ready.values())])
    gates = [
        measure_accuracy(model, dtype, messages=options.gate, say=say)
        for dtype in dtypes for model in MODELS if options.gate
    ]  # fmt: skip
    return Outcome(figures, tuple(gates))


def present(options: Options) -> tuple[dict[str, Peer], dict[str, str]]:
    """The engines whose packages are there, and why the others are not; of the usual ones, or those named."""
    names = list(options.engines) or _usual(options)
    found, missing = {}, {}
    for name in names:
        peer = PEERS[name]
        lacking = _lacking(_of(options.pythons, name, peer) or sys.executable, peer.packages)
        if lacking:
            packages = " ".join(lacking).replace("_", "-")
            how = f"pip install {packages}; docs/peers.md has all that it needs"
            missing[name] = f"{', '.join(lacking)} is not installed ({how})"
        else:
            found[name] = peer
    return found, missing


def refuse_busy(busy_ok: bool, say: Emit) -> None:
    """Raise BackendError if others use the machine now, unless that is all right.

    Raises:
        BackendError: it is busy.
    """
    share = bystanders.current_share()
    if share is None or share <= bystanders.MOST_SHARE:
        return
    said = f"Others use {share:.0%} of this machine"
    if not busy_ok:
        raise BackendError(
            f"{said}: times taken now would be no measurement.",
            hint="End what runs and try again, or measure all the same with --busy-ok, for a first look.",
        )
    say(f"{said}: what follows is a first look, no measurement.")


def _usual(options: Options) -> list[str]:
    more = [name for name in PEERS if name not in DEFAULT and _of(options.pythons, name, PEERS[name])]
    apple = ["mlx"] if sys.platform == "darwin" and platform.machine() == "arm64" else []
    return list(dict.fromkeys([*DEFAULT, *more, *apple]))


def _of(given: Mapping[str, str], name: str, peer: Peer) -> str | None:
    return given.get(name) or given.get(peer.family)


def _lacking(python: str, packages: Sequence[str]) -> list[str]:
    """Which packages an interpreter does not find; it is asked, as it may be another one."""
    code = (
        "import sys; from importlib.util import find_spec as f; print([p for p in sys.argv[1:] if not f(p)])"
    )
    if not packages:
        return []
    try:
        done = subprocess.run(
            [python, "-c", code, *packages],
            capture_output=True,
            text=True,
            check=True,
            timeout=_ASK_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return [f"{python} ({error})"]
    return [package for package in packages if repr(package) in done.stdout]


def _places(
    peers: Mapping[str, Peer], options: Options, progress: Progress
) -> tuple[dict[str, Place], dict[str, str]]:
    """Where each engine's weights are, written now if need be, and why some have none."""
    found: dict[str, Place] = {}
    failed: dict[str, str] = {}
    for name, peer in peers.items():
        python = _of(options.pythons, name, peer) or sys.executable
        try:
            given = _of(options.files, name, peer)
            files = check_given(given) if given else place(peer, python, options.builder, progress)
            found[name] = Place(files, python)
        except TinykitError as error:
            if peer.family in report.OURS:
                raise
            failed[name] = " ".join(filter(None, [error.message, error.hint]))
    return found, failed


def _versions(peers: Mapping[str, Peer], places: Mapping[str, Place]) -> dict[str, str]:
    """Versions of the engines' packages, as their interpreters know them."""
    code = (
        "import sys; from importlib.metadata import packages_distributions as d, version as v\n"
        "print(', '.join(n + ' ' + v(n) for p in sys.argv[1:] for n in d().get(p, [])[:1]))"
    )
    found = {}
    for name, peer in peers.items():
        packages = peer.packages or ("onnxruntime",)
        try:
            done = subprocess.run(
                [places[name].python, "-c", code, *packages],
                capture_output=True, text=True, check=True, timeout=_ASK_TIMEOUT_S,
            )  # fmt: skip
            found[name] = done.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            found[name] = "unknown"
    return found


def tell(outcome: Outcome, emit: Emit, *, plot: str | Path | None = None, as_json: bool = False) -> None:
    """The report, its last line JSON; with `as_json` that alone. `plot` is a page to write.

    Raises:
        OptionError: the page cannot be written.
    """
    if plot is not None:
        try:
            Path(plot).write_text(report.page(outcome.figures, outcome.gates), encoding="utf-8")
        except OSError as error:
            raise OptionError(f"{plot} cannot be written: {error}", name="plot", value=plot) from error
    if not as_json:
        report.show(outcome.figures, outcome.gates, emit)
    emit(json.dumps(report.to_json(outcome.figures, outcome.gates)))


def quick(options: Options) -> Options:
    """The same with the least that still says something: some minutes instead of half an hour."""
    return replace(options, rounds=2, messages=8, batches={1: 4, 16: 16}, gate=min(options.gate, 20))


def pairs(texts: Sequence[str], name: str) -> dict[str, Any]:
    """``NAME=VALUE`` texts as a mapping.

    Raises:
        OptionError: one has no equals sign.
    """
    found = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key or not value:
            raise OptionError(f"--{name} takes ENGINE=PATH, got {text!r}.", name=name, value=text)
        found[key] = value
    return found
