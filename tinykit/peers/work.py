"""What every engine is asked: the same prompts, in the same order, with the same stop rule.

Short: chat messages that make prompts of 80 to 150 tokens. Long: the first 2,000 characters of messages that
come with tinykit. Half of the messages of each kind are titled, of the others eight tokens are asked for; the
next round turns it around. So a process never sees a message twice, and of what an engine keeps only the
beginning that all prompts share can help it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MODEL: Final = "smollm2-135m"
STOP: Final = ("</",)  # the first sure sign of </title>; a title that has one itself is cut by all alike
MAX_TOKENS: Final = 20
FIXED_TOKENS: Final = 8
LONG_CHARS: Final = 2000
SYSTEM: Final = (
    "Write a ~5 word title using only the task described in the next user message.\n\n"
    "- You MUST ONLY answer with the title, inside the <title> tag.\n"
    "- If the message is only a greeting, answer `<title/>`.\n"
)
PREFILL: Final = "<title>"
FIRST: Final = "hello there, how do I cook rice that does not stick"  # what a new process is asked first
SHORT: Final = (
    "Fix the flaky login test in the CI pipeline, it times out on slow runners",
    "Can you help me write a SQL query that joins orders and customers and returns the top 10 by revenue?",
    "The dashboard crashes when I click export to PDF on Safari, please investigate and fix",
    "I have a CSV file with 2 million rows of sensor readings. Each row has a timestamp, a sensor id and a "
    "value. I want to resample the readings to one minute averages per sensor, fill small gaps by "
    "interpolation, flag gaps longer than ten minutes, and write the result as parquet partitioned by day. "
    "Please use polars if possible and keep memory below 2 GB.",
    "why does my docker container exit with code 137",
    "Refactor the payment module so that the retry logic lives in one place and add unit tests for the "
    "exponential backoff",
    "Plan a three day trip to Lisbon with two kids, we like beaches and trains",
    "Explain the difference between a mutex and a semaphore with an example in Rust",
    "My postgres query is slow: SELECT * FROM events WHERE user_id = 42 ORDER BY created_at DESC LIMIT 50; "
    "the table has 400M rows and an index on user_id only. What index should I add?",
    "Translate our onboarding email to German and make it sound less formal",
    "How do I merge two branches in git without losing the history of either?",
    "Draft an email to my landlord about the heating that has been broken since Monday",
    "My React component re-renders on every keystroke, how do I memoize it?",
    "Compare the pros and cons of electric and hybrid cars for somebody who drives in a city",
    "Write unit tests for the date parser, it has to handle leap years and two digit years",
    "Summarize this report about ocean acidification for a high school class, it has forty pages and many "
    "tables, and leave out the chapter on methods",
    "The API returns 502 every morning at 6am UTC, find out why",
    "Suggest a vegetarian dinner menu for eight guests, two of them cannot eat nuts",
    "Convert this bash script to PowerShell and add logging to every step",
    "I want to learn the cello at forty, how much should I practice each week and which books are good?",
)

Length = Literal["short", "long"]
Mode = Literal["nat", "fix8"]
LENGTHS: Final[tuple[Length, ...]] = ("short", "long")
MODES: Final[tuple[Mode, ...]] = ("nat", "fix8")


@dataclass(frozen=True)
class Ask:
    """What a process is asked to title.

    Attributes:
        messages: The users' messages; `prompt_text` is what is fed of each.
        max_tokens: New tokens at most.
        stop: Texts that end a title; none of them: all tokens, whatever they are.
        batch: How many at once.
    """

    messages: tuple[str, ...]
    max_tokens: int = MAX_TOKENS
    stop: tuple[str, ...] = STOP
    batch: int = 1

    @classmethod
    def of(cls, messages: tuple[str, ...], mode: Mode) -> Ask:
        """Titles (`nat`) or eight tokens without any stop (`fix8`)."""
        return cls(messages) if mode == "nat" else cls(messages, FIXED_TOKENS, ())


def prompt_text(message: str) -> str:
    """The prompt as the model's chat template makes it."""
    return (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{message}<|im_end|>\n"
        f"<|im_start|>assistant\n{PREFILL}"
    )


def long_messages(count: int) -> tuple[str, ...]:
    """Messages that come with tinykit, evenly picked."""
    found = _dev_messages()
    step = max(1, len(found) // count)
    return tuple(message[:LONG_CHARS] for message in found[::step][:count])


def batch_messages(count: int) -> tuple[str, ...]:
    """Different messages for titles by the dozen: the shorter ones, as chats have them."""
    found = sorted(_dev_messages(), key=len)
    return tuple(message[:LONG_CHARS] for message in found[:count])


def half(messages: tuple[str, ...], mode: Mode, number: int) -> tuple[int, ...]:
    """The messages, by index, that are asked for in this way in round `number`."""
    return tuple(range((MODES.index(mode) + number) % 2, len(messages), 2))


def _dev_messages() -> list[str]:
    from tinykit.lab import datasets
    from tinykit.titles import has_task

    messages = [case.message for case in datasets.titles()]
    return [message for message in messages if has_task(message) and "<|" not in message]
