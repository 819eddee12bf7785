"""The options of the magics: one table, one typed object, errors with the nearest name.

Options come first; what follows them is text, word for word. `--` ends them.
"""

from __future__ import annotations

import difflib
import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tinykit.errors import OptionError
from tinykit.magics.interpolation import value_of

_TOKEN = re.compile(r"\s*((?:\{\{.*?\}\}|\"[^\"]*\"|'[^']*'|\S)+)", re.DOTALL)
_FLAG = re.compile(r"--?[A-Za-z]")


@dataclass(frozen=True)
class MagicOptions:
    """What a magic was told.

    Attributes:
        model: A key, a hub id, a file or a folder.
        device: Where to compute.
        dtype: Precision of the weights.
        recipe: How to title: a name, a file or a `Recipe`; names with commas for several.
        system: Text to put before a prompt.
        chat: Name of the list of messages to go on with.
        max_tokens: New tokens at most.
        temperature: How much chance there is.
        seed: Of the draws.
        timeout_s: Seconds after which what there is counts.
        schema: A JSON schema, a pydantic model, or a file that holds a schema.
        keep: Folder to keep a run in.
        no_cache: Make anew what an earlier run has made.
        why: Also show how a title came about.
        stats: Also show tokens and seconds.
        output: Name to assign the result to; it is not shown then.
        show: Show it all the same.
        help: Show the options instead.
    """

    model: Any = None
    device: str | None = None
    dtype: str | None = None
    recipe: Any = None
    system: str | None = None
    chat: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    timeout_s: float | None = None
    schema: Any = None
    keep: str | None = None
    no_cache: bool = False
    why: bool = False
    stats: bool = False
    output: str | None = None
    show: bool = False
    help: bool = False

    @property
    def is_quiet(self) -> bool:
        """Whether the result is only assigned."""
        return self.output is not None and not self.show

    def given(self, *names: str) -> dict[str, Any]:
        """Those of the named options that were given, ready for a call of a session."""
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Option:
    """One option: the field that it sets, its spellings, the value's name (empty for a switch)."""

    name: str
    flags: tuple[str, ...]
    metavar: str
    help: str
    magics: frozenset[str]


_TITLE, _TINY, _EVAL, _COMMAND = "title", "tiny", "tiny_eval", "tiny command"
_ALL = (_TITLE, _TINY, _EVAL)


def _option(name: str, flags: str, metavar: str, text: str, *magics: str) -> Option:
    return Option(name, tuple(flags.split()), metavar, text, frozenset(magics or _ALL))


OPTIONS = (
    _option("model", "-m --model", "MODEL", "A key of '%tiny models', a hub id, a .gguf file or a folder."),
    _option("device", "-d --device", "DEVICE", "Where to compute.", *_ALL, _COMMAND),
    _option("dtype", "--dtype", "NAME", "Precision of the weights.", *_ALL, _COMMAND),
    _option(
        "recipe", "-r --recipe", "RECIPE", "How to make titles; %%tiny_eval takes several, with commas.",
        _TITLE, _EVAL, _COMMAND,
    ),
    _option("system", "--system", "TEXT", "Text to put before the prompt.", _TINY),
    _option("chat", "--chat", "NAME", "Go on with the list of messages of this name, or begin it.", _TINY),
    _option("max_tokens", "--max-tokens", "N", "New tokens at most.", _TINY),
    _option("temperature", "--temperature", "T", "Draw the tokens; 0 takes the likeliest.", _TINY),
    _option("seed", "--seed", "N", "Of the draws, for the same answer again.", _TINY),
    _option(
        "timeout_s", "--timeout", "SECONDS", "Take what there is by then; one time for all of many.",
        _TITLE, _TINY,
    ),
    _option("schema", "--schema", "SCHEMA", "A JSON file, or {{name}} of a schema or pydantic model.", _TINY),
    _option("keep", "--keep", "FOLDER", "Keep the run in this folder, for tinykit.lab.", _EVAL),
    _option("no_cache", "--no-cache", "", "Make titles anew that an earlier run has made.", _EVAL),
    _option("why", "--why", "", "Also show the steps from the reply to the title.", _TITLE),
    _option("stats", "--stats", "", "Also show tokens and seconds.", _TITLE, _TINY, _EVAL, _COMMAND),
    _option("output", "-o --output", "NAME", "Assign the result to NAME, and do not show it."),
    _option("show", "--show", "", "With -o: show it as well."),
    _option("help", "-h --help", "", "Show these options.", *_ALL, _COMMAND),
)  # fmt: skip


def options_of(magic: str) -> tuple[Option, ...]:
    """The options that a magic has."""
    return tuple(option for option in OPTIONS if magic in option.magics)


def parse(line: str, magic: str, names: Mapping[str, Any]) -> tuple[MagicOptions, str]:
    """The options at the beginning of a line, and the text behind them, untouched.

    Args:
        line: What stands behind the magic's name.
        magic: The magic's name, for the options that it has.
        names: Variables that an option's value may name as ``{{name}}``.

    Raises:
        OptionError: an unknown option, one that comes twice or lacks its value, or a wrong value.
    """
    found: dict[str, Any] = {}
    at = 0
    while match := _TOKEN.match(line, at):
        word = match[1]
        if word == "--":
            at = match.end()
            break
        if not _FLAG.match(word):
            break
        at = match.end()
        flag, has_value, text = word.partition("=")
        option = _find(flag, magic)
        if option.name in found:
            raise OptionError(f"{flag} is given twice.", name=option.name, value=text or flag)
        if not option.metavar:
            if has_value:
                raise OptionError(f"{flag} takes no value, got {text!r}.", name=option.name, value=text)
            found[option.name] = True
            continue
        if not has_value:
            match = _TOKEN.match(line, at)
            text, at = (match[1], match.end()) if match else ("", at)
        if not text or (not has_value and _FLAG.match(text)):
            raise OptionError(
                f"{flag} needs a value: {flag} {option.metavar}.", name=option.name, value=text or None
            )
        found[option.name] = _CONVERT.get(option.name, _text)(flag, value_of(_unquoted(text), names))
    options = MagicOptions(**found)
    if options.show and options.output is None:
        raise OptionError(
            "--show goes with -o NAME; without it the result is shown anyhow.", name="show", value=True
        )
    return options, line[at:].strip()


def _find(flag: str, magic: str) -> Option:
    here = options_of(magic)
    for option in here:
        if flag in option.flags:
            return option
    others = sorted({name for option in OPTIONS if flag in option.flags for name in option.magics})
    known = [name for option in here for name in option.flags]
    near = difflib.get_close_matches(flag, known, 1)
    if others:
        hint = f"It is an option of {', '.join('%' + name for name in others)}."
    else:
        hint = f"Did you mean {near[0]}?" if near else f"Known are {' '.join(known)}."
    raise OptionError(
        f"Unknown option {flag!r} of %{magic}.",
        hint=f"{hint} What follows -- is text.",
        name=flag,
        value=flag,
    )


def _unquoted(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


def _text(flag: str, value: Any) -> Any:
    if not isinstance(value, str) or not value.strip():
        raise OptionError(f"{flag} must be text, not {value!r:.80}.", name=flag, value=value)
    return value


def _as_is(flag: str, value: Any) -> Any:
    return value


def _model(flag: str, value: Any) -> Any:
    return value if isinstance(value, Path) else _text(flag, value)


def _number(kind: type[int] | type[float]) -> Callable[[str, Any], Any]:
    def converted(flag: str, value: Any) -> Any:
        if not isinstance(value, str):
            return value  # the session says what is wrong with it
        try:
            return kind(value)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise OptionError(f"{flag} must be {what}, not {value!r}.", name=flag, value=value) from None

    return converted


def _name(flag: str, value: Any) -> Any:
    if not isinstance(value, str) or not value.isidentifier() or keyword.iskeyword(value):
        raise OptionError(f"{flag} must be a name for a variable, not {value!r:.80}.", name=flag, value=value)
    return value


def _schema(flag: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"{flag} must be a file with a JSON schema, or {{{{name}}}} of one; {value!r} cannot be read.",
            name=flag,
            value=value,
        ) from error


_CONVERT: dict[str, Callable[[str, Any], Any]] = {
    "model": _model,
    "recipe": _as_is,
    "max_tokens": _number(int),
    "seed": _number(int),
    "temperature": _number(float),
    "timeout_s": _number(float),
    "output": _name,
    "chat": _name,
    "schema": _schema,
}

assert {option.name for option in OPTIONS} == {field.name for field in fields(MagicOptions)}


def help_text(magic: str, usage: str) -> str:
    """How a magic is used, and its options, one a line."""
    rows = [
        (" ".join((", ".join(option.flags), option.metavar)).strip(), option.help)
        for option in options_of(magic)
    ]
    width = max(len(left) for left, _ in rows)
    return "\n".join([usage, "", *(f"  {left.ljust(width)}  {right}" for left, right in rows)])


def table() -> str:
    """All options as a Markdown table, for the documentation."""
    lines = ["| option | of | what it does |", "|---|---|---|"]
    for option in OPTIONS:
        flags = ", ".join(f"`{flag}`" for flag in option.flags)
        value = f" {option.metavar}" if option.metavar else ""
        magics = " ".join(f"`{name}`" for name in _ALL if name in option.magics)
        lines.append(f"| {flags}{value} | {magics} | {option.help} |")
    return "\n".join(lines)
