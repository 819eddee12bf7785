"""TAB behind a magic: its options, and the models, devices, recipes and commands that they take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from tinykit.magics.commands import COMMANDS
from tinykit.magics.options import Option, options_of

_MAGIC = re.compile(r"(?:^|=)\s*%{1,2}(title|tiny_eval|tiny)(?=\s)(.*)$", re.DOTALL)


def candidates(before: str) -> list[str] | None:
    """What may stand at the end of a line; None where no magic of ours begins it.

    Args:
        before: The line up to the cursor.
    """
    match = _MAGIC.search(before)
    if match is None:
        return None
    magic, line = match[1], match[2]
    words = line.split()
    token = "" if line[-1:].isspace() or not words else words.pop()
    command = words[0] if magic == "tiny" and words and words[0] in COMMANDS else None
    known = options_of("tiny command" if command else magic)
    flags = {flag: option for option in known for flag in option.flags}
    if words and words[-1] in flags and flags[words[-1]].metavar:
        return _starting(_values(flags[words[-1]].name), token)
    if token.startswith("-") or (token == "" and not command and _only_options(words, flags)):
        found = list(flags)
        return _starting(found + (list(COMMANDS) if magic == "tiny" and not words else []), token)
    if command and len(words) == 1 and COMMANDS[command].metavar:
        return _starting(_values(COMMANDS[command].metavar.lower()), token)
    if magic == "tiny" and not words:
        return _starting(COMMANDS, token)
    return []


def _only_options(words: list[str], flags: dict[str, Option]) -> bool:
    """Whether nothing but options stands there so far."""
    is_value = False
    for word in words:
        if not is_value and word not in flags:
            return False
        is_value = not is_value and bool(flags[word].metavar)
    return not is_value


def _starting(words: Iterable[str], token: str) -> list[str]:
    return [word for word in words if word.startswith(token)]


def _values(name: str) -> list[str]:
    return _VALUES[name]() if name in _VALUES else []


def _models() -> list[str]:
    from tinykit.registry import known_models

    return list(known_models())


def _recipes() -> list[str]:
    from tinykit.recipes import RECIPES

    return list(RECIPES)


def _devices() -> list[str]:
    from tinykit.devices import DEVICES

    return ["auto", "gpu", *DEVICES]


def _dtypes() -> list[str]:
    from tinykit.model_spec import DTYPES

    return list(DTYPES)


_VALUES: dict[str, Callable[[], list[str]]] = {
    "model": _models,
    "recipe": _recipes,
    "device": _devices,
    "dtype": _dtypes,
}


def matcher() -> Callable[[Any], Any]:
    """What IPython asks for completions."""
    from IPython.core.completer import SimpleCompletion, context_matcher

    @context_matcher()  # type: ignore[untyped-decorator]
    def tinykit_matcher(context: Any) -> Any:
        found = candidates(context.text_until_cursor)
        if found is None:
            return {"completions": []}
        # IPython replaces its token, which may be shorter than the word
        word = context.text_until_cursor.split()[-1] if context.token else ""
        cut = len(word) - len(context.token) if word.endswith(context.token) else 0
        completions = [SimpleCompletion(text=text[cut:], type="param") for text in found]
        return {"completions": completions, "suppress": bool(completions), "ordered": True}

    found: Callable[[Any], Any] = tinykit_matcher
    return found
