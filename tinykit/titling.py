"""One title from an engine: ask, read the reply, check it, and try the next best answer if it is not true."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from tinykit import checks, titles
from tinykit.errors import TinykitError
from tinykit.extraction import extract
from tinykit.generation.batch import Task, run_task
from tinykit.generation.cache import shared_prefix
from tinykit.generation.engine import Engine
from tinykit.generation.request import GenerationOptions, Request
from tinykit.generation.result import Completion
from tinykit.reasons import Reason, Step, explain
from tinykit.recipes import MIN_MESSAGE_CHARS, Recipe
from tinykit.scripts import count_words
from tinykit.tokenizer import Message, Tokenizer


@dataclass(frozen=True)
class Title:
    """A title with where it came from.

    Attributes:
        text: The title, or None if there is none.
        raw: What the model wrote, empty if it was not asked.
        why: What was done to the reply, in order; the last step says why there is no title.
        recipe: Name of the recipe.
        completion: The model's completion with usage and timings, None if it was not asked.
        error: What went wrong with this one of many.
    """

    text: str | None
    raw: str
    why: tuple[Step, ...]
    recipe: str
    completion: Completion | None = None
    error: TinykitError | None = None

    def __str__(self) -> str:
        return self.text or ""

    def explain(self) -> str:
        """The steps as numbered lines."""
        return explain(self.why)


def no_task(recipe: Recipe) -> Title:
    """The answer to a message that asks for nothing."""
    return Title(None, "", (Step(Reason.NO_TASK),), recipe.name)


def first_words_title(message: str, recipe: Recipe, *why: Step) -> Title:
    """A title without a model; `why` says why, where one was expected."""
    raw = titles.first_words(message) or ""
    found = extract(raw, source=message, recipe=recipe)
    return Title(found.text, raw, (*why, *found.why), recipe.name)


def model_title(engine: Engine, message: str, recipe: Recipe, prefix_tokens: int) -> Title:
    """A title by the model: the first of the recipe's candidates that passes all checks.

    If none does, the one with the least against it, or the recipe's fallback. `prefix_tokens` is what
    `fixed_prefix` says for this recipe.
    """
    return run_task(engine, title_task(engine, message, recipe, prefix_tokens))


def title_task(
    engine: Engine, message: str, recipe: Recipe, prefix_tokens: int, *, exact: bool = False
) -> Task[Title]:
    """The same as a task: what it asks the model may be run together with other titles' questions."""
    prompt_ids = _fitting_prompt(engine, message, recipe)
    slot = f"title {next(_numbers)}"  # keeps the prompt's state for further candidates
    best: Title | None = None
    least = (0, 0)
    steps: list[Step] = []
    answer: tuple[int, ...] = ()
    banned: dict[tuple[int, ...], set[int]] = {}  # by the beginning that is kept: what may not follow
    try:
        for _ in range(recipe.candidates):
            begun = answer[: _fault(engine.tokenizer, answer, message, recipe)]
            if begun != answer:
                banned.setdefault(begun, set()).add(answer[len(begun)])
            barred = banned.get(begun, set())
            if best is not None and not answer:  # it ended at once: it shall say something
                barred = barred | engine.eos_ids
            options = GenerationOptions(
                max(1, recipe.max_tokens - len(begun)),
                recipe.stop,
                exact=exact,
                banned_first=frozenset(barred),
            )
            completion = yield Request((*prompt_ids, *begun), options, prefix_tokens, slot)
            answer = (*begun, *completion.token_ids)
            candidate = _candidate(engine, message, recipe, begun, completion)
            if completion.finish_reason == "cancelled":
                return replace(candidate, why=(*steps, *candidate.why))
            problems = _problems(candidate, message, recipe) if recipe.candidates > 1 else ()
            # that it is short is no untruth: it speaks against a title, but brings no fallback
            weight = (sum(reason is not Reason.TOO_SHORT for reason in problems), len(problems))
            if best is None or weight < least:
                best, least = candidate, weight
            if not problems:
                break
            steps += [Step(reason, candidate.text) for reason in problems]
    finally:
        engine.slots.free(slot)
    assert best is not None
    if least[0] and recipe.fallback == "first-words":
        words = first_words_title(message, recipe)
        fallback = Step(Reason.FALLBACK, best.text, words.text)
        return replace(best, text=words.text, why=(*steps, fallback, *words.why))
    return replace(best, why=(*steps, *best.why))


_numbers = itertools.count()


def fixed_prefix(tokenizer: Tokenizer, recipe: Recipe) -> int:
    """How many tokens of the prompt are the recipe's own: what prompts of different messages share."""
    prompts = [title_prompt(tokenizer, recipe, titles.user_turn(text, recipe)) for text in ("a", "9")]
    return shared_prefix(*prompts)


def _fitting_prompt(engine: Engine, message: str, recipe: Recipe) -> list[int]:
    """The prompt, with the message cut shorter where the model's context is small for it."""
    room = engine.backend.info.context_length - recipe.max_tokens
    while True:
        prompt_ids = title_prompt(engine.tokenizer, recipe, titles.user_turn(message, recipe))
        if len(prompt_ids) <= room or recipe.preparation.max_chars < 2 * MIN_MESSAGE_CHARS:
            return prompt_ids
        shorter = replace(recipe.preparation, max_chars=recipe.preparation.max_chars // 2)
        recipe = replace(recipe, preparation=shorter)


def title_prompt(tokenizer: Tokenizer, recipe: Recipe, user_turn: str) -> list[int]:
    """Token ids of the prompt for a prepared message."""
    system = [Message("system", recipe.system)] if recipe.system.strip() else []
    return tokenizer.encode_chat([*system, Message("user", user_turn)], prefill=recipe.prefill)


def _candidate(
    engine: Engine, message: str, recipe: Recipe, begun: tuple[int, ...], completion: Completion
) -> Title:
    """The title in an answer that went on from the tokens `begun`."""
    raw = engine.tokenizer.decode(begun) + completion.text
    finish_reason = completion.finish_reason
    found = extract(raw, source=message, recipe=recipe, finish_reason=finish_reason)
    return Title(found.text, raw, found.why, recipe.name, completion)


def _problems(candidate: Title, message: str, recipe: Recipe) -> tuple[Reason, ...]:
    """What speaks against a candidate; that the model wants no title counts only for a long message."""
    if candidate.text is not None:
        found = list(checks.check(candidate.text, message))
        if count_words(candidate.text) < _min_words(message, recipe):
            found.append(Reason.TOO_SHORT)
        if any(step.reason is Reason.CUT_OFF for step in candidate.why):
            found.append(Reason.CUT_OFF)
        return tuple(found)
    reason = candidate.why[-1].reason
    is_believed = reason is Reason.NO_TITLE and len(message) <= _SHORT_CHARS
    return () if is_believed else (reason,)


_SHORT_CHARS = 120  # a greeting or a thank-you with a few words around it; a longer text is about something


def _fault(tokenizer: Tokenizer, answer: tuple[int, ...], message: str, recipe: Recipe) -> int:
    """How many tokens of an answer to keep: those before its first invented word or its early end."""
    text = tokenizer.decode(answer)
    starts = [at for word in checks.invented(text, message) if (at := text.find(word)) > 0]
    ends = [at for stop in recipe.stop if (at := text.find(stop)) > 0]
    said = text[: min(ends, default=0)].strip()
    if (
        not starts
        and said not in ("", recipe.no_task_answer)
        and count_words(said) < _min_words(message, recipe)
    ):
        starts = ends  # it was closed too early: let it go on
    if not starts:
        return 0
    kept = 0
    while kept < len(answer) and len(tokenizer.decode(answer[: kept + 1])) <= min(starts):
        kept += 1
    return kept


def _min_words(message: str, recipe: Recipe) -> int:
    """Words that a title should have; a short message has not that many to give."""
    return min(recipe.min_words, count_words(message[:_SHORT_CHARS]) // 2)
