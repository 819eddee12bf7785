"""A sweep of the lab on the real model against a plain loop over `title()`: time, rows a second, the table.

    python benchmarks/lab.py [--cases N] [--batch-size N] [--no-loop] [--out FOLDER]

160 cases × 4 recipes: the title model as it is and with its first answer only, the chat model with the plain
recipe and with a short one. The baseline without a model comes on top and costs nothing. Nothing is taken
from the cache. Both ways make the same titles, which is checked.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from plain_errors import run

from tinykit import RECIPES, TinySession, lab

TITLES, CHAT = lab.Target("smollm2-135m-titles"), lab.Target("smollm2-135m")
FIRST = replace(RECIPES["titles"], name="titles-first", candidates=1, branches=0)
SHORT = replace(RECIPES["plain"], name="plain-short", system="Write a short title for the message.")
VARIANTS = [
    lab.Variant(RECIPES["titles"], TITLES, "titles"),
    lab.Variant(FIRST, TITLES, "titles-first"),
    lab.Variant(RECIPES["plain"], CHAT, "plain"),
    lab.Variant(SHORT, CHAT, "plain-short"),
]


@contextmanager
def timed(label: str, rows: int) -> Iterator[None]:
    started, used = time.perf_counter(), time.process_time()
    yield
    elapsed_s, used_s = time.perf_counter() - started, time.process_time() - used
    print(
        f"{label}: {rows} titles in {elapsed_s:.1f} s, {rows / elapsed_s:.2f} a second; "
        f"{used_s:.1f} s of processor time",  # what a busy machine does not change much
        flush=True,
    )


def plain_loop(cases: list[lab.Case]) -> dict[tuple[str, str], str | None]:
    """The titles of all variants, one after the other, with the models loaded again for nobody's sake."""
    found = {}
    for target in (TITLES, CHAT):
        with TinySession(**target.options()) as session:
            for variant in VARIANTS:
                if variant.target == target:
                    for case in cases:
                        found[variant.label, case.id] = session.title(case.message, recipe=variant.recipe)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=160)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--no-loop", action="store_true")
    parser.add_argument("--out", type=Path, help="keep the run here; what it has already is not made again")
    arguments = parser.parse_args()
    every = lab.datasets.titles()
    cases = every[:: max(1, len(every) // arguments.cases)][: arguments.cases]
    count = len(cases) * len(VARIANTS)
    with tempfile.TemporaryDirectory() as folder:
        out = arguments.out or Path(folder) / "run"
        with timed(f"lab.run, batches of {arguments.batch_size}", count):
            run = lab.run(cases, VARIANTS, out=out, batch_size=arguments.batch_size, cache=False)
        print(f"{run.summary()}\n\n{run.scores()}\n\n{run.rank()}\n")
        reused = sum(row.kv_reused_tokens for row in run.rows)
        prompts = sum(row.prompt_tokens for row in run.rows)
        print(f"{reused:,} of {prompts:,} prompt tokens were not computed again")
        with timed("the same call again", count):
            lab.run(cases, VARIANTS, out=out, batch_size=arguments.batch_size, cache=False)
        if not arguments.no_loop:
            with timed("plain loop over title()", count):
                found = plain_loop(cases)
            same = sum(title == run.titles(variant).get(case) for (variant, case), title in found.items())
            print(f"{same} of {len(found)} titles are the same both ways")


if __name__ == "__main__":
    run(main)
