"""Train the adapter of `smollm2-135m-titles` again, and score it on the title cases of tinykit.

usage: python training/train_titles.py --out adapter [--further FIRST] [--minutes 52] [--resume]
           [--steps-only] [--no-cases]

Two stages on the English pairs, each under an hour on two cores: all of them, and then, with --further and
the folder of the first stage, once more the long messages among some of the others. Ctrl-C keeps the best so
far; --resume goes on. With --steps-only the time sets no limit, so that the same machine gives the same
adapter each time.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from tinykit import TinySession, register_model
from tinykit.lab import datasets, metrics
from tinykit.language import is_english
from tinykit.registry import get_model
from tinykit.tune import Pair, read_pairs, tune
from tinykit.tune.pairs import order, split

HERE = Path(__file__).parent
BASE = "smollm2-135m"
FILES = ("en", "short", "more", "long")
LONG_MESSAGE, LONG_TITLE = 120, 34  # characters
HELD_OUT = 0.05
FURTHER_MESSAGE, FURTHER_SHARE = 500, 4  # characters; one in so many of the shorter messages


def main() -> None:
    options = arguments()
    pairs, share = [pair for pair in english_pairs() if says_enough(pair)], HELD_OUT
    if options.further:
        pairs, share = further_pairs(pairs)
    result = tune(
        pairs,
        base=titles_so_far(options.further) if options.further else BASE,
        base_name="HuggingFaceTB/SmolLM2-135M-Instruct",
        out=options.out,
        minutes=None if options.steps_only else options.minutes,
        recipe="titles",
        rank=16,
        alpha=32,
        first_layer=10,
        learning_rate=1e-3 if options.further else 2e-3,
        batch_size=8,
        epochs=1 if options.further else 1.6,
        threads=options.threads,
        held_out=share,
        seed=1,
        resume=options.resume,
    )
    print(result)
    if options.cases and not result.stopped:
        print(case_scores(result.folder))


def titles_so_far(adapter: Path) -> str:
    """The model of the first stage, under a key of its own."""
    base = get_model(BASE)
    return register_model(replace(base, key="titles-so-far", adapter=adapter)).key


def further_pairs(pairs: list[Pair]) -> tuple[list[Pair], float]:
    """Long messages and some of the others, and the share of them that was kept out of the first stage."""
    some = [pair for pair in pairs if len(pair.message) > FURTHER_MESSAGE or order(pair) % FURTHER_SHARE == 0]
    _, *parts = split(pairs, HELD_OUT)
    kept_out = {order(pair) for part in parts for pair in part}
    return some, sum(order(pair) in kept_out for pair in some) / len(some)


def english_pairs() -> list[Pair]:
    """The pairs that the recipe would ask the model about."""
    pairs = [pair for name in FILES for pair in read_pairs(HERE / "pairs" / f"{name}.jsonl")]
    return [pair for pair in pairs if is_english(pair.message)]


def says_enough(pair: Pair) -> bool:
    """Whether a title is not one of the shortest for a message that has more to give.

    Greedy decoding leans to short answers, so the model is shown the longer titles only.
    """
    return pair.title is None or len(pair.message) < LONG_MESSAGE or len(pair.title) >= LONG_TITLE


def held_out_pairs() -> list[Pair]:
    """Pairs that the training never sees, those with short titles among them."""
    _, *parts = split([pair for pair in english_pairs() if says_enough(pair)], HELD_OUT)
    last = max(order(pair) for part in parts for pair in part)
    return [pair for pair in english_pairs() if order(pair) <= last]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--further", type=Path, metavar="FIRST", help="go on from this adapter")
    parser.add_argument("--minutes", type=float, default=52, help="time for the training; 52 by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps-only", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--no-cases", dest="cases", action="store_false")
    return parser.parse_args()


def case_scores(adapter: Path) -> str:
    """Scores on the cases that come with tinykit, none of which is near a training pair."""
    cases = datasets.titles()
    with TinySession(BASE, adapter=adapter) as session:
        titles = [session.title(case.message) for case in cases]
    return metrics.score(cases, titles).table()


if __name__ == "__main__":
    main()
