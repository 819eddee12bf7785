"""Questions with fixed answers, and the answers that scores of their options amount to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tinykit.errors import BackendError, OptionError

MIN_OPTIONS, MAX_OPTIONS = 2, 20


def checked_options(
    options: Sequence[str] | Mapping[str, str | None], name: str = "options"
) -> tuple[str, ...]:
    """2 to 20 different texts that are not empty.

    Raises:
        OptionError: they are not.
    """
    if isinstance(options, (str, bytes)) or not isinstance(options, (Sequence, Mapping)):
        raise OptionError(
            f"{name} must be a list of texts, not {options!r:.80}.",
            hint='For example: ["bug report", "question"]',
            name=name,
            value=options,
        )
    texts = tuple(options)
    for text in texts:
        if not isinstance(text, str) or not text.strip():
            raise OptionError(
                f"{name} must be texts that are not empty, not {text!r:.80}.",
                hint="Leave out what is empty, and convert numbers with str().",
                name=name,
                value=text,
            )
    if not MIN_OPTIONS <= len(texts) <= MAX_OPTIONS:
        raise OptionError(
            f"{name} must be {MIN_OPTIONS} to {MAX_OPTIONS} texts, not {len(texts)}.",
            hint="Drop the unlikely ones, or choose a group first and one of the group then."
            if len(texts) > MAX_OPTIONS
            else 'Add what else it could be, for example: ["bug report", "question"]',
            name=name,
            value=options,
        )
    stripped = [text.strip() for text in texts]
    twice = [text for text in dict.fromkeys(stripped) if stripped.count(text) > 1]
    if twice:
        raise OptionError(
            f"{name} must differ, but {twice[0]!r:.80} is there twice.",
            hint="Name each option once.",
            name=name,
            value=options,
        )
    return texts


def _checked_text(text: object, name: str) -> None:
    if not isinstance(text, str) or not text.strip():
        raise OptionError(
            f"The {name} must be text that is not empty, not {text!r:.80}.",
            hint='For example: "Is this urgent?"',
            name=name,
            value=text,
        )


@dataclass(frozen=True)
class Choice:
    """The option that fits best.

    Attributes:
        label: That option.
        index: Its place among the options, from 0.
        probabilities: One for each option, in the order they were given; they sum to 1.
        confidence: The probability of `label`.
        scores: What the probabilities were made of: a judge's logits, or log-likelihoods after normalization
            and calibration.
        logprobs: Log-probability of each token of each option, if a language model chose.
    """

    label: str
    index: int
    probabilities: dict[str, float]
    confidence: float
    scores: tuple[float, ...] = ()
    logprobs: tuple[tuple[float, ...], ...] = ()

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True)
class YesNo:
    """How likely the answer is yes. As a truth value: whether that is more likely than no."""

    probability: float

    def __bool__(self) -> bool:
        return self.probability > 0.5

    def __float__(self) -> float:
        return self.probability


@dataclass(frozen=True)
class Score:
    """A place on a scale.

    Attributes:
        value: The expectation over the levels' numbers, from 0 to their count less 1.
        probabilities: One for each level, by its number; they sum to 1.
        confidence: The highest of them.
    """

    value: float
    probabilities: dict[int, float]
    confidence: float

    def __float__(self) -> float:
        return self.value


Answer = Choice | YesNo | Score


@dataclass(frozen=True)
class ChoiceQuestion:
    """Which of the options fits?

    `options` are labels, or a mapping from labels to rubrics that say when the label fits.
    """

    text: str
    options: Sequence[str] | Mapping[str, str | None]
    kind: ClassVar[int] = 0
    word: ClassVar[str] = "choice"

    def __post_init__(self) -> None:
        _checked_text(self.text, "question")
        checked_options(self.options)
        for label, rubric in self.options.items() if isinstance(self.options, Mapping) else ():
            if not isinstance(rubric, str | None):
                raise OptionError(
                    f"The rubric of {label!r:.80} must be text or None, not {rubric!r:.80}.",
                    hint='For example: {"bug report": "something does not work", "question": None}',
                    name="options",
                    value=self.options,
                )

    @property
    def labels(self) -> tuple[str, ...]:
        """The options without rubrics."""
        return tuple(self.options)

    @property
    def texts(self) -> tuple[str, ...]:
        """The options as the model reads them."""
        if not isinstance(self.options, Mapping):
            return self.labels
        return tuple(f"{label}: {rubric}" if rubric else label for label, rubric in self.options.items())

    def answer(self, scores: Sequence[float], logprobs: tuple[tuple[float, ...], ...] = ()) -> Choice:
        """The answer that these scores, one for each option, amount to."""
        probabilities = softmax(_counted(scores, len(self.labels)))
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        return Choice(
            label=self.labels[best],
            index=best,
            probabilities=dict(zip(self.labels, probabilities, strict=True)),
            confidence=probabilities[best],
            scores=tuple(float(score) for score in scores),
            logprobs=logprobs,
        )


@dataclass(frozen=True)
class YesNoQuestion:
    """Yes or no? `no` and `yes` may say what would have to be the case for each."""

    text: str
    no: str = "no"
    yes: str = "yes"
    kind: ClassVar[int] = 2
    word: ClassVar[str] = "noul"  # how the models of this contract were taught to call it

    def __post_init__(self) -> None:
        _checked_text(self.text, "question")
        checked_options(self.texts, "no and yes")

    @property
    def texts(self) -> tuple[str, ...]:
        """The two options, that for no first."""
        return (self.no, self.yes)

    def answer(self, scores: Sequence[float]) -> YesNo:
        """The answer that the scores for no and yes amount to."""
        return YesNo(softmax(_counted(scores, 2))[1])


@dataclass(frozen=True)
class ScoreQuestion:
    """How much, on a scale whose `levels` are described from the lowest to the highest?"""

    text: str
    levels: Sequence[str]
    kind: ClassVar[int] = 1
    word: ClassVar[str] = "score"

    def __post_init__(self) -> None:
        _checked_text(self.text, "question")
        checked_options(self.levels, "levels")

    @property
    def texts(self) -> tuple[str, ...]:
        """The levels."""
        return tuple(self.levels)

    def answer(self, scores: Sequence[float]) -> Score:
        """The answer that these scores, one for each level, amount to."""
        probabilities = softmax(_counted(scores, len(self.levels)))
        value = math.fsum(level * probability for level, probability in enumerate(probabilities))
        return Score(value, dict(enumerate(probabilities)), max(probabilities))


Question = ChoiceQuestion | YesNoQuestion | ScoreQuestion


def softmax(scores: Sequence[float]) -> list[float]:
    """Probabilities in proportion to the scores' exponentials.

    Raises:
        BackendError: a score is no finite number.
    """
    if not all(math.isfinite(score) for score in scores):
        raise BackendError(
            f"The model computed scores that are no numbers: {[float(score) for score in scores]}.",
            hint="Its weights may be damaged: fetch the model again, or try another dtype.",
        )
    highest = max(scores)
    powers = [math.exp(score - highest) for score in scores]
    total = math.fsum(powers)
    return [power / total for power in powers]


def _counted(scores: Sequence[float], count: int) -> Sequence[float]:
    if len(scores) != count:
        raise BackendError(f"The judge gave {len(scores)} logits for {count} options.")
    return scores
