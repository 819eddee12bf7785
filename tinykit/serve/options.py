"""What the body of a chat request may hold, and what it becomes of ours: one table, `PARAMETERS`.

What is not in the table is an error, and so is what we cannot do: nothing is ignored in silence. Null counts
as not given. The API: https://platform.openai.com/docs/api-reference/chat/create
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tinykit.call_options import generation_options
from tinykit.errors import OptionError

_MAX_TOKENS = 1024  # where none are given: the API has no default, so as many as we make
_MAX_N = 16
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True)
class ChatRequest:
    """A checked request: `options` are keywords of `TinySession.stream`, `names` what it called them."""

    model: str
    messages: list[dict[str, str]]
    options: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)
    n: int = 1
    stream: bool = False
    include_usage: bool = False

    def of_choice(self, index: int) -> dict[str, Any]:
        """The options of the choice `index`: a seed that was given counts up, as it does for `n` samples."""
        seed = self.options.get("seed")
        return self.options if seed is None else {**self.options, "seed": seed + index}


@dataclass(frozen=True)
class Parameter:
    """One name of the API.

    Attributes:
        name: In the body.
        does: What it does here, for the documentation.
        option: Our keyword, if it becomes one as it is or through `convert`.
        convert: Makes our value of theirs; raises OptionError.
        neutral: Of what we cannot do: values that ask for nothing, and are taken.
    """

    name: str
    does: str
    option: str | None = None
    convert: Callable[[Any], Any] = field(default=lambda value: value)
    neutral: tuple[Any, ...] | None = None


def _error(
    name: str, what: str, value: object, *, hint: str | None = None, code: str | None = None
) -> OptionError:
    facts = {"code": code} if code else {}
    return OptionError(what, hint=hint, name=name, value=value, **facts)


def _logit_bias(value: object) -> dict[int, Any]:
    if not isinstance(value, dict) or not all(
        key.isascii() and key.isdigit() and len(key) < 10 for key in value
    ):
        raise _error("logit_bias", f"logit_bias must map token ids to numbers, not {value!r}.", value)
    return {int(key): bias for key, bias in value.items()}


def _texts(name: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, str | list):
            raise _error(name, f"{name} must be text or a list of texts, not {value!r}.", value)
        return value

    return convert


def _text(name: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            raise _error(name, f"{name} must be text, not {value!r}.", value)
        return value

    return convert


def _schema(value: object) -> Any:
    """The JSON schema of a `response_format`; None for plain text."""
    name, kind = "response_format", value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in ("text", "json_object", "json_schema"):
        raise _error(
            name, f"{name} must have the type text, json_object or json_schema, not {value!r}.", value
        )
    wrapped = value.get("json_schema")
    extra = set(value) - {"type", *(["json_schema"] if kind == "json_schema" or wrapped is None else [])}
    if extra:
        raise _error(name, f"{name} of the type {kind} has no {sorted(extra)[0]!r}.", value)
    if kind != "json_schema":
        return None if kind == "text" else {"type": "object"}
    if not isinstance(wrapped, dict) or not isinstance(wrapped.get("schema"), dict):
        raise _error(
            name,
            f"{name} needs a json_schema with a schema that is an object, not {wrapped!r}.",
            value,
            hint='For example: {"type": "json_schema", "json_schema": {"name": "title", "schema": {…}}}',
        )
    if unknown := set(wrapped) - {"name", "description", "schema", "strict"}:
        raise _error(name, f"json_schema has no {sorted(unknown)[0]!r}.", value)
    return wrapped["schema"]


PARAMETERS: dict[str, Parameter] = {
    one.name: one
    for one in (
        Parameter("model", "needed; the one of `/v1/models`"),
        Parameter(
            "messages", "needed; roles `system`, `developer` (the same), `user`, `assistant`; text alone"
        ),
        Parameter("n", f"1 to {_MAX_N} answers; a `seed` counts up from one to the next"),
        Parameter("stream", "server-sent events"),
        Parameter("stream_options", "`include_usage`"),
        Parameter("max_completion_tokens", "as many as the model may make, and 1,024 at most", "max_tokens"),
        Parameter("max_tokens", "the same under its older name", "max_tokens"),
        Parameter("stop", "a text or a list of them", "stop", _texts("stop")),
        Parameter("temperature", "0 to 100; 0, the likeliest tokens, where none is given", "temperature"),
        Parameter("top_p", "0 to 1", "top_p"),
        Parameter("seed", "a whole number from 0", "seed"),
        Parameter("frequency_penalty", "-100 to 100", "frequency_penalty"),
        Parameter("logit_bias", "by token id of this model", "logit_bias", _logit_bias),
        Parameter("logprobs", "log-probabilities of the tokens said"),
        Parameter("top_logprobs", "0 to 20 alternatives beside them; needs `logprobs`", "logprobs"),
        Parameter(
            "response_format",
            "`text`, `json_object` or `json_schema`, enforced with `strict` and without",
            "schema",
            _schema,
        ),
        Parameter("top_k", "ours: only so many of the likeliest tokens", "top_k"),
        Parameter("min_p", "ours: only tokens with this part of the likeliest one's probability", "min_p"),
        Parameter("repeat_penalty", "ours: above 1, against tokens that were there before", "repeat_penalty"),
        Parameter("regex", "ours: what the whole answer matches", "regex", _text("regex")),
        Parameter("choices", "ours: the allowed answers", "choices", _texts("choices")),
        Parameter("lark", "ours: a grammar", "lark", _text("lark")),
        Parameter("gbnf", "ours: a grammar", "gbnf", _text("gbnf")),
        Parameter("presence_penalty", "not supported", neutral=(0,)),
        Parameter("tools", "not supported", neutral=([],)),
        Parameter("tool_choice", "not supported", neutral=("none", "auto")),
        Parameter("parallel_tool_calls", "not supported", neutral=(True, False)),
        Parameter("functions", "not supported", neutral=([],)),
        Parameter("function_call", "not supported", neutral=("none", "auto")),
        Parameter("modalities", "not supported", neutral=(["text"],)),
        Parameter("audio", "not supported", neutral=()),
        Parameter("prediction", "not supported", neutral=()),
        Parameter("reasoning_effort", "not supported", neutral=("none",)),
        Parameter("verbosity", "not supported", neutral=("medium",)),
        Parameter("web_search_options", "not supported", neutral=()),
        Parameter("store", "not supported: nothing is kept", neutral=(False,)),
        Parameter("metadata", "not supported: nothing is kept", neutral=({},)),
        Parameter("service_tier", "not supported", neutral=("auto", "default")),
        Parameter("user", "a label that changes no answer", convert=_text("user")),
        Parameter("safety_identifier", "a label that changes no answer", convert=_text("safety_identifier")),
        Parameter("prompt_cache_key", "a label that changes no answer", convert=_text("prompt_cache_key")),
    )
}


def table() -> str:
    """All parameters as a Markdown table, for the documentation."""
    rows = ["| parameter | what it does here |", "|---|---|"]
    for one in PARAMETERS.values():
        values = ", ".join(f"`{json.dumps(value)}`" for value in one.neutral or ())
        rows.append(f"| `{one.name}` | {one.does}{f'; taken: {values}' if values else ''} |")
    return "\n".join(rows)


def chat_request(body: object) -> ChatRequest:
    """The request that a parsed body asks for.

    Raises:
        OptionError: something is missing, unknown, not supported or out of range; its `name` is the API's.
    """
    if not isinstance(body, dict):
        raise OptionError(
            f"The body must be a JSON object, not {type(body).__name__}.", name=None, value=None
        )
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        _check_known(name, value)
    if not isinstance(given.get("model"), str):
        raise _error(
            "model", f"model must be the name of a model, not {given.get('model')!r}.", given.get("model")
        )
    streams = _switch(given, "stream")
    options = _options(given)
    names = {option: name for name in given if (option := PARAMETERS[name].option)}
    names = {**dict(zip(given, given, strict=True)), "json": "response_format", **names}
    try:
        generation_options(options)  # before the request waits for its turn
    except OptionError as error:
        name, value = names.get(error.name), error.value
        raise OptionError(error.message, hint=error.hint, name=name, value=value) from error
    return ChatRequest(
        model=given["model"],
        messages=_messages(given.get("messages")),
        options=options,
        names=names,
        n=_n(given.get("n", 1)),
        stream=streams,
        include_usage=_include_usage(given.get("stream_options"), streams),
    )


def _check_known(name: str, value: object) -> None:
    parameter = PARAMETERS.get(name)
    if parameter is None:
        near = difflib.get_close_matches(name[:100], PARAMETERS, 1)
        raise _error(
            name[:100],
            f"Unknown parameter {name[:100]!r}.",
            value,
            hint=f"Did you mean {near[0]}?" if near else None,
            code="unknown_parameter",
        )
    if parameter.neutral is not None and not any(_same(value, one) for one in parameter.neutral):
        raise _error(
            name,
            f"{name} is not supported, so it cannot be {value!r}.",
            value,
            hint="Leave it out.",
            code="unsupported_parameter",
        )


def _same(value: object, other: object) -> bool:
    """Equal, and a switch only to a switch: True is no 1."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    if "max_tokens" in given and "max_completion_tokens" in given:
        raise _error(
            "max_tokens",
            "max_tokens is the older name of max_completion_tokens; only one of them can be given.",
            given["max_tokens"],
        )
    options: dict[str, Any] = {"max_tokens": _MAX_TOKENS}
    for name, value in given.items():
        parameter = PARAMETERS[name]
        converted = parameter.convert(value)
        if parameter.option is not None and converted is not None:
            options[parameter.option] = converted
    has_logprobs = _switch(given, "logprobs")
    if "top_logprobs" in given and not has_logprobs:
        raise _error("top_logprobs", "top_logprobs needs logprobs, which is false.", given["top_logprobs"])
    if isinstance(given.get("top_logprobs"), bool):
        raise _error("top_logprobs", f"top_logprobs must be a number, not {given['top_logprobs']!r}.", None)
    if has_logprobs:
        options.setdefault("logprobs", 0)
    return options


def _switch(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise _error(name, f"{name} must be true or false, not {value!r}.", value)
    return value


def _n(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_N:
        raise _error("n", f"n must be a whole number from 1 to {_MAX_N}, not {value!r}.", value)
    return value


def _include_usage(value: object, streams: bool) -> bool:
    if value is None:
        return False
    name = "stream_options"
    if not streams:
        raise _error(name, f"{name} needs stream, which is false.", value)
    if not isinstance(value, dict):
        raise _error(name, f"{name} must be an object, not {value!r}.", value)
    for key, wish in value.items():
        if key not in ("include_usage", "include_obfuscation"):
            raise _error(name, f"{name} has no {key!r}.", value, code="unknown_parameter")
        if not isinstance(wish, bool | None):
            raise _error(name, f"{key} must be true or false, not {wish!r}.", value)
    if value.get("include_obfuscation"):
        raise _error(name, "include_obfuscation is not supported.", value, code="unsupported_parameter")
    return bool(value.get("include_usage"))


def _messages(value: object) -> list[dict[str, str]]:
    if not isinstance(value, list) or not value:
        raise _error(
            "messages",
            f"messages must be a list of role and content, not {value!r}.",
            value,
            hint='For example: [{"role": "user", "content": "Hello"}]',
        )
    return [_message(f"messages[{at}]", message) for at, message in enumerate(value)]


def _message(where: str, message: object) -> dict[str, str]:
    if not isinstance(message, dict):
        raise _error("messages", f"{where} must have a role and content, not {message!r}.", message)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise _error(
            "messages", f"The role of {where} must be one of {', '.join(_ROLES)}, not {role!r}.", role
        )
    for key, value in message.items():  # SDKs send back what they got, with null for all that there is not
        if key not in ("role", "content") and value not in (None, []):
            raise _error(
                "messages",
                f"{where} has {key!r}, which is not supported.",
                value,
                hint="Leave it out.",
                code="unsupported_parameter",
            )
    return {"role": _ROLES[role], "content": _content(where, message.get("content"))}


def _content(where: str, content: object) -> str:
    """The text of a message, which may come in parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise _error("messages", f"The content of {where} must be text, not {content!r}.", content)
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str) or set(part) - {"type", "text"}:
            kind = part.get("type") if isinstance(part, dict) else part
            raise _error(
                "messages",
                f"The content of {where} has a part that is not text: {kind!r}.",
                part,
                hint="Only text can be read.",
                code="unsupported_parameter",
            )
        texts.append(text)
    return "".join(texts)
