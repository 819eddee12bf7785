"""How often the fast ways of asking say exactly what the plain way says, over the title cases.

    python benchmarks/agreement.py [--model KEY] [--dtype w8a8 fp32] [--cases 160]

Plain is one title at a time by `generate`, with the recipe's prefix kept. Each other way is compared
token for token. A draft feeds several tokens at once, for which attention is computed by other kernels:
on quantized weights the last bits then differ, and now and then a word, except in the exact mode. The
last line is JSON.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace

from engine import requests
from plain_errors import run
from tqdm import tqdm

from tinykit import TinySession
from tinykit.generation.batch import one_request, run_tasks
from tinykit.generation.engine import Engine
from tinykit.generation.request import Draft, Request
from tinykit.generation.result import Completion

Way = Callable[[Engine, list[Request]], list[Completion]]


def with_options(request: Request, **changes: object) -> Request:
    return replace(request, options=replace(request.options, **changes))


def streamed(engine: Engine, request: Request) -> Completion:
    stream = engine.stream(request)
    text = "".join(stream)
    assert text == stream.result.text
    return stream.result


def one_by_one(ask: Callable[[Engine, Request], Completion]) -> Way:
    return lambda engine, asked: [ask(engine, request) for request in tqdm(asked, leave=False)]


def batched(size: int, exact: bool) -> Way:
    def ask(engine: Engine, asked: list[Request]) -> list[Completion]:
        tasks = (one_request(with_options(request, exact=exact)) for request in asked)
        found = dict(run_tasks(engine, tasks, batch_size=size))
        return [found[index] for index in range(len(asked))]

    return ask


def drafted(exact: bool) -> Way:
    return one_by_one(
        lambda engine, request: engine.generate(with_options(request, draft=Draft(1, 4), exact=exact))
    )


WAYS: dict[str, Way] = {
    "again": one_by_one(Engine.generate),
    "streamed": one_by_one(streamed),
    "without kept prefix": one_by_one(lambda engine, request: engine.generate(replace(request, reuse=False))),
    "drafted": drafted(exact=False),
    "drafted, exact": drafted(exact=True),
    "batch of 4": batched(4, exact=False),
    "batch of 16": batched(16, exact=False),
    "batch of 16, exact": batched(16, exact=True),
}


def compare(engine: Engine, asked: list[Request]) -> dict[str, dict[str, float]]:
    plain = one_by_one(Engine.generate)(engine, asked)
    rows = {}
    for name, way in WAYS.items():
        found = way(engine, asked)
        pairs = list(zip(found, plain, strict=True))
        rows[name] = {
            "same_tokens": sum(a.token_ids == b.token_ids for a, b in pairs) / len(pairs),
            "same_text": sum(a.text == b.text for a, b in pairs) / len(pairs),
        }
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-titles")
    parser.add_argument("--recipe", default="titles")
    parser.add_argument("--dtype", nargs="*", default=["w8a8", "fp32"])
    parser.add_argument("--cases", type=int, default=160)
    arguments = parser.parse_args()
    figures = {}
    for dtype in arguments.dtype:
        with TinySession(arguments.model, dtype=dtype) as session:
            engine = session.load().engine
            asked = requests(engine, arguments.recipe, arguments.cases)
            figures[dtype] = compare(engine, asked)
        print(f"\n{arguments.model} ({dtype}), {len(asked)} prompts")
        for name, row in figures[dtype].items():
            print(f"  {name:<22} {row['same_tokens']:6.1%} of token ids, {row['same_text']:6.1%} of texts")
    print(json.dumps(figures))


if __name__ == "__main__":
    run(main)
