"""What the engine does in a second: first token, prefill, decode, titles one by one and in batches.

    python benchmarks/engine.py [--model KEY] [--dtype NAME] [--messages 40] [--rounds 3]

Titles are asked for once each (no further candidates), in interleaved rounds; every way of asking sees the
same messages. The agreement says how many answers equal, token for token, those of the plain way. Medians
and 95th percentiles over all rounds. The last line is JSON. A busy machine is said: its figures mean little.
"""

import argparse
import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from plain_errors import run

from tinykit import TinySession
from tinykit.generation.batch import one_request, run_tasks
from tinykit.generation.engine import Engine
from tinykit.generation.request import Draft, GenerationOptions, Request
from tinykit.generation.result import Completion
from tinykit.generation.title_line import TitleLine
from tinykit.lab import datasets
from tinykit.recipes import get_recipe
from tinykit.titles import has_task, user_turn
from tinykit.titling import fixed_prefix, title_prompt

BATCH_SIZES = (1, 4, 16, 64)


def requests(engine: Engine, recipe_name: str, count: int) -> list[Request]:
    """The title prompts of the first messages that ask for something."""
    recipe = get_recipe(recipe_name)
    prefix_tokens = fixed_prefix(engine.tokenizer, recipe)
    options = GenerationOptions(recipe.max_tokens, recipe.stop)
    messages = [case.message for case in datasets.titles() if has_task(case.message)][:count]
    prompts = [title_prompt(engine.tokenizer, recipe, user_turn(message, recipe)) for message in messages]
    return [Request(tuple(prompt), options, prefix_tokens) for prompt in prompts]


def changed(**changes: object) -> Callable[[Request], Request]:
    return lambda request: replace(request, options=replace(request.options, **changes))


def ways(recipe_name: str) -> dict[str, Callable[[Request], Request]]:
    """Ways to ask for a title, the plain one first."""
    recipe = get_recipe(recipe_name)
    line = TitleLine(max_words=recipe.max_words, max_chars=recipe.max_chars, stop=recipe.stop)
    return {
        "plain": lambda request: request,
        "no prefix reuse": lambda request: replace(request, reuse=False),
        "drafting": changed(draft=Draft(1, 4)),
        "title line": changed(constraint=line),
        "both": changed(draft=Draft(1, 4), constraint=line),
    }


def agreement(found: list[Completion], plain: list[Completion]) -> float:
    return sum(a.token_ids == b.token_ids for a, b in zip(found, plain, strict=True)) / len(plain)


def title_rows(engine: Engine, asked: list[Request], recipe_name: str, rounds: int) -> list[dict]:
    seconds: dict[str, list[float]] = {}
    steps: dict[str, int] = {}
    answers: dict[str, list[Completion]] = {}
    for _ in range(rounds):
        for name, change in ways(recipe_name).items():
            answers[name] = [engine.generate(change(request)) for request in asked]
            seconds.setdefault(name, []).extend(one.timings.total_s for one in answers[name])
            steps[name] = sum(one.usage.decode_steps for one in answers[name])
    return [
        {
            "way": name,
            "p50_ms": 1000 * statistics.median(times),
            "p95_ms": 1000 * statistics.quantiles(times, n=20)[-1],
            "decode_steps": steps[name] / len(asked),
            "agreement": agreement(answers[name], answers["plain"]),
        }
        for name, times in seconds.items()
    ]


def batch_rows(engine: Engine, asked: list[Request]) -> list[dict]:
    plain = [engine.generate(request) for request in asked]
    rows = []
    for size in BATCH_SIZES:
        started = time.perf_counter()
        found = dict(run_tasks(engine, map(one_request, asked), batch_size=size))
        elapsed_s = time.perf_counter() - started
        completions = [found[index] for index in range(len(asked))]
        rows.append(
            {
                "batch_size": size,
                "titles_per_s": len(asked) / elapsed_s,
                "agreement": agreement(completions, plain),
            }
        )
    return rows


def long_answer(session: TinySession, rounds: int) -> dict:
    """Speeds of one chat: a prompt of some hundred tokens, 64 new ones."""
    prompt = "Explain in simple words how a bicycle stays upright. " * 12
    results = [session.complete(prompt, max_tokens=64, reuse=False) for _ in range(rounds)]
    prefill = [one.usage.prompt_tokens / one.timings.prefill_s for one in results]
    return {
        "prompt_tokens": results[0].usage.prompt_tokens,
        "ttft_ms": 1000 * statistics.median(one.timings.ttft_s for one in results),
        "prefill_tokens_per_s": statistics.median(prefill),
        "decode_tokens_per_s": statistics.median(one.decode_tokens_per_s for one in results),
    }


def cancel_row(session: TinySession, rounds: int) -> dict:
    """Milliseconds from a cancel in another thread to the end of the call."""
    found = {}
    prompts = {"prefill": "A long story about a fox. " * 900, "decode": "Tell me a long story."}
    for name, prompt in prompts.items():
        delays = []
        for number in range(3 * rounds):
            asked = []

            def cancel(asked: list[float] = asked) -> None:
                asked.append(time.perf_counter())
                session.cancel()

            timer = threading.Timer(0.6 + 0.013 * number, cancel)
            timer.start()
            completion = session.complete(prompt, max_tokens=900, reuse=False)
            if completion.cancelled_by == "cancel":
                delays.append(time.perf_counter() - asked[0])
            timer.join()
        found[f"cancel_in_{name}_ms"] = 1000 * max(delays)
    return found


def table(rows: list[dict]) -> str:
    names = list(rows[0])
    lines = [names, *([cell(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(names))]
    return "\n".join(
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines
    )


def cell(value: object) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-titles")
    parser.add_argument("--recipe", default="titles")
    parser.add_argument("--dtype")
    parser.add_argument("--messages", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    with TinySession(arguments.model, dtype=arguments.dtype) as session:
        engine = session.load().engine
        asked = requests(engine, arguments.recipe, arguments.messages)
        engine.generate(asked[0])
        figures = {
            "model": arguments.model,
            "dtype": engine.backend.info.dtype,
            "chat": long_answer(session, arguments.rounds),
            "titles": title_rows(engine, asked, arguments.recipe, arguments.rounds),
            "batches": batch_rows(engine, asked),
            "cancel": cancel_row(session, arguments.rounds),
            "load_before": round(busy, 2),
        }
    print(f"{arguments.model} ({figures['dtype']})\n")
    for rows in ([figures["chat"]], figures["titles"], figures["batches"], [figures["cancel"]]):
        print(table(rows) + "\n")
    if busy > 0.3:
        print(f"\nThe machine was busy before ({busy:.1f} processes a core): these are no measurements.")
    print(json.dumps(figures))


if __name__ == "__main__":
    run(main)
