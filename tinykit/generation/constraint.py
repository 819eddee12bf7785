"""What a text must look like: a regex, one of several choices, JSON, or a grammar."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from tinykit.errors import OptionError

ConstraintKind = Literal["regex", "choices", "json", "lark", "gbnf"]
# A grammar of this size compiles in seconds; beyond it the time is the user's, but the machine is not.
MAX_TEXT_CHARS = 200_000
_SHOWN_CHARS = 60


@dataclass(frozen=True)
class Constraint:
    """A form that generated text must have; made by the class methods.

    Attributes:
        kind: Which class method made it.
        text: The regex, the grammar, or the choices or the schema as JSON.
        model: The pydantic class that `parse` makes its objects of, if one was given.
    """

    kind: ConstraintKind
    text: str
    model: type[Any] | None = field(default=None)

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Text that matches all of `pattern`, in the syntax of Rust's regex crate.

        It is nearly that of `re`; look-around and back references do not exist, and ``&&``, ``--`` and ``~~``
        within brackets combine character classes. Syntax: https://docs.rs/regex/latest/regex/#syntax
        """
        return cls("regex", _checked("regex", pattern))

    @classmethod
    def choices(cls, choices: Iterable[str]) -> Self:
        """Exactly one of `choices`, in any order and of any length; one may begin like another.

        Raises:
            OptionError: There is none, or one is not text.
        """
        given = () if isinstance(choices, str) or not isinstance(choices, Iterable) else tuple(choices)
        if not given or not all(isinstance(choice, str) for choice in given):
            raise OptionError(
                f"choices must be a list of one or more texts, not {_shown(choices)}.",
                hint='For example: ["yes", "no"]',
                name="choices",
                value=choices,
            )
        return cls("choices", _checked("choices", _as_json("choices", list(dict.fromkeys(given)))))

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | type[Any] | str | os.PathLike[str]) -> Self:
        """JSON that fits `schema`: a JSON schema, its text, a `Path` to such a file, a pydantic class.

        The JSON is written as `json.dumps` writes it, keys in the schema's order. Numbers have at most 15
        digits before the point and 9 behind it, so that they end; a schema without ``type`` allows any.

        Raises:
            OptionError: It is none of these, or the file cannot be read.
        """
        model = None
        if isinstance(schema, os.PathLike):
            schema = _parsed_schema(_schema_text(schema), f"The schema in {os.fspath(schema)!s}")
        elif isinstance(schema, str):
            schema = _parsed_schema(schema)
        elif isinstance(schema, type) and hasattr(schema, "model_json_schema"):
            model, schema = schema, schema.model_json_schema()
        if not isinstance(schema, Mapping):
            raise OptionError(
                "A schema must be a JSON object, its text, a Path to it or a pydantic class, "
                f"not {_shown(schema)}.",
                hint='For example: {"type": "object", "properties": {"title": {"type": "string"}}}',
                name="schema",
                value=schema,
            )
        return cls("json", _checked("schema", _as_json("schema", dict(schema))), model)

    @classmethod
    def lark(cls, grammar: str) -> Self:
        """Text of a grammar in the Lark syntax of llguidance; its first rule is ``start``.

        Syntax: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
        """
        return cls("lark", _checked("lark", grammar))

    @classmethod
    def gbnf(cls, grammar: str) -> Self:
        """Text of a grammar in the syntax of llama.cpp; its first rule is ``root``.

        Syntax: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md
        """
        return cls("gbnf", _checked("gbnf", grammar))

    def parse(self, text: str) -> Any:
        """What the text says: an object for JSON, of the pydantic class if one was given; else the text.

        Raises:
            OptionError: The text is not complete, which is what too few tokens do to it.
        """
        if self.kind == "choices" and text not in json.loads(self.text):
            raise _incomplete("none of the choices", text)
        if self.kind != "json":
            return text
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _incomplete("not complete JSON", text) from error
        # validators of the class may refuse what its schema allows; their error is the user's own
        return value if self.model is None else self.model.model_validate_json(text)


def _incomplete(what: str, text: str) -> OptionError:
    return OptionError(
        f"The answer is {what}: it has {len(text)} characters and ends with {text[-_SHOWN_CHARS:]!r}.",
        hint="It was probably cut at max_tokens; allow more, or ask for less.",
        name="max_tokens",
        value=text,
    )


def _checked(name: str, text: object) -> str:
    """The text, if it is one that a grammar can be made of."""
    if not isinstance(text, str):
        raise OptionError(
            f"{name} must be text, not {_shown(text)}.",
            hint="Give the pattern or grammar as a str.",
            name=name,
            value=text,
        )
    if len(text) > MAX_TEXT_CHARS:
        raise OptionError(
            f"{name} has {len(text):,} characters, and {MAX_TEXT_CHARS:,} is the limit of a constraint.",
            hint="Ask for several answers with smaller constraints.",
            name=name,
            value=text,
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise OptionError(
            f"{name} has a half of a surrogate pair at character {error.start + 1}: {_shown(text)}.",
            hint="Drop it: text.encode(errors='ignore').decode()",
            name=name,
            value=text,
        ) from error
    return text


_THE_SCHEMA = "The schema"


def _schema_text(path: os.PathLike[str]) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, TypeError, ValueError, RuntimeError) as error:  # no UTF-8, a NUL, ~nobody
        reason = error.strerror if isinstance(error, OSError) else None
        raise OptionError(
            f"The schema {os.fspath(path)!s} cannot be read: {reason or error}.",
            hint=f"A relative path starts from {Path.cwd()}.",
            name="schema",
            value=path,
        ) from error


def _parsed_schema(text: str, what: str = _THE_SCHEMA) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "Give the schema as a dict or a pydantic class, or mend its text."
        if what != _THE_SCHEMA:
            hint = "Mend the file."
        elif text.endswith(".json") and "\n" not in text:
            hint = f"A file is given as a path: Path({text!r:.300})"
        raise OptionError(
            f"{what} is not valid JSON: {error}.",
            hint=hint,
            name="schema",
            value=text,
        ) from error


def _as_json(name: str, value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(
            f"{name} cannot be written as JSON: {error}.",
            hint="Use texts, finite numbers, booleans, None, lists and dicts alone.",
            name=name,
            value=value,
        ) from error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
