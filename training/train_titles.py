"""Train the adapter of `smollm2-135m-titles` again, and score it on the title cases of tinykit.

usage: python training/train_titles.py --out adapter [--stage 1|2] [--minutes 60] [--resume] [--no-cases]

Stage 1 sees all pairs; stage 2 starts from its adapter and sees the English ones, the very short ones among
them. An hour and half an hour on two cores. Ctrl-C keeps the best so far; --resume goes on. With
--steps-only the time sets no limit, so that the same machine gives the same adapter each time.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from tinykit import TinySession, register_model
from tinykit.lab import datasets, metrics
from tinykit.language import is_english
from tinykit.registry import get_model
from tinykit.tune import TuneResult, read_pairs, tune

HERE = Path(__file__).parent
BASE = "smollm2-135m"
STAGES = {
    1: {"files": ("en", "other"), "minutes": 60, "epochs": 1.8, "learning_rate": 1e-3, "seed": 1},
    2: {"files": ("en", "short"), "minutes": 30, "epochs": 1.0, "learning_rate": 5e-4, "seed": 7},
}


def main() -> None:
    options = arguments()
    base = BASE
    for stage in (options.stage,) if options.stage else STAGES:
        result = train(stage, base if stage == 1 else first_stage(options.out), options)
        print(result)
    if options.cases and not result.stopped:
        print(case_scores(result.folder))


def train(stage: int, base: str, options: argparse.Namespace) -> TuneResult:
    settings = dict(STAGES[stage])
    files, minutes = settings.pop("files"), settings.pop("minutes")
    pairs = [pair for name in files for pair in read_pairs(HERE / "pairs" / f"{name}.jsonl")]
    if stage == 2:
        pairs = [pair for pair in pairs if is_english(pair.message)]
    return tune(
        pairs,
        base=base,
        base_name="HuggingFaceTB/SmolLM2-135M-Instruct",
        out=options.out / f"stage-{stage}",
        minutes=None if options.steps_only else options.minutes or minutes,
        recipe="titles",
        rank=16,
        alpha=32,
        first_layer=10,
        batch_size=8,
        threads=options.threads,
        held_out=0.06,
        resume=options.resume,
        **settings,
    )


def first_stage(out: Path) -> str:
    """The key of a model with the first stage's adapter, where the second begins."""
    register_model(replace(get_model(BASE), key="titles-stage-1", adapter=out / "stage-1"))
    return "titles-stage-1"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--stage", type=int, choices=STAGES, help="only this one")
    parser.add_argument("--minutes", type=float, help="time for each stage; 60 and 30 by default")
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
