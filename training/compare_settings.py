"""Compare settings of the training by short runs, each judged by its loss on the same held-out pairs.

usage: python training/compare_settings.py --out runs [--pairs 320] [name ...]

Every run takes the same number of samples, with its own settings, and ends with a rate that has come down:
the same pairs in the same order, but for those that see fewer pairs several times. Results are appended to
runs/results.jsonl; a run that is in there is not done again.
"""

import argparse
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tinykit import sources
from tinykit.convert.importer import open_source
from tinykit.language import is_english
from tinykit.recipes import get_recipe
from tinykit.registry import get_model
from tinykit.tokenizer import Tokenizer
from tinykit.tune import Pair, read_pairs
from tinykit.tune.batches import LowerStates, batches, summed_loss
from tinykit.tune.decoder import Decoder
from tinykit.tune.options import TrainingOptions
from tinykit.tune.pairs import split
from tinykit.tune.prompts import encode_pairs
from tinykit.tune.trainer import Trainer

HERE = Path(__file__).parent
BASE = "smollm2-135m"
STANDARD = TrainingOptions(minutes=None, rank=16, alpha=32, first_layer=10, batch_size=8, threads=2)
OPTIONS = {
    "standard": {},
    "rate-2e-3": {"learning_rate": 2e-3},
    "layers-15-29": {"first_layer": 15},
    "no-system": {"system": ""},
    "rate-5e-4": {"learning_rate": 5e-4},
    "rank-32": {"rank": 32, "alpha": 64},
    "batch-16": {"batch_size": 16, "learning_rate": 1.4e-3},
    "layers-0-29": {"first_layer": 0},
    "rank-8": {"rank": 8, "alpha": 16},
    "batch-4": {"batch_size": 4},
    "rate-4e-3": {"learning_rate": 4e-3},
    "layers-5-29": {"first_layer": 5},
    "pairs-160-twice": {"pairs": 160},
    "pairs-80-four-times": {"pairs": 80},
    "message-400": {"max_chars": 400},
    "message-1000": {"max_chars": 1000},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(OPTIONS)}; all by default")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--pairs", type=int, default=320, help="samples that each run takes")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "results.jsonl"
    done = {json.loads(line)["name"] for line in results.open()} if results.exists() else set()
    for name in options.names or OPTIONS:
        if name not in done:
            result = run(name, options.pairs, options.out)
            print(result, flush=True)
            with results.open("a") as file:
                file.write(json.dumps(result) + "\n")


def run(name: str, wanted: int, out: Path) -> dict[str, object]:
    changes = dict(OPTIONS[name])
    recipe = get_recipe("titles")
    recipe = replace(recipe, system=changes.pop("system", recipe.system))
    chars = changes.pop("max_chars", recipe.preparation.max_chars)
    recipe = replace(recipe, preparation=replace(recipe.preparation, max_chars=chars))
    trained, chosen_by, scored = split(english_pairs(), 0.06)
    held_out = [*chosen_by, *scored]
    trained = trained[: changes.pop("pairs", None)]
    options = replace(STANDARD, epochs=wanted / len(trained), **changes)
    source = open_source(sources.fetch(get_model(BASE)))
    with TemporaryDirectory() as folder:
        source.write_tokenizer(Path(folder))
        tokenizer = Tokenizer.from_folder(Path(folder))
    found = encode_pairs([*trained, *held_out], tokenizer, recipe, source.architecture.eos_ids)
    decoder = Decoder(
        source, rank=options.rank, alpha=options.alpha, first_layer=options.first_layer, seed=options.seed
    )
    examples, judged = found.examples[: len(trained)], found.examples[len(trained) :]
    trainer = Trainer(decoder, found.prefix, examples, (), options=options, folder=out / name, base_name=BASE)
    began_s, cpu_s = time.monotonic(), time.process_time()
    trainer.run(threading.Event(), lambda: None)
    seconds, cpu_s = time.monotonic() - began_s, time.process_time() - cpu_s
    return {
        "name": name,
        "held_out_loss": round(held_out_loss(decoder, found.prefix, judged), 4),
        "train_loss": round(trainer.history[-1].train_loss, 4),
        "steps": trainer.step,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_s, 1),
    }


def english_pairs() -> list[Pair]:
    pairs = [pair for name in ("en", "short") for pair in read_pairs(HERE / "pairs" / f"{name}.jsonl")]
    return [pair for pair in pairs if is_english(pair.message)]


def held_out_loss(decoder: Decoder, prefix: tuple[int, ...], examples: tuple) -> float:
    """Mean loss over the tokens of the answers."""
    lower = LowerStates(decoder)

    def part(indices: list[int]) -> tuple[float, int]:
        with torch.no_grad():
            loss, tokens = summed_loss(decoder, prefix, [examples[index] for index in indices], lower)
        return float(loss), tokens

    torch.set_num_threads(1)
    with ThreadPoolExecutor(STANDARD.threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        done = list(pool.map(part, batches(examples, 16, seed=0, epoch=0)))
    return sum(loss for loss, _ in done) / sum(tokens for _, tokens in done)


if __name__ == "__main__":
    main()
