"""Requests and results as plain values and back: the same classes with equal fields on both sides."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tinykit import errors
from tinykit.backends.base import BackendInfo, EncoderInfo
from tinykit.errors import TinykitError, WorkerError
from tinykit.events import ProgressEvent
from tinykit.generation.constraint import Constraint
from tinykit.generation.questions import ChoiceQuestion, Question, ScoreQuestion, YesNoQuestion
from tinykit.generation.request import Draft, GenerationOptions
from tinykit.generation.result import Chunk, Completion, Timings, Usage
from tinykit.generation.sampling import Sampling, TokenLogprob
from tinykit.model_spec import FileSource, HubSource, ModelSpec, WheelSource
from tinykit.reasons import Reason, Step
from tinykit.titling import Title

Values = dict[str, Any]

_QUESTIONS: dict[str, Any] = {"choice": ChoiceQuestion, "yes_no": YesNoQuestion, "score": ScoreQuestion}
_SOURCES: dict[str, Any] = {"wheel": WheelSource, "hub": HubSource, "file": FileSource}


def options_values(options: GenerationOptions) -> Values:
    """Generation options, without the pydantic class of a constraint, which stays where it is."""
    values = dataclasses.asdict(options)
    values["banned_first"] = sorted(options.banned_first)
    if isinstance(options.constraint, Constraint):
        values["constraint"] = {"kind": options.constraint.kind, "text": options.constraint.text}
    return values


def options_of(values: Mapping[str, Any]) -> GenerationOptions:
    """The options again.

    Raises:
        OptionError: a value cannot be used.
        TypeError, KeyError: they are no options.
    """
    fields = dict(values)
    sampling = dict(fields["sampling"])
    sampling["logit_bias"] = {int(token): float(bias) for token, bias in sampling["logit_bias"]}
    fields["sampling"] = Sampling(**sampling)
    fields["constraint"] = Constraint(**fields["constraint"]) if fields["constraint"] else None
    fields["draft"] = Draft(**fields["draft"]) if fields["draft"] else None
    fields["stop"] = tuple(fields["stop"])
    fields["banned_first"] = frozenset(fields["banned_first"])
    return GenerationOptions(**fields)


def chunk_values(chunk: Chunk) -> Values:
    """A piece of a stream; what has its usual value is left out."""
    values: Values = {"text": chunk.text, "token_ids": list(chunk.token_ids)}
    if chunk.logprobs:
        values["logprobs"] = _logprobs_values(chunk.logprobs)
    if chunk.drafted_tokens:
        values["drafted_tokens"] = chunk.drafted_tokens
        values["accepted_tokens"] = chunk.accepted_tokens
        values["correction_token_id"] = chunk.correction_token_id
    if chunk.is_last:
        values["is_last"] = True
    return values


def chunk_of(values: Mapping[str, Any]) -> Chunk:
    """The piece again."""
    fields = dict(values)
    text, token_ids = fields.pop("text"), fields.pop("token_ids")
    return Chunk(text, token_ids, logprobs=_logprobs_of(fields.pop("logprobs", ())), **fields)


def completion_values(completion: Completion) -> Values:
    """A completion without `parsed`, which is made of its text where the request came from."""
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "usage": dataclasses.asdict(completion.usage),
        "timings": dataclasses.asdict(completion.timings),
        "cancelled_by": completion.cancelled_by,
        "seed": completion.seed,
        "logprobs": _logprobs_values(completion.logprobs),
        "notes": list(completion.notes),
        "error": error_values(completion.error) if completion.error else None,
    }


def completion_of(values: Mapping[str, Any], constraint: object = None) -> Completion:
    """The completion again, with the object that it stands for under `constraint`."""
    fields = dict(values)
    notes = list(fields["notes"])
    parsed = None
    if fields["finish_reason"] == "stop" and isinstance(constraint, Constraint):
        unmet = [note for note in notes if note.startswith(UNMET)]
        try:
            parsed = constraint.parse(fields["text"])
        except (TinykitError, ValueError) as error:
            if not unmet:
                notes.append(f"{UNMET}{error}")
    return Completion(
        text=fields["text"],
        token_ids=tuple(fields["token_ids"]),
        finish_reason=fields["finish_reason"],
        usage=Usage(**fields["usage"]),
        timings=Timings(**fields["timings"]),
        cancelled_by=fields["cancelled_by"],
        seed=fields["seed"],
        logprobs=_logprobs_of(fields["logprobs"]),
        parsed=parsed,
        notes=tuple(notes),
        error=error_of(fields["error"]) if fields["error"] else None,
    )


UNMET = "The answer does not meet its constraint: "


def title_values(title: Title) -> Values:
    """A title with its steps and its completion."""
    return {
        "text": title.text,
        "raw": title.raw,
        "why": [[step.reason.value, step.before, step.after] for step in title.why],
        "recipe": title.recipe,
        "completion": completion_values(title.completion) if title.completion else None,
        "error": error_values(title.error) if title.error else None,
        "usage": dataclasses.asdict(title.usage) if title.usage else None,
    }


def title_of(values: Mapping[str, Any]) -> Title:
    """The title again."""
    return Title(
        text=values["text"],
        raw=values["raw"],
        why=tuple(Step(Reason(reason), before, after) for reason, before, after in values["why"]),
        recipe=values["recipe"],
        completion=completion_of(values["completion"]) if values["completion"] else None,
        error=error_of(values["error"]) if values["error"] else None,
        usage=Usage(**values["usage"]) if values["usage"] else None,
    )


def question_values(question: Question) -> Values:
    """A question of `choose`, `yes_no`, `score` or `judge`."""
    kind = next(name for name, one in _QUESTIONS.items() if isinstance(question, one))
    values = {field.name: getattr(question, field.name) for field in dataclasses.fields(question)}
    plain = {
        name: value if isinstance(value, str) or value is None else _plain(value)
        for name, value in values.items()
    }
    return {"kind": kind, **plain}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) else value


def question_of(values: Mapping[str, Any]) -> Question:
    """The question again.

    Raises:
        OptionError: it is none that can be asked.
    """
    fields = dict(values)
    return cast(Question, _QUESTIONS[fields.pop("kind")](**fields))


def spec_values(spec: ModelSpec) -> Values:
    """What is known about a model."""
    values = dataclasses.asdict(spec)
    values["sources"] = [
        {"kind": kind, **_paths_as_text(dataclasses.asdict(source))}
        for source in spec.sources
        for kind, one in _SOURCES.items()
        if isinstance(source, one)
    ]
    plain: Values = json.loads(json.dumps(_paths_as_text(values)))  # lists for tuples, as they arrive
    return plain


def spec_of(values: Mapping[str, Any]) -> ModelSpec:
    """The model's entry again."""
    fields = dict(values)
    sources = []
    for given in fields["sources"]:
        source = dict(given)
        kind = _SOURCES[source.pop("kind")]
        if kind is FileSource:
            source["path"] = Path(source["path"])
        if kind is HubSource:
            source["files"] = tuple(source["files"])
        sources.append(kind(**source))
    fields["sources"] = tuple(sources)
    fields["adapter"] = Path(fields["adapter"]) if fields["adapter"] else None
    fields["refusals"] = tuple((backend, why) for backend, why in fields["refusals"])
    return ModelSpec(**fields)


def _paths_as_text(values: Values) -> Values:
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def info_values(info: BackendInfo | EncoderInfo) -> Values:
    """What a model runs on."""
    return {"kind": type(info).__name__, **dataclasses.asdict(info)}


def info_of(values: Mapping[str, Any]) -> BackendInfo | EncoderInfo:
    """The same again."""
    fields = dict(values)
    kind: Any = BackendInfo if fields.pop("kind") == "BackendInfo" else EncoderInfo
    fields["providers"] = tuple(fields["providers"])
    return cast(BackendInfo | EncoderInfo, kind(**fields))


def event_values(event: ProgressEvent) -> Values:
    """A step of slow work; what is None is left out."""
    return {name: value for name, value in dataclasses.asdict(event).items() if value is not None}


def event_of(values: Mapping[str, Any]) -> ProgressEvent:
    """The event again."""
    fields = dict(values)
    if fields.get("files"):
        fields["files"] = {name: (loaded, total) for name, (loaded, total) in fields["files"].items()}
    return ProgressEvent(**fields)


def error_values(error: BaseException) -> Values:
    """An error's class by name, its text, its hint, and those of its facts that JSON can hold."""
    if not isinstance(error, TinykitError):
        text = " ".join(str(error).split())
        return {"type": "WorkerError", "message": f"The worker failed: {type(error).__name__}: {text}"}
    values: Values = {"type": type(error).__name__, "message": error.message}
    if error.hint:
        values["hint"] = error.hint
    facts = {name: fact for name, value in error.facts.items() if (fact := _fact(value)) is not None}
    notes = [note for note in getattr(error, "__notes__", ()) if note != error.hint]
    return {**values, "facts": facts, "notes": notes}


def _fact(value: object) -> object:
    """A value as JSON can hold it, None if it cannot."""
    if isinstance(value, Path):
        return {"path": str(value)}
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return repr(value)[:200]
    return value if len(text) <= 10_000 else repr(value)[:200]


def error_of(values: Mapping[str, Any]) -> TinykitError:
    """The error again, of its own class."""
    kind = _error_classes().get(str(values.get("type")), WorkerError)
    facts = {
        str(name): Path(fact["path"]) if isinstance(fact, dict) and set(fact) == {"path"} else fact
        for name, fact in dict(values.get("facts") or {}).items()
    }
    for name in ("message", "hint"):
        facts.pop(name, None)
    error = kind(str(values.get("message", "")), hint=values.get("hint"), **facts)
    for note in values.get("notes") or ():
        error.add_note(str(note))
    return error


def _error_classes() -> dict[str, type[TinykitError]]:
    return {
        name: one
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, TinykitError)
    }


def _logprobs_values(logprobs: Sequence[TokenLogprob]) -> list[Any]:
    return [[one.token_id, one.logprob, [list(pair) for pair in one.top]] for one in logprobs]


def _logprobs_of(values: Sequence[Any]) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(token_id, logprob, tuple((other, value) for other, value in top))
        for token_id, logprob, top in values
    )
