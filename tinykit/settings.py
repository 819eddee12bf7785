"""Settings: argument, then environment, then config file, then default.

`SETTINGS` is the only list of them. The variable of a setting is `TINYKIT_` and its name in capitals; the
key in the config file is its name. Everything is read at each use, so a change counts at once.
"""

from __future__ import annotations

import difflib
import math
import numbers
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tinykit.errors import OptionError

_FLAGS = {
    "1": True, "true": True, "yes": True, "on": True,
    "0": False, "false": False, "no": False, "off": False,
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One setting: what it may be and what it is for.

    Attributes:
        name: Key in the config file; the variable follows from it.
        type: `str`, `Path`, `int` or `bool`.
        default: Value if nobody says anything. For `home` the folder depends on the system.
        help: One sentence for the documentation.
        choices: The allowed words, if only some are.
        minimum: The smallest allowed number.
        maximum: Says the largest allowed number, which may depend on the machine.
        also: Variables of other programs that count as well, after our own.
        is_lenient: Whether odd numbers are mended instead of refused: brought into the range, or the default.
    """

    name: str
    type: type[str] | type[Path] | type[int] | type[bool]
    default: object
    help: str
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: Callable[[], int] | None = None
    also: tuple[str, ...] = ()
    is_lenient: bool = False

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return f"TINYKIT_{self.name.upper()}"

    @property
    def expects(self) -> str:
        """The valid values, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if self.type is bool:
            return "one of 1, 0, true, false, yes, no, on, off"
        if self.type is int:
            return "a whole number" if self.minimum is None else f"a whole number from {self.minimum}"
        return "a path" if self.type is Path else "a word"


def most_threads() -> int:
    """More threads than this are a mistake: four for each processor, and never fewer than 64."""
    return max(64, 4 * (os.cpu_count() or 1))


SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        Setting("home", Path, None, "Folder for models and caches; by default in the user's cache folder."),
        Setting("model", str, None, "Model to load when none is named."),
        Setting("recipe", str, None, "Recipe for titles when none is named."),
        Setting("device", str, None, "Where to compute: auto, gpu, cpu, or the name of another device."),
        Setting("backend", str, None, "What to compute with: auto, onnx, mlx, transformers, or your own."),
        Setting("fallback", bool, True, "Use the CPU, with a warning, where the device does not work."),
        Setting("dtype", str, None, "Precision of the weights, such as q8."),
        Setting(
            "threads", int, None, "Threads to compute with; by default the machine decides.",
            minimum=1, maximum=most_threads,
        ),
        Setting(
            "offline", bool, False, "Never use the network; HF_HUB_OFFLINE counts as well.",
            also=("HF_HUB_OFFLINE",),
        ),
        Setting(
            "progress", str, "auto", "How to show slow work: a bar, plain lines, or not at all.",
            choices=("auto", "off", "plain"),
        ),
        Setting(
            "cache_bytes", int, 256 * 2**20, "Memory for what is kept of prompts and in slots, in bytes.",
            minimum=0,
        ),
        Setting(
            "keep_prefixes", bool, True,
            "Keep the computed beginning of a recipe's prompts beside the model, for the next process.",
        ),
        Setting(
            "tokens_per_step", int, 32, "Most tokens in one piece of a stream; more than 512 count as 512.",
            minimum=1, maximum=lambda: 512, is_lenient=True,
        ),
        Setting(
            "worker_idle_s", int, 900, "Seconds without a request after which a shared worker ends.",
            minimum=1,
        ),
        Setting(
            "worker_dir", Path, None,
            "Folder for the workers' sockets; by default in the user's runtime folder.",
        ),
        Setting(
            "stable", bool, None,
            "Each output of a notebook at once, without progress; by default where pytest runs the kernel.",
        ),
    )
}  # fmt: skip

_CONFIG = Setting("config", Path, None, "The file that these settings may stand in as well.")


CONFIG_TABLES = ("models",)  # what the config file may hold besides settings


def get(name: str, argument: object = None) -> Any:
    """The value of a setting: the argument unless it is None, else what the user set, else the default.

    Raises:
        OptionError: The value is not allowed. The message names where it came from and what is valid.
    """
    setting = SETTINGS[name]
    if argument is not None:
        return _checked(setting, argument, f"The argument {name}")
    for where, value in _found(setting):
        if not _is_unset(setting, value):
            return _checked(setting, value, where)
    return _default(setting)


@contextmanager
def blaming(**arguments: object) -> Iterator[None]:
    """Let errors about these settings name the variable or file with the value, where no argument gave it.

    Raises:
        OptionError: The one that was raised within, in its own words.
    """
    try:
        yield
    except OptionError as error:
        name = getattr(error, "name", None)
        if name is None or arguments.get(name, name) is not None:  # not one of these, or from an argument
            raise
        where = origin(name)
        if where is None:
            raise
        message = f"{where} cannot be used. {error.message}"
        raise OptionError(message, hint=error.hint, name=name, value=error.value) from None


def origin(name: str) -> str | None:
    """What sets a setting, in words, such as `The variable TINYKIT_DEVICE`; None if only its default does.

    Raises:
        OptionError: the config file cannot be read, or has settings that are unknown.
    """
    setting = SETTINGS[name]
    return next((where for where, value in _found(setting) if not _is_unset(setting, value)), None)


def config_path() -> Path:
    """Where the config file is looked for; it need not exist."""
    given = os.environ.get("TINYKIT_CONFIG")
    if given:
        return Path(_checked(_CONFIG, given, f"The variable {_CONFIG.variable}"))
    import platformdirs

    return platformdirs.user_config_path("tinykit", appauthor=False) / "config.toml"


def config_table(name: str) -> dict[str, Any]:
    """A table of the config file that is not a setting, such as `[models]`; empty if it is not there.

    Raises:
        OptionError: The file cannot be read, or has something else under this name.
    """
    path = config_path()
    table = _read_config(path).get(name, {})
    if not isinstance(table, dict):
        raise OptionError(
            f"{name} in {path} is {table!r}, but must be tables such as [{name}.my-key]",
            name=name,
            value=table,
        )
    return table


def table() -> str:
    """All settings as a Markdown table, for the documentation."""
    lines = ["| variable | value | default | what it does |", "|---|---|---|---|"]
    for setting in SETTINGS.values():
        default = "" if setting.default is None else f"`{str(setting.default).lower()}`"
        lines.append(f"| `{setting.variable}` | {setting.expects} | {default} | {setting.help} |")
    return "\n".join(lines)


def _found(setting: Setting) -> Iterator[tuple[str, object]]:
    for variable in (setting.variable, *setting.also):
        if variable in os.environ:
            yield f"The variable {variable}", os.environ[variable]
    path = config_path()
    values = _read_config(path)
    if setting.name in values:
        yield f"{setting.name} in {path}", values[setting.name]


def _read_config(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as exc:
        raise _unreadable(path, exc) from exc
    import tomllib  # most people have no config file

    try:
        values = tomllib.loads(content.decode("utf-8"))
    except ValueError as exc:
        raise _unreadable(path, exc) from exc
    except RecursionError as exc:
        raise _unreadable(path, "its values are nested too deeply") from exc
    for key in values:
        if key not in SETTINGS and key not in CONFIG_TABLES:
            near = difflib.get_close_matches(key, SETTINGS, n=1)
            raise OptionError(
                f"The config file {path} has an unknown setting {key!r}",
                hint=f"Did you mean {near[0]!r}?" if near else f"Known settings: {', '.join(SETTINGS)}",
                name=key,
                value=values[key],
            )
    return values


def _unreadable(path: Path, reason: object) -> OptionError:
    return OptionError(
        f"The config file {path} cannot be read: {reason}",
        hint="Mend the file, or delete it to get the defaults.",
        name="config",
        value=path,
    )


def _is_unset(setting: Setting, value: object) -> bool:
    if isinstance(value, str):
        return not value.strip() or (setting.type is not Path and value.strip().lower() == "default")
    return False


def _default(setting: Setting) -> Any:
    if setting.name == "home":
        import platformdirs

        return platformdirs.user_cache_path("tinykit", appauthor=False)
    return setting.default


def _checked(setting: Setting, value: object, where: str) -> Any:
    try:
        return _converted(setting, value)
    except (ValueError, TypeError, RuntimeError) as exc:
        most = "" if setting.maximum is None else f" to {setting.maximum()}"
        raise OptionError(
            f"{where} is {value!r}, but must be {setting.expects}{most}",
            hint=_hint(setting, value, where, exc),
            name=setting.name,
            value=value,
        ) from exc


def _hint(setting: Setting, value: object, where: str, error: Exception) -> str | None:
    if isinstance(error, RuntimeError):  # "~name" without such a user
        return str(error)
    if not where.startswith("The argument"):
        return None
    odd = "True and False are no numbers; " if setting.type is int and isinstance(value, bool) else ""
    hint = f"{odd}leave it out to follow the variable {setting.variable} and the config file."
    return hint[0].upper() + hint[1:]


def _converted(setting: Setting, value: object) -> object:
    if setting.type is bool:
        return _flag(value)
    if setting.type is int:
        return (_mended_number if setting.is_lenient else _whole_number)(setting, value)
    if setting.type is Path:
        return _absolute_path(value)
    if not isinstance(value, str) or (setting.choices and value not in setting.choices):
        raise ValueError(value)
    return value


def _absolute_path(value: object) -> Path:
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ValueError(value)
    return Path(text).expanduser().absolute()


def _flag(value: object) -> bool:
    if isinstance(value, str) and value.strip().lower() in _FLAGS:
        return _FLAGS[value.strip().lower()]
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise ValueError(value)


def _mended_number(setting: Setting, value: object) -> object:
    """The whole number in the setting's range that is nearest; the default for what is no finite number."""
    if isinstance(value, str):
        digits = re.match(r"\s*[+-]?[0-9]+", value)
        value = float(digits[0]) if digits else math.nan
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(value)
    if value != value or abs(value) == math.inf:
        return setting.default
    number = int(cast(Any, value))
    if setting.maximum is not None:
        number = min(number, setting.maximum())
    return number if setting.minimum is None else max(number, setting.minimum)


def _whole_number(setting: Setting, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral | str):
        raise TypeError(value)
    number = int(value)
    if setting.minimum is not None and number < setting.minimum:
        raise ValueError(value)
    if setting.maximum is not None and number > setting.maximum():
        raise ValueError(value)
    return number
