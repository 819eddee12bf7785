"""Whether ONNX Runtime, MLX and transformers write the same titles from the same float weights, and how fast.

    python benchmarks/backends.py [--model KEY] [--messages 20] [--backends onnx mlx transformers]

Each backend titles the messages greedily, in fp32 on the CPU; one that is not installed is left out and said.
Then each is asked once more for the logits at every token of the first backend's answers, so that a
difference can be judged: it is explained where the two tokens are closer than the backends' logits are apart.
The last line is JSON. It ends with 1 if a difference is not explained.

Measured on two busy cores, 20 messages, 223 tokens: transformers and MLX both write 20 of 20 titles as ONNX
Runtime does, with logits within 7.8e-5 and 1.3e-4, where the best token is 0.026 before the second at least.
MLX on a CPU is slow: 38 s a title there, half an hour for all.
"""

import argparse
import json
import os
import sys
import time
from typing import Any, NamedTuple

import numpy as np
from engine import requests
from plain_errors import run

from tinykit import TinySession
from tinykit.backends.base import Backend, Logits
from tinykit.errors import DeviceError
from tinykit.generation.request import Request

BACKENDS = ("onnx", "mlx", "transformers")


class Answers(NamedTuple):
    """What a backend wrote, by message, how long it took, and what it thinks of the trusted answers."""

    tokens: list[tuple[int, ...]]
    texts: list[str]
    load_s: float
    title_s: list[float]
    logits: list[Logits]


class Difference(NamedTuple):
    """The first token of an answer that is another one.

    `margin` is how far apart the trusted backend has the two tokens, `error` how far apart the logits are.
    """

    message: int
    at: int
    margin: float
    error: float

    @property
    def is_explained(self) -> bool:
        """Whether rounding can have changed the order of the two tokens."""
        return self.margin <= 2 * self.error


def along(backend: Backend, request: Request, answer: tuple[int, ...]) -> Logits:
    """Logits before each token of an answer, shape (tokens, vocab_size)."""
    fed = (*request.prompt_ids, *answer[:-1])
    state, rows = backend.new_state(), len(answer)
    start = len(fed) - rows
    if start:
        backend.forward(fed[:start], state)
    return backend.forward(fed[start:], state, rows=rows).copy()


def ask(model: str, recipe: str, backend: str, count: int, trusted: Answers | None) -> Answers:
    """Let one backend write the titles, and say what it thinks of those of `trusted`.

    Raises:
        DeviceError: it is not installed.
    """
    with TinySession(model, backend=backend, dtype="fp32", fallback=False, lazy=True) as session:
        session.load()  # writes the weights as this backend wants them, the first time
        session.unload()
        started = time.perf_counter()
        engine = session.load().engine
        load_s = time.perf_counter() - started
        asked = requests(engine, recipe, count)
        found = [engine.generate(request) for request in asked]
        tokens = [one.token_ids for one in found]
        answers = tokens if trusted is None else trusted.tokens
        logits = [along(engine.backend, *pair) for pair in zip(asked, answers, strict=True)]
    return Answers(
        tokens, [one.text for one in found], load_s, [one.timings.total_s for one in found], logits
    )


def differences(found: Answers, trusted: Answers) -> list[Difference]:
    """The first difference of every answer that is not the trusted one."""
    rows = []
    for message, (a, b) in enumerate(zip(found.tokens, trusted.tokens, strict=True)):
        if a == b:
            continue
        at = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        if at == min(len(a), len(b)):
            rows.append(Difference(message, at, np.inf, 0.0))
            continue
        row, other = trusted.logits[message][at], found.logits[message][at]
        rows.append(Difference(message, at, float(row[b[at]] - row[a[at]]), float(np.abs(row - other).max())))
    return rows


def margins(answers: Answers) -> list[float]:
    """How far the best token is before the second, for every token."""
    best = [np.partition(logits, -2, axis=-1)[:, -2:] for logits in answers.logits]
    return [float(gap) for rows in best for gap in rows[:, 1] - rows[:, 0]]


def row_of(found: Answers, trusted: Answers) -> dict[str, Any]:
    pairs = zip(found.logits, trusted.logits, strict=True)
    unlike = differences(found, trusted)
    return {
        "same_tokens": len(found.tokens) - len(unlike),
        "same_texts": sum(a == b for a, b in zip(found.texts, trusted.texts, strict=True)),
        "max_logit_error": max(float(np.abs(a - b).max()) for a, b in pairs),
        "unexplained": sum(not one.is_explained for one in unlike),
        "load_s": found.load_s,
        "title_p50_ms": 1000 * float(np.median(found.title_s)),
        "differences": [one._asdict() for one in unlike],
    }


def describe(model: str, backend: str, trusted: Answers) -> None:
    gaps = margins(trusted)
    print(
        f"{model} (fp32), {len(trusted.tokens)} messages, {len(gaps)} tokens of {backend}: the best is before"
    )
    print(f"the second by {min(gaps):.4f} at least, and by {np.median(gaps):.2f} at the median")


def show(backend: str, row: dict[str, Any], found: Answers, trusted: Answers) -> None:
    print(
        f"{backend:<13} {row['same_tokens']} of {len(found.tokens)} the same, logits within "
        f"{row['max_logit_error']:.1e}; load {row['load_s']:.1f} s, title {row['title_p50_ms']:.0f} ms",
        flush=True,
    )
    for one in differences(found, trusted):
        print(f"  {one.message}: {found.texts[one.message]!r}, not {trusted.texts[one.message]!r}")
        print(f"    token {one.at}: {one.margin:.2g} apart, logits within {one.error:.2g}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m-titles")
    parser.add_argument("--recipe", default="titles")
    parser.add_argument("--messages", type=int, default=20)
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS))
    arguments = parser.parse_args()
    trusted: Answers | None = None
    figures: dict[str, dict[str, Any]] = {}
    for backend in arguments.backends:
        try:
            found = ask(arguments.model, arguments.recipe, backend, arguments.messages, trusted)
        except DeviceError as error:
            print(f"{backend:<13} left out: {error.message}")
            continue
        if trusted is None:
            trusted = found
            describe(arguments.model, backend, found)
        figures[backend] = row_of(found, trusted)
        show(backend, figures[backend], found, trusted)
    print(json.dumps({**figures, "load_average": os.getloadavg()[0], "cores": os.cpu_count()}))
    sys.exit(any(row["unexplained"] for row in figures.values()))


if __name__ == "__main__":
    run(main)
