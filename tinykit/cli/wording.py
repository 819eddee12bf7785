"""What errors say, in the words of the command line.

The library's messages name arguments of Python (`timeout_s`, `dtype='auto'`) and calls (`run.freeze(…)`).
Whoever typed a command has options and commands instead: an argument that is an option of the command becomes
that option, one that only a setting has becomes its variable, and calls are replaced as `_CALLS` says.
"""

from __future__ import annotations

import re
import shlex

import click

from tinykit import settings
from tinykit.errors import TinykitError

_CALLS = (
    (r"lab\.run\(cases, out=\.\.\.\) makes", "'tinykit lab run CASES --out FOLDER' makes"),
    (r"run\.resume\(\) and run\.retry_failures\(\) make", "'tinykit lab run' with --retry makes"),
    (r"run\.freeze\(variant, folder\) writes", "'tinykit lab freeze RUN VARIANT --out FOLDER' writes"),
    (r"run\.scores\(\) has", "'tinykit lab score RUN' has"),
    (r"run\['([^']*)'\]", r"'RUN:\1'"),
    (r", or use lab\.Variant\([^)]*\)", ""),
    (r"Use choose\(\), yes_no\(\), score\(\) or judge\(\), or take", "Take"),
    (r"session\.clear_failures\(\) lets", "Starting this command again lets"),
)  # fmt: skip
_VALUE = r"""('[^']*'|"[^"]*"|\.\.\.|…|-?\w+(?:\.\w+)*)"""


def in_shell_words(
    error: TinykitError, command: click.Command, group: click.Command | None = None
) -> tuple[str, str | None]:
    """Message and hint of an error for whoever typed this command; others of its group lend their options."""
    message = _named(str(error), str(getattr(error, "name", None)), _options(command))
    others = group.commands.values() if isinstance(group, click.Group) else ()
    options = {name: option for one in (*others, command) for name, option in _options(one).items()}
    return _reworded(message, options), _reworded(error.hint, options) if error.hint else None


def command_of(arguments: list[str], root: click.Command) -> tuple[click.Command, click.Command | None]:
    """The command that these arguments begin with, and the group below the root that it is in."""
    command, group = root, None
    for word in arguments:
        if not isinstance(command, click.Group) or word not in command.commands:
            break
        group, command = None if command is root else command, command.commands[word]
    return command, group


def _options(command: click.Command) -> dict[str, click.Option]:
    """The options of a command by their names in Python, also by that of one where several can be given."""
    own = [one for one in command.params if isinstance(one, click.Option)]
    words = {_flag(one).removeprefix("--").replace("-", "_"): one for one in own}
    return {**words, **{str(one.name): one for one in own}}


def _flag(option: click.Option) -> str:
    return max(option.opts, key=len)


def _named(message: str, name: str, options: dict[str, click.Option]) -> str:
    """The message with the option in place of the argument that it begins with."""
    if name not in options:
        return message
    return re.sub(rf"^(The argument )?{re.escape(name)}(?= )", _flag(options[name]), message)


def _reworded(text: str, options: dict[str, click.Option]) -> str:
    for pattern, words in _CALLS:
        text = re.sub(pattern, words, text)
    text = re.sub(rf"(?<![\w.?&/-])([a-z]\w*)={_VALUE}", lambda found: _given(found, options), text)
    if long := "|".join(name for name in options if "_" in name):
        text = re.sub(rf"(?<![\w./=-])({long})(?![\w=(-]|\.\w)", lambda found: _flag(options[found[1]]), text)
    return text


def _given(found: re.Match[str], options: dict[str, click.Option]) -> str:
    """`name=value` as it is typed in a shell; as it is, if nothing there has this name."""
    name, value = found[1], found[2].strip("'\"")
    is_switch = value in ("True", "False")
    if name in options:
        flag = _flag(options[name])
        if is_switch:
            return flag if value == "True" else f"without {flag}"
        return f"{flag} {'…' if value in ('...', '…') else shlex.quote(value)}"
    if name in settings.SETTINGS and (is_switch or found[2] != value):
        variable = settings.SETTINGS[name].variable
        return f"{variable}={str(int(value == 'True')) if is_switch else shlex.quote(value)}"
    return found[0]
