"""What titles cost: time and tokens. Only times that are one title's own count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinykit.lab.datasets import Case

if TYPE_CHECKING:
    from tinykit.lab.rows import Row
    from tinykit.recipes import Recipe


def latency_s(case: Case, row: Row, recipe: Recipe) -> float | None:
    """Seconds from the message to the title, where a model was asked and nothing else went on.

    Rows of batches have none: run with ``batch_size=1``.
    """
    return row.elapsed_s if row.asked_model and not row.contended else None


def first_token_s(case: Case, row: Row, recipe: Recipe) -> float | None:
    """Seconds from the message to the first token, where nothing else went on."""
    return None if row.contended else row.ttft_s


def prompt_tokens(case: Case, row: Row, recipe: Recipe) -> float | None:
    """Tokens of the prompt."""
    return float(row.prompt_tokens) if row.asked_model else None


def completion_tokens(case: Case, row: Row, recipe: Recipe) -> float | None:
    """Tokens that were generated, for all answers that were looked at."""
    return float(row.completion_tokens) if row.asked_model else None


def model_asked(case: Case, row: Row, recipe: Recipe) -> float:
    """Whether a model was asked; not for greetings, and for some recipes not for other languages."""
    return float(row.asked_model)
