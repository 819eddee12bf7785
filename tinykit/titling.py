"""One title from an engine: ask, read the reply, check it, and try the next best answer if it is not true."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tinykit import checks, titles
from tinykit.extraction import extract
from tinykit.generation.alternatives import Answer, answers, can_branch
from tinykit.generation.cache import shared_prefix
from tinykit.generation.engine import Engine
from tinykit.generation.request import Completion, GenerationOptions, Request, Usage
from tinykit.reasons import Reason, Step, explain
from tinykit.recipes import MIN_MESSAGE_CHARS, Recipe
from tinykit.scripts import count_words
from tinykit.tokenizer import Message, Tokenizer
from tinykit.wordlists import SMALL_WORDS

_UNSURE = 1.0  # branches leave the first answer where another token is nearly as likely: by this log-ratio
_LETTER_WORTH = 0.3  # in units of log-probability
_MOST_WORDS = 7  # of an alternative, unless the first answer is longer
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class Title:
    """A title with where it came from.

    Attributes:
        text: The title, or None if there is none.
        raw: What the model wrote, empty if it was not asked.
        why: What was done to the reply, in order; the last step says why there is no title.
        recipe: Name of the recipe.
        completion: The model's completion with usage and timings, None if it was not asked.
        usage: Tokens of all answers that were looked at, this one's and the others'; None likewise.
    """

    text: str | None
    raw: str
    why: tuple[Step, ...]
    recipe: str
    completion: Completion | None = None
    usage: Usage | None = None

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
    prompt_ids = _fitting_prompt(engine, message, recipe)
    with _kept_prompt(engine, prompt_ids, prefix_tokens, recipe) as kept_tokens:
        return _chosen(_candidates(engine, message, recipe, prompt_ids, kept_tokens), message, recipe)


def _chosen(candidates: Iterator[Title], message: str, recipe: Recipe) -> Title:
    """The first candidate that nothing speaks against, or else what the recipe wants."""
    best: Title | None = None
    least = (0, 0)
    steps: list[Step] = []
    usages: list[Usage] = []
    for candidate in candidates:
        usages += [candidate.usage] if candidate.usage else []
        problems = _problems(candidate, message, recipe) if recipe.candidates > 1 else ()
        # that it is short is no untruth: it speaks against a title, but brings no fallback
        weight = (sum(reason is not Reason.TOO_SHORT for reason in problems), len(problems))
        if best is None or weight < least:
            best, least = candidate, weight
        if not problems:
            break
        steps += [Step(reason, candidate.text) for reason in problems]
    assert best is not None
    best = replace(best, usage=_total(usages))
    if not least[0]:
        return replace(best, why=(*steps, *best.why))
    if recipe.fallback == "first-words":
        words = first_words_title(message, recipe)
        fallback = Step(Reason.FALLBACK, best.text, words.text)
        return replace(best, text=words.text, why=(*steps, fallback, *words.why))
    return replace(best, why=(*steps, *best.why))


def _total(usages: Sequence[Usage]) -> Usage:
    """All tokens that were spent on one message: its prompt once, and what was decoded for any candidate."""
    first = usages[0]
    return replace(first, completion_tokens=sum(usage.completion_tokens for usage in usages))


@contextmanager
def _kept_prompt(
    engine: Engine, prompt_ids: Sequence[int], prefix_tokens: int, recipe: Recipe
) -> Iterator[int]:
    """Tokens of the prompt whose state is to be kept between the candidates: all of it, if that is of use.

    In the end only that of the recipe's own part is kept.
    """
    if recipe.candidates == 1 or not can_branch(engine):
        yield prefix_tokens
        return
    try:
        yield len(prompt_ids)
    finally:
        with engine.turn():
            state = engine.cache.take((*prompt_ids, prompt_ids[-1]))  # one more than what was kept
            kept = min(state.length, prefix_tokens)
            state.truncate(kept)
            engine.cache.keep(prompt_ids[:kept], state)


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


def _candidates(
    engine: Engine, message: str, recipe: Recipe, prompt_ids: list[int], kept_tokens: int
) -> Iterator[Title]:
    """The greedy answer, then answers that leave the last one where its first fault begins.

    With branches, the best of the greedy answer and its alternatives comes first, and then the others.
    """
    answer: tuple[int, ...] = ()
    banned: dict[tuple[int, ...], set[int]] = {}  # by the beginning that is kept: what may not follow
    asked = 0
    if recipe.branches and can_branch(engine):
        request = Request(
            tuple(prompt_ids), GenerationOptions(recipe.max_tokens, recipe.stop), prefix_tokens=kept_tokens
        )
        found = answers(engine, request, branches=recipe.branches, max_gap=_UNSURE)
        yield from _ranked(found, message, recipe)
        answer, asked = found[0].completion.token_ids, 1
    while asked < recipe.candidates:
        begun = answer[: _fault(engine.tokenizer, answer, message, recipe)]
        if begun != answer:
            banned.setdefault(begun, set()).add(answer[len(begun)])
        barred = banned.get(begun, set())
        if asked and not answer:  # it ended at once: it shall say something
            barred = barred | engine.eos_ids
        budget = max(1, recipe.max_tokens - len(begun))
        options = GenerationOptions(budget, recipe.stop, banned_first=frozenset(barred))
        request = Request((*prompt_ids, *begun), options, prefix_tokens=kept_tokens)
        completion = engine.generate(request)
        asked += 1
        answer = (*begun, *completion.token_ids)
        raw = engine.tokenizer.decode(begun) + completion.text
        yield _read(completion, raw, message, recipe)


def _ranked(found: Sequence[Answer], message: str, recipe: Recipe) -> list[Title]:
    """Answers as titles, the best first; one that the model wants no title for has no alternative."""
    read = [_read(answer.completion, answer.completion.text, message, recipe) for answer in found]
    if read[0].text is None:
        return read[:1]
    spent = _total([answer.completion.usage for answer in found])
    most = max(_MOST_WORDS, count_words(read[0].text))
    fit = [i for i, title in enumerate(read) if title.text and count_words(title.text) <= most]
    value = {i: found[i].logprob + _worth(read[i].text or "", message) for i in fit}
    first, *others = [read[i] for i in sorted(fit, key=lambda i: -value[i])]
    return [replace(first, usage=spent), *(replace(title, usage=None) for title in others)]


def _read(completion: Completion, raw: str, message: str, recipe: Recipe) -> Title:
    found = extract(raw, source=message, recipe=recipe, finish_reason=completion.finish_reason)
    return Title(found.text, raw, found.why, recipe.name, completion, completion.usage)


def _worth(title: str, message: str) -> float:
    """How much a title says, to be added to its log-probability: its letters, twice those it has copied.

    Without it the shortest answers would win, for each word makes an answer less likely. The weights were
    chosen on pairs that the training never saw.
    """
    text = message.casefold()
    known = set(_WORD.findall(text))
    words = _WORD.findall(title.casefold())
    content = [word for word in words if word not in SMALL_WORDS]
    copied = [
        word for word in content if word in known or (len(word) > 4 and word[: max(4, len(word) - 3)] in text)
    ]
    return _LETTER_WORTH * sum(map(len, [*content, *copied]))


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
