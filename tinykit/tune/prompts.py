"""Pairs as token ids: the prompt that the session would ask with, and the answer that it should get."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinykit.generation.cache import shared_prefix
from tinykit.recipes import Recipe
from tinykit.titles import user_turn
from tinykit.titling import title_prompt
from tinykit.tokenizer import Tokenizer
from tinykit.tune.pairs import Pair

TokenIds = tuple[int, ...]


@dataclass(frozen=True)
class Example:
    """One pair: the prompt after the shared prefix, and the answer with its end."""

    prompt: TokenIds
    answer: TokenIds

    @property
    def token_ids(self) -> TokenIds:
        """What the model reads: all but the last token, which it only has to say."""
        return self.prompt + self.answer[:-1]


@dataclass(frozen=True)
class ExampleSet:
    """Examples with the tokens that all their prompts begin with."""

    prefix: TokenIds
    examples: tuple[Example, ...]

    def fingerprint(self) -> str:
        """A hash of all token ids."""
        return hashlib.sha256(repr((self.prefix, self.examples)).encode()).hexdigest()


def encode_pairs(
    pairs: Sequence[Pair],
    tokenizer: Tokenizer,
    recipe: Recipe,
    eos_ids: Sequence[int],
    *,
    advance: Callable[[int], None] = lambda done: None,
) -> ExampleSet:
    """Pairs as examples for a recipe, whose first stop text and the model's end token close each answer.

    `advance` is called with 1 after each pair.
    """
    end = tuple(tokenizer.encode(recipe.stop[0]) if recipe.stop else ()) + tuple(eos_ids[:1])
    prompts: list[list[int]] = []
    for pair in pairs:
        prompts.append(title_prompt(tokenizer, recipe, user_turn(pair.message, recipe)))
        advance(1)
    shared = min(min(shared_prefix(prompts[0], prompt), len(prompt) - 1) for prompt in prompts)
    answers = (tuple(tokenizer.encode(_answer(pair, recipe))) + end for pair in pairs)
    return ExampleSet(
        tuple(prompts[0][:shared]),
        tuple(Example(tuple(p[shared:]), answer) for p, answer in zip(prompts, answers, strict=True)),
    )


def _answer(pair: Pair, recipe: Recipe) -> str:
    return (recipe.no_task_answer or "") if pair.title is None else pair.title
