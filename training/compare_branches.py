"""Compare ways to choose among a title model's answers, on pairs that its training never saw.

usage: python training/compare_branches.py [--adapter FOLDER] [--pairs 240] [--save answers.jsonl]

For each message the greedy answer and up to six alternatives are asked for once. What is printed is the mean
chrF of what each way chooses: so many branches, and so much worth for each letter.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

from sacrebleu.metrics import CHRF
from tqdm import tqdm
from train_titles import BASE, held_out_pairs

from tinykit import TinySession, checks, titling
from tinykit.generation.batch import run_task
from tinykit.generation.engine import Engine
from tinykit.recipes import RECIPES
from tinykit.scripts import count_words
from tinykit.tune import Pair

MOST = 6
WORTHS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.8)
RECIPE = replace(RECIPES["titles"], branches=MOST)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--adapter", type=Path, help="another adapter than the one of tinykit")
    parser.add_argument("--pairs", type=int, default=240)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    pairs = [pair for pair in held_out_pairs() if pair.title][: options.pairs]
    model = BASE if options.adapter else "smollm2-135m-titles"
    with TinySession(model, adapter=options.adapter, recipe=RECIPE, progress=False) as session:
        engine = session.load().engine
        rows = [row for pair in tqdm(pairs, unit="message") if (row := candidates(engine, pair))]
    if options.save:
        options.save.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{len(rows)} messages; chrF by branches (down) and worth of a letter (across)")
    print("         " + "".join(f"{worth:8}" for worth in WORTHS) + "   best  tokens")
    for branches in range(MOST + 1):
        some = [row[: 1 + branches] for row in rows]
        means = [statistics.mean(chosen(row, worth)["chrf"] for row in some) for worth in WORTHS]
        best = statistics.mean(max(candidate["chrf"] for candidate in row) for row in some)
        tokens = statistics.mean(sum(candidate["tokens"] for candidate in row) for row in some)
        print(f"{branches:9}" + "".join(f"{mean:8.2f}" for mean in means) + f"{best:7.2f}{tokens:8.1f}")


def candidates(engine: Engine, pair: Pair) -> list[dict]:
    """The greedy answer and its alternatives, the likeliest branch first; none if the greedy is no title."""
    asking = titling.Asking(engine, pair.message, RECIPE, titling.fixed_prefix(engine.tokenizer, RECIPE))
    scored = run_task(engine, asking.answers())
    asking.close()
    if scored[0][1].text is None:
        return []
    return [
        {
            "wanted": pair.title,
            "title": title.text or "",
            "logprob": logprob,
            "letters": titling._worth(title.text or "", pair.message) / titling._LETTER_WORTH,
            "chrf": CHRF().sentence_score(title.text or "", [pair.title]).score,
            "is_true": bool(title.text) and not checks.check(title.text, pair.message),
            "words": count_words(title.text or ""),
            "tokens": title.completion.usage.completion_tokens,
        }
        for logprob, title in scored
    ]


def chosen(row: list[dict], worth: float) -> dict:
    """The candidate that a worth of each letter would choose, among those that pass the checks."""
    fit = [each for each in row if each["is_true"] and each["words"] <= max(7, row[0]["words"])]
    return max(fit or row[:1], key=lambda each: each["logprob"] + worth * each["letters"])


if __name__ == "__main__":
    main()
