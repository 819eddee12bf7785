"""The accuracy gate: how far a build's next-token probabilities are from those of the float weights.

The float build titles messages greedily. At each token of its answers both builds say what they expect, after
the same tokens: the mean Kullback-Leibler divergence, and the share of steps with the same likeliest token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tinykit.backends.base import Backend
from tinykit.generation.engine import Engine
from tinykit.generation.request import GenerationOptions, Request
from tinykit.lab import datasets
from tinykit.recipes import DEFAULT_RECIPE, Recipe, get_recipe
from tinykit.session import TinySession
from tinykit.titles import has_task, user_turn
from tinykit.titling import fixed_prefix, title_prompt

MOST_KL: Final = 0.02
LEAST_TOP1: Final = 0.92
MODELS: Final = ("smollm2-135m", "smollm2-135m-titles")  # whose default builds must pass
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Accuracy:
    """A build against the float weights.

    Attributes:
        model: The model's key.
        dtype: The build's precision.
        messages: How many were titled.
        tokens: At how many places the two were compared.
        kl: Mean divergence of the build from the floats, in nats.
        kl_p95: Its 95th percentile.
        top1: Share of places where both find the same token likeliest.
    """

    model: str
    dtype: str
    messages: int
    tokens: int
    kl: float
    kl_p95: float
    top1: float

    @property
    def passes(self) -> bool:
        """Whether such a build may be a default."""
        return self.kl <= MOST_KL and self.top1 >= LEAST_TOP1

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "passes": self.passes}


def measure(
    model: str,
    dtype: str | None = None,
    *,
    messages: int = 100,
    threads: int | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> Accuracy:
    """How accurate a build is; by default the one that is taken where none is named.

    Both builds are in memory meanwhile.

    Raises: what loading a model raises.
    """
    with (
        TinySession(model, dtype="fp32", threads=threads, lazy=True) as exact,
        TinySession(model, dtype=dtype, threads=threads, lazy=True) as build,
    ):
        recipe = get_recipe(exact.spec.recipe or DEFAULT_RECIPE)
        rows = list(compare(exact.load().engine, build.load().engine, recipe, messages))
        info = build.info
    kl = np.concatenate([kl for kl, _ in rows])
    top1 = np.concatenate([same for _, same in rows])
    say(f"{model}: compared at {len(kl)} tokens")
    return Accuracy(
        model, info.dtype or "", len(rows), len(kl), float(kl.mean()),
        float(np.percentile(kl, 95)), float(top1.mean()),
    )  # fmt: skip


def compare(
    exact: Engine, build: Engine, recipe: Recipe, count: int
) -> Iterator[tuple[_Floats, npt.NDArray[np.bool_]]]:
    """For each message: the divergence at each token of the float answer, and if the best is the same."""
    prefix_tokens = fixed_prefix(exact.tokenizer, recipe)
    options = GenerationOptions(recipe.max_tokens, recipe.stop)
    messages = [case.message for case in datasets.titles() if has_task(case.message)][:count]
    for message in messages:
        prompt = tuple(title_prompt(exact.tokenizer, recipe, user_turn(message, recipe)))
        answer = exact.generate(Request(prompt, options, prefix_tokens)).token_ids
        if answer:
            a, b = _along(exact.backend, prompt, answer), _along(build.backend, prompt, answer)
            yield divergence(a, b), a.argmax(axis=-1) == b.argmax(axis=-1)


def divergence(exact: npt.NDArray[Any], other: npt.NDArray[Any]) -> _Floats:
    """The divergence of `other` from `exact`, both logits of shape (tokens, vocab_size), in nats by token."""
    p, q = _log_softmax(exact), _log_softmax(other)
    found: _Floats = (np.exp(p) * (p - q)).sum(axis=-1)
    return found


def _log_softmax(logits: npt.NDArray[Any]) -> _Floats:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    found: _Floats = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def _along(backend: Backend, prompt: tuple[int, ...], answer: tuple[int, ...]) -> npt.NDArray[Any]:
    """Logits before each token of an answer, shape (tokens, vocab_size).

    The prompt goes in at once and the answer token by token, as in a title that is written.
    """
    state = backend.new_state()
    rows = [backend.forward(prompt, state, rows=1)[-1].copy()]
    for token in answer[:-1]:
        rows.append(backend.forward((token,), state, rows=1)[-1].copy())
    return np.stack(rows)
