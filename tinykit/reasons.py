"""Why a title is what it is: a closed list of reasons, and the steps that name them."""

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """What happened to a title on its way; `explanation` says it in a sentence."""

    NO_TASK = "no_task"
    NO_TEXT = "no_text"
    NO_TITLE = "no_title"
    EMPTY = "empty"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    FAILED = "failed"
    CUT_OFF = "cut_off"
    THINK_LEAK = "think_leak"
    BUDGET_SPENT_THINKING = "budget_spent_thinking"
    JSON = "json"
    TAGS = "tags"
    MULTILINE = "multiline"
    LABEL = "label"
    MARKUP = "markup"
    QUOTES = "quotes"
    PUNCTUATION = "punctuation"
    CONTROL = "control"
    SPACES = "spaces"
    CASING = "casing"
    REFUSED = "refused"
    ANSWERS_INSTEAD = "answers_instead"
    TOO_LONG = "too_long"
    TOO_SHORT = "too_short"
    WRONG_SCRIPT = "wrong_script"
    COPIES_FIRST_MESSAGE = "copies_first_message"
    COPIES_PROMPT_EXAMPLE = "copies_prompt_example"
    INVENTED = "invented"
    UNRELATED = "unrelated"
    REPEATED = "repeated"
    FALLBACK = "fallback"
    LANGUAGE = "language"

    @property
    def explanation(self) -> str:
        """One sentence about this reason."""
        return _EXPLANATIONS[self]


_EXPLANATIONS = {
    Reason.NO_TASK: "The message is a greeting, thanks or a test, so no title was asked for.",
    Reason.NO_TEXT: "The message has no visible character, so there is nothing to title.",
    Reason.NO_TITLE: "The model answered that the message needs no title.",
    Reason.EMPTY: "No letter or digit was left.",
    Reason.FAILED: "The title could not be asked for.",
    Reason.CANCELLED: "The generation was stopped before the title was complete.",
    Reason.TIMEOUT: "The time was up before the model had done all that it should.",
    Reason.CUT_OFF: "The token limit was reached before the title was closed.",
    Reason.THINK_LEAK: "The reply held the model's thinking.",
    Reason.BUDGET_SPENT_THINKING: "The reply was still thinking when it ended.",
    Reason.JSON: "The reply was JSON.",
    Reason.TAGS: "The reply held tags or template tokens.",
    Reason.MULTILINE: "The reply had more than one line; the first one counts.",
    Reason.LABEL: "The title came with a label or a lead-in.",
    Reason.MARKUP: "The title was wrapped in Markdown or HTML.",
    Reason.QUOTES: "The title was wrapped in quotation marks.",
    Reason.PUNCTUATION: "A title ends without punctuation.",
    Reason.CONTROL: "The reply held control or broken characters.",
    Reason.SPACES: "White space was collapsed.",
    Reason.CASING: "Words were spelled as in the message.",
    Reason.REFUSED: "The model refused.",
    Reason.ANSWERS_INSTEAD: "The reply answers the message and does not name it.",
    Reason.TOO_LONG: "The reply is longer than a title may be.",
    Reason.TOO_SHORT: "The title has fewer words than it should.",
    Reason.WRONG_SCRIPT: "The title is in a script that the message does not use.",
    Reason.COPIES_FIRST_MESSAGE: "The title repeats the beginning of a longer message.",
    Reason.COPIES_PROMPT_EXAMPLE: "The title is an example from the prompt.",
    Reason.INVENTED: "The title holds a number, a name or an identifier that is not in the message.",
    Reason.UNRELATED: "The title shares no word with the message.",
    Reason.LANGUAGE: "The model titles English only; the message's first words stand in.",
    Reason.FALLBACK: "No answer of the model passed the checks; the message's first words stand in.",
    Reason.REPEATED: "The title says the same words twice.",
}


@dataclass(frozen=True)
class Step:
    """One thing that was done to a text. It holds private text: to be shown, not to be logged.

    Attributes:
        reason: Why.
        before: The text before, None where there was none to speak of.
        after: The text after; None if it was rejected, equal to `before` if this is only a remark.
    """

    reason: Reason
    before: str | None = None
    after: str | None = None

    def __str__(self) -> str:
        if self.after is None:
            return f"{self.reason}: {self.reason.explanation} No title."
        if self.after == self.before:
            return f"{self.reason}: {self.reason.explanation}"
        return f"{self.reason}: {self.before!r} became {self.after!r}."


def explain(why: tuple[Step, ...]) -> str:
    """The steps as numbered lines; one line that says so if nothing had to be done."""
    if not why:
        return "The reply was a title as it stood."
    return "\n".join(f"{number}. {step}" for number, step in enumerate(why, start=1))
