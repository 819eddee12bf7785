"""One row of a run: a title with all that is known of how it was made."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

from tinykit.lab.plan import Cell

Status = Literal["title", "no title", "failed"]


@dataclass(frozen=True)
class Row:
    """A title, or the reason why there is none.

    Attributes:
        key: What makes a call the same call: model, its precision and device, prompt, code, message, repeat.
            Empty where the model could not even be loaded.
        case, variant, repeat: The cell that it belongs to.
        recipe, model, backend, device, dtype: What made it; the last four are empty without a model.
        status: ``title``, ``no title``, or ``failed``: `error` then says why.
        title, raw, why: As in `tinykit.Title`; `why` holds reason codes.
        elapsed_s: From taking the message to the title. In a batch, others were made in that time too.
        ttft_s, prefill_s, decode_s: As in the first answer's `Timings`; None if no model was asked.
        prompt_tokens, completion_tokens, kv_reused_tokens: Of all answers that were looked at.
        batch_size: Titles under way at once.
        threads: Threads of the model.
        contended: Whether other work of the run shared the processor, so the time is not one title's own.
        machine: Digest of the machine, to keep the times of several apart.
        at: When it was made, UTC.
        cached: Whether it was made by an earlier run; its times are those of that run.
    """

    key: str
    case: str
    variant: str
    repeat: int
    recipe: str
    status: Status
    title: str | None = None
    raw: str = ""
    why: tuple[str, ...] = ()
    error: str | None = None
    model: str = ""
    backend: str = ""
    device: str = ""
    dtype: str = ""
    elapsed_s: float | None = None
    ttft_s: float | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    kv_reused_tokens: int = 0
    batch_size: int = 1
    threads: int = 0
    contended: bool = False
    machine: str = ""
    at: str = ""
    cached: bool = False

    @property
    def cell(self) -> Cell:
        """Where it belongs."""
        return Cell(self.case, self.variant, self.repeat)

    @property
    def asked_model(self) -> bool:
        """Whether a model was asked for it."""
        return self.prefill_s is not None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, one column each."""
        return {**asdict(self), "why": list(self.why)}

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """A row from plain values; columns that this version does not know are left out.

        Raises:
            TypeError, KeyError, ValueError, AttributeError: it is no row.
        """
        known = {name: values[name] for name in _NAMES if name in values}
        row = cls(**{**known, "why": tuple(values.get("why", ()))})
        if not isinstance(row.case, str) or not isinstance(row.repeat, int) or not isinstance(row.key, str):
            raise ValueError("this is no row of a run")
        return row


_NAMES = [field.name for field in fields(Row)]
