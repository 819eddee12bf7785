"""Interleaved rounds: in each, every engine gets a new process and half of the messages in each way."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tinykit.errors import BackendError
from tinykit.peers import bystanders
from tinykit.peers.engines import Peer
from tinykit.peers.figures import Batch, Figures, Sample
from tinykit.peers.process import EngineProcess, Place
from tinykit.peers.work import LENGTHS, MODES, Ask, Length, half

BATCHES = {1: 12, 4: 16, 16: 32, 64: 64}  # how many at once: of how many messages
Say = Callable[[str], object]


class Rounds:
    """Measures some engines.

    Args:
        peers: The engines, by name.
        places: Where each finds its weights.
        messages: What to title, by length.
        threads: Threads for each engine.
        say: Gets a line whenever a process is done.
    """

    def __init__(
        self,
        peers: Mapping[str, Peer],
        places: Mapping[str, Place],
        messages: Mapping[Length, tuple[str, ...]],
        *,
        threads: int,
        say: Say = lambda text: None,
    ) -> None:
        self.figures = Figures()
        self._peers, self._places, self._messages = peers, places, messages
        self._threads, self._say = threads, say

    def titles(self, rounds: int) -> None:
        """Titles one by one."""
        for number in range(rounds):
            for name in self._order(number):
                self._attempt(name, f"round {number + 1} of {rounds}", lambda: self._title(name, number))  # noqa: B023

    def batches(self, messages: Sequence[str], sizes: Mapping[int, int] = BATCHES) -> None:
        """Titles by the dozen: for each engine and size a new process and the first of the messages."""
        for number, (size, count) in enumerate(sizes.items()):
            for name in self._order(number):
                peer = self._peers[name]
                if peer.only_titles or (size > 1 and not peer.can_batch):
                    continue
                work = tuple(messages[:count])
                self._attempt(name, f"{size} at once", lambda: self._batch(name, size, work))  # noqa: B023

    def _order(self, number: int) -> list[str]:
        """The engines that have not failed; another one begins each round."""
        names = [name for name in self._peers if name not in self.figures.failed]
        start = number % max(1, len(names))
        return names[start:] + names[:start]

    def _attempt(self, name: str, what: str, measure: Callable[[], str]) -> None:
        before = bystanders.look()
        try:
            found = measure()
        except BackendError as error:
            self.figures.failed[name] = error.message
            self._say(f"{what}: {error.message}")
            return
        others = bystanders.share(before, bystanders.look(), os.cpu_count() or 1)
        self.figures.others.append(others)
        busy = f"; others used {others:.0%} of the machine" if (others or 0) > bystanders.MOST_SHARE else ""
        self._say(f"{what}: {name}, {found}{busy}")

    def _title(self, name: str, number: int) -> str:
        figures, peer = self.figures, self._peers[name]
        modes = [mode for mode in MODES if mode == "nat" or not peer.only_titles]
        with EngineProcess(name, peer, self._places[name], threads=self._threads) as process:
            for length in LENGTHS:
                messages = self._messages[length]
                for mode in modes:
                    chosen = half(messages, mode, number)
                    found = process.ask(Ask.of(tuple(messages[at] for at in chosen), mode))
                    for at, answer in zip(chosen, found["answers"], strict=True):
                        figures.samples.append(Sample(name, length, mode, at, number, **_fields(answer)))
                    peak = max(figures.peak_bytes.get(name, 0), found["peak_bytes"])
                    figures.peak_bytes[name] = peak
            figures.cold_s.setdefault(name, []).append(process.cold_s)
            figures.load_s.setdefault(name, []).append(process.load_s)
        return f"first title after {process.cold_s:.2f} s"

    def _batch(self, name: str, size: int, messages: tuple[str, ...]) -> str:
        place = self._places[name]
        with EngineProcess(name, self._peers[name], place, threads=self._threads, batch=size) as process:
            found = process.ask(Ask(messages, batch=size))
        if len(found["answers"]) != len(messages):
            raise BackendError(f"{name} failed: {len(found['answers'])} of {len(messages)} titles came")
        rate = len(messages) / found["elapsed_s"]
        self.figures.batches.append(Batch(name, size, rate, found["peak_bytes"]))
        return f"{rate:.1f} titles/s"


def _fields(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: answer[key] for key in ("total_s", "ttft_s", "tokens", "prompt_tokens", "text")}
