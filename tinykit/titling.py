"""One title from an engine: ask, read the reply, check it, and try the next best answer if it is not true."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from tinykit import checks, titles
from tinykit.errors import TinykitError
from tinykit.extraction import extract
from tinykit.generation.batch import Task, run_task
from tinykit.generation.cache import shared_prefix
from tinykit.generation.engine import Engine
from tinykit.generation.request import GenerationOptions, Request
from tinykit.generation.result import Chunk, Completion, Usage
from tinykit.generation.slots import passing_slot
from tinykit.interrupts import keep_partial
from tinykit.markup import Bundle
from tinykit.reasons import Reason, Step, explain
from tinykit.recipes import MIN_MESSAGE_CHARS, Recipe
from tinykit.scripts import count_words
from tinykit.tokenizer import Message, Tokenizer
from tinykit.views import title_view
from tinykit.wordlists import SMALL_WORDS

_UNSURE = 0.5  # branches leave the first answer where another token is nearly as likely: by this log-ratio
_CHOICES = 3  # tokens that are looked at in one place
_LETTER_WORTH = 0.3  # in units of log-probability
_MOST_WORDS = 7  # of an alternative, unless the first answer is longer
_SHORT_CHARS = 120  # a greeting or a thank-you with a few words around it; a longer text is about something
_WORD = re.compile(r"[^\W_]+")

TokenIds = tuple[int, ...]


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
        usage: Tokens of all answers that were looked at, this one's and the others'; None if none was.
    """

    text: str | None
    raw: str
    why: tuple[Step, ...]
    recipe: str
    completion: Completion | None = None
    error: TinykitError | None = None
    usage: Usage | None = None

    def __str__(self) -> str:
        return self.text or ""

    def explain(self) -> str:
        """The steps as numbered lines."""
        return explain(self.why)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> Bundle:
        """What a notebook shows: the title, or that there is none and why; times are metadata."""
        return title_view(self)


def no_task(recipe: Recipe) -> Title:
    """The answer to a message that asks for nothing."""
    return Title(None, "", (Step(Reason.NO_TASK),), recipe.name)


def first_words_title(message: str, recipe: Recipe, *why: Step) -> Title:
    """A title without a model; `why` says why, where one was expected."""
    raw = titles.first_words(message) or ""
    found = extract(raw, source=message, recipe=recipe)
    return Title(found.text, raw, (*why, *found.why), recipe.name)


def late_title(message: str, recipe: Recipe) -> Title:
    """What there is of a title that the model had no time to begin."""
    return _Choice(message, recipe).title(is_late=True)


def model_title(
    engine: Engine,
    message: str,
    recipe: Recipe,
    prefix_tokens: int,
    *,
    deadline_s: float | None = None,
    on_chunk: Callable[[Chunk], object] | None = None,
) -> Title:
    """A title by the model: the first of the recipe's candidates that passes all checks.

    If none does, the one with the least against it, or the recipe's fallback. `prefix_tokens` is what
    `fixed_prefix` says for this recipe; `on_chunk` gets the pieces of the first candidate. At
    `deadline_s`, of `time.perf_counter`, the choice is among what is whole by then.
    """
    task = title_task(engine, message, recipe, prefix_tokens, deadline_s=deadline_s)
    return run_task(engine, task, on_chunk=on_chunk)


def title_task(
    engine: Engine,
    message: str,
    recipe: Recipe,
    prefix_tokens: int,
    *,
    exact: bool = False,
    deadline_s: float | None = None,
) -> Task[Title]:
    """The same as a task: what it asks the model may be run together with other titles' questions."""
    if deadline_s is not None and time.perf_counter() >= deadline_s:
        return late_title(message, recipe)
    asking = Asking(engine, message, recipe, prefix_tokens, exact=exact, deadline_s=deadline_s)
    choice = _Choice(message, recipe)
    try:
        scored = yield from asking.answers()
        if not any(map(choice.is_settled_by, _ranked(scored, message))) and not asking.is_late:
            yield from asking.mended(scored[0][1], choice.is_settled_by)
        return replace(choice.title(is_late=asking.is_late), usage=_total(asking.usages))
    except KeyboardInterrupt as error:  # in what is done with an answer; one of the model's is in the answer
        keep_partial(error, asking.so_far())
        raise
    finally:
        asking.close()


class Asking:
    """All that a model is asked about one message; the state of the prompt is kept until it is closed."""

    def __init__(
        self,
        engine: Engine,
        message: str,
        recipe: Recipe,
        prefix_tokens: int,
        *,
        exact: bool = False,
        deadline_s: float | None = None,
    ) -> None:
        self.usages: list[Usage] = []
        self.is_late = False  # an answer was cut off by the deadline
        self._first: Completion | None = None
        self._engine = engine
        self._message = message
        self._recipe = recipe
        self._prefix_tokens = prefix_tokens
        self._exact = exact
        self._deadline_s = deadline_s
        self._prompt_ids = _fitting_prompt(engine, message, recipe)
        self._slot = passing_slot(next(_numbers))
        self._stops = (
            recipe.stop if recipe.branches == 0 else _shortest(engine.tokenizer, recipe.stop, message)
        )

    def close(self) -> None:
        """Forget the prompt's state."""
        self._engine.slots.free(self._slot)

    def so_far(self) -> Title:
        """The first answer as the model wrote it, not yet read."""
        raw = self._first.text if self._first else ""
        return Title(None, raw, (Step(Reason.CANCELLED),), self._recipe.name, self._first)

    def answers(self) -> Task[list[tuple[float, Title]]]:
        """The greedy answer, then those that leave it where the model was least sure, with their likelihoods.

        The likeliest turn comes first, but they are asked for from the last place on, so that the state only
        rolls back. A reply that is no title has none.
        """
        recipe = self._recipe
        first = yield from self._ask((), logprobs=_CHOICES if recipe.branches else None)
        self._first = first
        title = self._read((), first)
        is_whole = title.text is not None and first.finish_reason != "cancelled"
        forks = _forks(first, recipe.branches, self._engine.eos_ids) if is_whole else []
        found: dict[_Fork, tuple[float, Title]] = {}
        ordered = sorted(forks, key=lambda fork: (-fork.at, fork.gap))
        asked = [self._request(first.token_ids[: fork.at], fork.better, 0) for fork in ordered]
        others: list[Completion] = (yield asked) if asked else []
        for fork, other in zip(ordered, others, strict=True):
            self._count(other)
            if other.finish_reason != "cancelled":
                logprobs = [token.logprob for token in (*first.logprobs[: fork.at], *other.logprobs)]
                found[fork] = sum(logprobs), self._read(first.token_ids[: fork.at], other)
        logprob = sum(token.logprob for token in first.logprobs)
        return [(logprob, title), *(found[fork] for fork in forks if fork in found)]

    def mended(self, first: Title, is_settled_by: Callable[[Title], bool]) -> Task[None]:
        """Answers that leave the last one where its first fault begins, until one settles the matter."""
        assert first.completion is not None
        answer = first.completion.token_ids
        banned: dict[TokenIds, set[int]] = {}  # by the beginning that is kept: what may not follow
        for _ in range(self._recipe.candidates - 1):
            begun = answer[: self._fault(answer)]
            if begun != answer:
                banned.setdefault(begun, set()).add(answer[len(begun)])
            barred = banned.get(begun, set())
            # what ended at once shall say something
            completion = yield from self._ask(begun, barred if answer else barred | self._engine.eos_ids)
            answer = (*begun, *completion.token_ids)
            if self.is_late or is_settled_by(self._read(begun, completion)):
                return

    def _fault(self, answer: TokenIds) -> int:
        """How many tokens of an answer to keep: those before its first invented word or its early end."""
        tokenizer, message, recipe = self._engine.tokenizer, self._message, self._recipe
        text = tokenizer.decode(answer)
        starts = [at for word in checks.invented(text, message) if (at := text.find(word)) > 0]
        ends = [at for stop in self._stops if (at := text.find(stop)) > 0]
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

    def _ask(
        self, begun: TokenIds, banned: Collection[int] = (), logprobs: int | None = None
    ) -> Task[Completion]:
        completion: Completion = yield self._request(begun, banned, logprobs)
        self._count(completion)
        return completion

    def _count(self, completion: Completion) -> None:
        self.usages.append(completion.usage)
        self.is_late = self.is_late or completion.cancelled_by == "timeout"

    def _request(self, begun: TokenIds, banned: Collection[int], logprobs: int | None) -> Request:
        options = GenerationOptions(
            max(1, self._recipe.max_tokens - len(begun)),
            self._stops,
            logprobs=logprobs,
            exact=self._exact,
            banned_first=frozenset(banned),
        )
        prompt_ids = (*self._prompt_ids, *begun)
        return Request(prompt_ids, options, self._prefix_tokens, self._slot, deadline_s=self._deadline_s)

    def _read(self, begun: TokenIds, completion: Completion) -> Title:
        """The title in an answer that went on from the tokens `begun`."""
        raw = self._engine.tokenizer.decode(begun) + completion.text
        finish_reason = completion.finish_reason
        if completion.cancelled_by == "timeout":
            return Title(None, raw, (), self._recipe.name, completion)  # the choice says why
        found = extract(raw, source=self._message, recipe=self._recipe, finish_reason=finish_reason)
        return Title(found.text, raw, found.why, self._recipe.name, completion)


def _shortest(tokenizer: Tokenizer, stops: tuple[str, ...], message: str) -> tuple[str, ...]:
    """The first tokens of stop texts as texts, each of whose tokens takes a step of its own.

    Where the message has one of them a title may have it too, and the stop texts stay whole.
    """
    begun = tuple(tokenizer.decode(tokenizer.encode(stop)[:1]) for stop in stops)
    return stops if any(not stop.strip() or stop in message for stop in begun) else begun


class _Choice:
    """The candidates for one message so far."""

    def __init__(self, message: str, recipe: Recipe) -> None:
        self._message = message
        self._recipe = recipe
        self._best: Title | None = None
        self._least = (0, 0)  # what speaks against the best
        self._steps: list[Step] = []

    def is_settled_by(self, candidate: Title) -> bool:
        """Weigh a candidate; whether no other need be asked for."""
        is_cancelled = candidate.completion is not None and candidate.completion.finish_reason == "cancelled"
        is_checked = self._recipe.candidates > 1 and not is_cancelled
        problems = _problems(candidate, self._message, self._recipe) if is_checked else ()
        # that it is short is no untruth: it speaks against a title, but brings no fallback
        weight = (sum(reason is not Reason.TOO_SHORT for reason in problems), len(problems))
        if self._best is None or is_cancelled or weight < self._least:
            self._best, self._least = candidate, weight
        if not problems:
            return True
        self._steps += [Step(reason, candidate.text) for reason in problems]
        return False

    def title(self, *, is_late: bool = False) -> Title:
        """The best candidate, or what the recipe falls back to, also if there was no time for any."""
        best = self._best or Title(None, "", (), self._recipe.name)
        text, why = best.text, best.why
        is_unfit = self._least[0] > 0 or (is_late and text is None and not why)
        if is_unfit and self._recipe.fallback == "first-words":
            words = first_words_title(self._message, self._recipe)
            fallback = Step(Reason.FALLBACK, text or words.text, words.text)
            text, why = words.text, (fallback, *words.why)
        late = (Step(Reason.TIMEOUT, text, text),) if is_late else ()
        return replace(best, text=text, why=(*self._steps, *late, *why))


def _total(usages: Sequence[Usage]) -> Usage:
    """All tokens that were spent on one message: its prompt once, and what was decoded for any candidate."""
    return replace(
        usages[0],
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        decode_steps=sum(usage.decode_steps for usage in usages),
    )


@dataclass(frozen=True, order=True)
class _Fork:
    """A place of the first answer where another token is nearly as likely; sorted by how much less it is."""

    gap: float
    at: int
    token_id: int
    better: frozenset[int] = field(compare=False)  # tokens that are likelier there


def _forks(first: Completion, most: int, eos_ids: Collection[int]) -> list[_Fork]:
    """The likeliest other turns that an answer could have taken."""
    found = []
    for at, token in enumerate(first.logprobs):
        better = {token.token_id}
        for token_id, logprob in token.top:
            if token_id != token.token_id and token_id not in eos_ids:
                found.append(_Fork(token.logprob - logprob, at, token_id, frozenset(better)))
            better.add(token_id)
    return sorted(fork for fork in found if 0 <= fork.gap < _UNSURE)[:most]


def _ranked(scored: Sequence[tuple[float, Title]], message: str) -> list[Title]:
    """Answers, the one first that says most for its likelihood; without those that are no title.

    The first answer stays in any case.
    """
    first = scored[0][1]
    most = max(_MOST_WORDS, count_words(first.text or ""))
    fit = [
        (logprob + _worth(title.text or "", message), title)
        for logprob, title in scored
        if title is first or (title.text and count_words(title.text) <= most)
    ]
    return [title for _, title in sorted(fit, key=lambda pair: -pair[0])]


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


def _min_words(message: str, recipe: Recipe) -> int:
    """Words that a title should have; a short message has not that many to give."""
    return min(recipe.min_words, count_words(message[:_SHORT_CHARS]) // 2)
