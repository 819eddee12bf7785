"""Thousands of mixed requests on one session: nothing may be lost, and memory must not grow.

    python benchmarks/soak.py [--requests 2000] [--model KEY] [--seed 1]

Titles, chats in slots, samples, constraints, drafts, batches, choices, long prompts, saved states,
cancels from another thread, deadlines, streams left early, and bad input. Between them the same question
is asked again and again: its answer must stay the same. Prints the resident memory along the way, and how
much it grew over the second half. The last line is JSON.
"""

import argparse
import gc
import json
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tinykit import TinykitError, TinySession
from tinykit.lab import datasets

MESSAGES = [case.message for case in datasets.titles()]
WORDS = [message for message in MESSAGES if message.strip()]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
LONG = 6_000  # characters, which fit the model's context in any script
CONTROL = "Name the capital of France."


def resident_bytes() -> int:
    """Of this process, on Linux; elsewhere the peak."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            import resource

            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Soak:
    """The requests, each of which takes a session and a source of chance."""

    def __init__(self, session: TinySession, random_source: random.Random, folder: Path) -> None:
        self.session, self.random, self.folder = session, random_source, folder

    def title(self) -> None:
        self.session.title(self.random.choice(MESSAGES))

    def titles(self) -> None:
        self.session.titles(self.random.sample(MESSAGES, 3), batch_size=self.random.choice([2, 3]))

    def chat_in_slot(self) -> None:
        slot = self.random.randrange(4)
        turns = [{"role": "user", "content": self.random.choice(MESSAGES)[:120]}]
        turns.append(
            {"role": "assistant", "content": self.session.chat(turns, slot=slot, max_tokens=6).text or "."}
        )
        self.session.chat([*turns, {"role": "user", "content": "Go on."}], slot=slot, max_tokens=6)
        if self.random.random() < 0.3:
            self.session.free_slot(slot)

    def long_prompt(self) -> None:
        self.session.complete((self.random.choice(WORDS) * 8)[:LONG], max_tokens=2)

    def samples(self) -> None:
        self.session.complete("A name for a cat?", n=3, temperature=1.0, max_tokens=6)

    def regex(self) -> None:
        self.session.complete("A year:", regex="(19|20)[0-9]{2}", draft=True)

    def schema(self) -> None:
        assert self.session.complete("As JSON:", schema=SCHEMA, max_tokens=30).parsed["ok"] in (True, False)

    def choice(self) -> None:
        self.session.choose(self.random.choice(WORDS)[:200], ["bug report", "question", "task"])

    def many(self) -> None:
        found = self.session.complete_many(["Name a color.", "", "Name a fruit."], max_tokens=4)
        assert [one.finish_reason == "error" for one in found] == [False, True, False]

    def left_early(self) -> None:
        for piece in self.session.stream("Count to ten.", max_tokens=30):
            if piece and self.random.random() < 0.3:
                break

    def cancelled(self) -> None:
        timer = threading.Timer(self.random.uniform(0, 0.2), self.session.cancel)
        timer.start()
        self.session.complete(self.random.choice(WORDS), max_tokens=60)
        timer.join()

    def deadline(self) -> None:
        self.session.complete("Tell me a story.", max_tokens=200, timeout_s=self.random.uniform(0, 0.2))

    def saved(self) -> None:
        self.session.chat([{"role": "user", "content": CONTROL}], slot="saved", max_tokens=3)
        self.session.save_state(self.folder / "state", slot="saved")
        self.session.free_slot("saved")
        self.session.restore_state(self.folder / "state", slot="saved")
        self.session.free_slot("saved")

    def bad_input(self) -> None:
        bad: list[Callable[[], object]] = [
            lambda: self.session.complete(""),
            lambda: self.session.complete("x", regex="("),
            lambda: self.session.complete("x", temperature=-1),
            lambda: self.session.complete("word " * 20_000),
            lambda: self.session.chat([{"role": "nobody", "content": "x"}]),
        ]
        try:
            self.random.choice(bad)()
        except TinykitError:
            return
        raise AssertionError("bad input was accepted")

    KINDS = (
        title, title, titles, chat_in_slot, long_prompt, samples, regex, schema, choice, many, left_early,
        cancelled, deadline, saved, bad_input,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--model")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    started, counts, marks, failures = time.perf_counter(), Counter(), [], []
    with tempfile.TemporaryDirectory() as folder, TinySession(arguments.model, progress=False) as session:
        soak = Soak(session, random.Random(arguments.seed), Path(folder))
        expected = session.complete(CONTROL, max_tokens=8)
        for number in range(arguments.requests):
            kind = soak.random.choice(Soak.KINDS)
            try:
                kind(soak)
            except TinykitError as error:
                failures.append(f"{kind.__name__}, request {number + 1}: {error}")
                print(failures[-1], flush=True)
            counts[kind.__name__] += 1
            if number % 100 == 99:
                assert session.complete(CONTROL, max_tokens=8) == expected, (
                    f"another answer after {number + 1}"
                )
                gc.collect()
                marks.append(resident_bytes())
                elapsed_s = time.perf_counter() - started
                print(f"{number + 1:>6} requests {marks[-1] / 1e6:7.0f} MB {elapsed_s:6.0f} s", flush=True)
    half = marks[len(marks) // 2 :]
    figures = {
        "requests": sum(counts.values()),
        "kinds": dict(counts),
        "failures": failures,
        "seconds": round(time.perf_counter() - started, 1),
        "resident_mb": [round(mark / 1e6) for mark in marks],
        "growth_of_second_half_mb": round((half[-1] - half[0]) / 1e6, 1) if half else None,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
