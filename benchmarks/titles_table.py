"""The table that decides the default recipe: each recipe over the 160 development cases.

    python benchmarks/titles_table.py [recipe …] [--model KEY] [--save DIRECTORY]

Prints scores overall, by category and by language, with latencies; `--save` keeps the titles as JSON lines.
The model never sees these cases in training.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

from plain_errors import run
from tqdm import tqdm

from tinykit import RECIPES, TinySession
from tinykit.lab import datasets, metrics


def titles_of(session: TinySession, recipe: str) -> tuple[list[dict], list[float]]:
    """One row a case, and the seconds of those that asked the model."""
    rows, latencies_s = [], []
    for case in tqdm(datasets.titles(), desc=recipe, unit="title"):
        started = time.perf_counter()
        result = session.title_result(case.message, recipe=recipe)
        elapsed_s = time.perf_counter() - started
        if result.completion is not None:
            latencies_s.append(elapsed_s)
        rows.append(
            {
                "id": case.id,
                "title": result.text,
                "raw": result.raw,
                "why": [step.reason.value for step in result.why],
                "elapsed_s": round(elapsed_s, 4),
            }
        )
    return rows, latencies_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=list(RECIPES))
    parser.add_argument("--model")
    parser.add_argument("--dtype")
    parser.add_argument("--save", type=Path)
    arguments = parser.parse_args()
    cases = datasets.titles()
    for recipe in arguments.recipes:
        model = arguments.model or ("smollm2-135m-titles" if recipe == "titles" else "smollm2-135m")
        with TinySession(model, recipe=recipe, dtype=arguments.dtype) as session:
            rows, latencies_s = titles_of(session, recipe)
        print(f"\n{recipe} ({model})\n{metrics.score(cases, [row['title'] for row in rows]).table()}")
        if latencies_s:
            p50, p95 = statistics.median(latencies_s), statistics.quantiles(latencies_s, n=20)[-1]
            print(f"latency: p50 {p50:.3f} s, p95 {p95:.3f} s over {len(latencies_s)} calls")
        if arguments.save:
            arguments.save.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(row, ensure_ascii=False) for row in rows]
            (arguments.save / f"{recipe}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run(main)
