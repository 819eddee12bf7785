"""Choices, yes or no, and scores: from a judge model, or from what a language model holds likely.

A judge gets a question in the form that it was trained on. A language model gets it as a message, and each
option is scored as the answer to it; none is generated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinykit.call_options import names_options
from tinykit.errors import OptionError
from tinykit.generation.choice import (
    Continuations,
    Normalize,
    chat_continuations,
    checked_normalize,
    scores_of,
)
from tinykit.generation.engine import Engine
from tinykit.generation.questions import (
    Answer,
    Choice,
    ChoiceQuestion,
    Question,
    Score,
    ScoreQuestion,
    YesNo,
    YesNoQuestion,
)
from tinykit.generation.request import Watcher
from tinykit.interrupts import shorten
from tinykit.loaded_model import Loaded
from tinykit.tokenizer import Message

_WHICH = "Which option fits best?"  # asked of a judge if there is no other question
_YES_NO = ("No", "Yes")  # as a language model would write them, in the order of a judge's options
_NOTHING = "N/A"  # what stands for the text in a prompt without content (Zhao et al. 2021, section 5)


@dataclass(frozen=True)
class How:
    """How a language model's likelihoods become scores."""

    normalize: Normalize
    calibrate: bool | str

    def __post_init__(self) -> None:
        if not isinstance(self.calibrate, bool):
            _check_text(self.calibrate, "calibrate")

    def without_content(self) -> list[str]:
        """What stands for the text in the prompt to calibrate with; nothing if that is not wanted."""
        if isinstance(self.calibrate, str):
            return [self.calibrate]
        return [_NOTHING] if self.calibrate else []

    def check_judge(self) -> None:
        """Refuse what a judge model has no use for."""
        if self != How("tokens", False):
            raise OptionError(
                "A judge model's probabilities are what it was trained to give: they are neither normalized "
                "nor calibrated.",
                hint="Leave out normalize and calibrate.",
                name="normalize" if self.calibrate is False else "calibrate",
                value=self.normalize if self.calibrate is False else self.calibrate,
            )


@dataclass(frozen=True)
class Options:
    """Options to score. A judge reads the question and the state; a language model the first of the prompts,
    with `texts` as its answers, and the second one to calibrate with, if there is one.
    """

    question: Question
    state: str
    system: str
    prompts: Sequence[str]
    texts: Sequence[str]
    how: How


Scores = tuple[list[float], tuple[tuple[float, ...], ...]]


class Choosing(ABC):
    """The part of `TinySession` that chooses, with a judge model or any other behind it."""

    @abstractmethod
    def _chooser(self) -> Loaded:
        """The model that chooses; it is loaded first."""

    @names_options
    def choose(
        self,
        prompt: str,
        options: Sequence[str] | Mapping[str, str | None],
        *,
        system: str | None = None,
        normalize: Normalize = "tokens",
        calibrate: bool | str = False,
    ) -> Choice:
        """The option that fits best, with a probability for each.

        A language model gets the prompt as a message; the options' log-likelihoods as its answer are what the
        probabilities are made of. Name the options in the prompt or in `system`, as in "Is this a bug report
        or a question?". A judge model gets `system` as its question and the prompt as what it is about.

        Args:
            prompt: What to choose for.
            options: 2 to 20 labels, or a mapping from labels to rubrics that say when the label fits.
            system: An instruction.
            normalize: What a log-likelihood is divided by: the number of its ``tokens`` or ``bytes``, or
                ``none``. For language models only.
            calibrate: True takes away what each option gets for the prompt ``N/A``, which is to say how often
                the model would say it anyhow; text does the same with this prompt. For language models only.

        Raises:
            OptionError: an argument that cannot be used.
            PromptTooLongError: prompt and option do not fit the model's context. A judge cuts the prompt.
            KeyboardInterrupt: Ctrl-C; without a `partial`, as some options' scores decide nothing.
        """
        _check_text(prompt, "prompt")
        _check_text_or_none(system, "system")
        instruction = system.strip() if system else ""
        question = ChoiceQuestion(instruction or _WHICH, options)
        how = How(checked_normalize(normalize), calibrate)
        prompts = [text + _rubrics(question) for text in (prompt, *how.without_content())]
        texts = [label.strip() for label in question.labels]
        return question.answer(*self._scores(Options(question, prompt, instruction, prompts, texts, how)))

    @names_options
    def yes_no(self, question: str, context: str | None = None, *, calibrate: bool | str = False) -> YesNo:
        """How likely the answer to a question is yes.

        Args:
            question: For instance "Is this urgent?".
            context: What the question is about, if it does not say it itself.
            calibrate: True takes away what yes and no get for the context ``N/A``; text does the same with
                this context. For language models only.

        Raises: as `choose`.
        """
        _check_text_or_none(context, "context")
        asked, how = YesNoQuestion(question), How("tokens", calibrate)
        prompts = _about(f"{question} Answer yes or no.", context, how)
        return asked.answer(self._scores(Options(asked, context or "", "", prompts, _YES_NO, how))[0])

    @names_options
    def score(
        self,
        question: str,
        levels: Sequence[str],
        context: str | None = None,
        *,
        calibrate: bool | str = False,
    ) -> Score:
        """Where on a scale something is: the expectation over the levels, from 0 to their count less 1.

        Args:
            question: For instance "How satisfied is the customer?".
            levels: 2 to 20 descriptions, from the lowest to the highest.
            context: What the question is about, if it does not say it itself.
            calibrate: As for `yes_no`.

        Raises: as `choose`.
        """
        _check_text_or_none(context, "context")
        asked, how = ScoreQuestion(question, levels), How("tokens", calibrate)
        texts = [level.strip() for level in levels]
        prompts = _about(f"{question}\nOptions: {', '.join(texts)}", context, how)
        return asked.answer(self._scores(Options(asked, context or "", "", prompts, texts, how))[0])

    @names_options
    def judge(self, state: object, questions: Mapping[str, Question]) -> dict[str, Answer]:
        """A judge model's answers to several questions about one state, by the questions' names.

        Args:
            state: What the questions are about: text, or what JSON can hold. It is cut where it is too long.
            questions: `ChoiceQuestion`, `YesNoQuestion` and `ScoreQuestion` by names of your choice.

        Raises:
            OptionError: there is no question, or the session's model is no judge.
        """
        if not isinstance(questions, Mapping) or not questions:
            raise OptionError(
                f"questions must be a mapping with at least one question, not {questions!r:.80}.",
                hint='For example: {"urgent": YesNoQuestion("Is this urgent?")}',
                name="questions",
                value=questions,
            )
        for name, question in questions.items():
            if not isinstance(question, Question):
                raise OptionError(
                    f"The question {name!r} must be a ChoiceQuestion, YesNoQuestion or ScoreQuestion, "
                    f"not {question!r:.80}.",
                    hint='For example: YesNoQuestion("Is this urgent?")',
                    name="questions",
                    value=question,
                )
        return self._judged(state, questions)

    def _scores(self, options: Options) -> Scores:
        try:
            return option_scores(self._chooser(), options)
        except KeyboardInterrupt as error:
            shorten(error)
            raise

    def _judged(self, state: object, questions: Mapping[str, Question]) -> dict[str, Answer]:
        try:
            return self._chooser().judge.answer(state, questions)
        except KeyboardInterrupt as error:
            shorten(error)
            raise


def _check_text(value: object, name: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise _no_text(value, name, "text that is not empty")


def _check_text_or_none(value: object, name: str) -> None:
    if not isinstance(value, str | None):
        raise _no_text(value, name, "text")


def _no_text(value: object, name: str, wanted: str) -> OptionError:
    return OptionError(
        f"{name} must be {wanted}, not {value!r:.80}.",
        hint="Put the text that matters here, or leave the argument out.",
        name=name,
        value=value,
    )


def _rubrics(question: ChoiceQuestion) -> str:
    """The options with what they mean, for a language model, which sees only their labels otherwise."""
    is_explained = isinstance(question.options, Mapping) and any(question.options.values())
    return "\n\n" + "\n".join(f"- {text}" for text in question.texts) if is_explained else ""


def _about(question: str, context: str | None, how: How) -> list[str]:
    """The prompt of a question about a context, and that without content."""
    has_context = context is not None and bool(context.strip())
    contexts = [context if has_context else "", *how.without_content()]
    return [f"{text}\n\n{question}" if text else question for text in contexts]


def option_scores(model: Loaded, options: Options, *, watcher: Watcher | None = None) -> Scores:
    """A judge's logits, or a language model's scores and log-probabilities: one for each option.

    Raises:
        ForwardInterrupted: it was cancelled, or `watcher` waits no longer.
    """
    if model.is_judge:
        options.how.check_judge()
        return model.judge.logits(options.state, [options.question], watcher=watcher)[0], ()
    asked = [
        _continuations(model.engine, options.system, prompt, options.texts) for prompt in options.prompts
    ]
    return scores_of(
        model.engine,
        asked[0],
        options.texts,
        normalize=options.how.normalize,
        calibration=asked[1] if asked[1:] else None,
        watcher=watcher,
    )


def _continuations(engine: Engine, system: str, prompt: str, texts: Sequence[str]) -> Continuations:
    first = [Message("system", system)] if system else []
    turns = [*first, Message("user", prompt)]
    return chat_continuations(engine.tokenizer, turns, texts, end_id=engine.tokenizer.turn_end_id())
