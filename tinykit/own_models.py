"""Models that others add: tables `[models.key]` in the config file, and the entry points of packages.

A table of the config file names one source and any facts of a `ModelSpec`:

    [models.support-titles]
    repo = "my-company/support-titles-ONNX"    # or: path = "~/models/support-titles"
    revision = "v2"
    dtype = "q8"
    recipe = "titles"

A package adds models with an entry point of the group `tinykit.models`, which leads to a `ModelSpec`, to
several of them, or to a function that returns either.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from tinykit import settings
from tinykit.errors import OptionError
from tinykit.model_spec import FileSource, Group, HubSource, ModelSpec, Source, Task

GROUP = "tinykit.models"

_TEXTS = ("label", "family", "dtype", "license", "recipe", "chat_model", "description", "good_for")
_CHOICES = {"task": get_args(Task), "group": get_args(Group)}
_TYPES: dict[str, type] = {
    **dict.fromkeys((*_TEXTS, *_CHOICES, "repo", "mlx_repo", "revision", "path", "adapter"), str),
    "context_length": int,
    "thinking": bool,
}


def from_config() -> list[ModelSpec]:
    """The models of the user's config file.

    Raises:
        OptionError: A table cannot be understood; the message names the file, the table and the key.
    """
    tables = settings.config_table("models")
    return [_Table(key, table).spec() for key, table in tables.items()]


def from_packages() -> list[ModelSpec]:
    """The models of installed packages; a package that fails is warned about and left out."""
    from importlib.metadata import entry_points

    found: list[ModelSpec] = []
    for point in entry_points(group=GROUP):
        try:
            found += _specs(point.load())
        except Exception as exc:  # whatever a package's own code does
            warnings.warn(f"The models of {point.value} cannot be used: {exc!r}", stacklevel=2)
    return found


def _specs(given: object) -> list[ModelSpec]:
    value = given() if callable(given) else given
    specs = [value] if isinstance(value, ModelSpec) else list(cast("Iterable[object]", value))
    if not all(isinstance(spec, ModelSpec) for spec in specs):
        raise TypeError(f"expected ModelSpec, got {value!r}")
    return cast("list[ModelSpec]", specs)


@dataclass(frozen=True)
class _Table:
    """One table of the config file."""

    key: str
    values: object

    def spec(self) -> ModelSpec:
        values = self._checked()
        facts = {
            name: values[name]
            for name in (*_TEXTS, *_CHOICES, "context_length", "thinking")
            if name in values
        }
        if "adapter" in values:
            facts["adapter"] = self._path(values["adapter"])
        defaults = {"label": self.key, "family": "", "good_for": "your own"}
        return ModelSpec(key=self.key, sources=self._sources(values), **(defaults | facts))

    def _checked(self) -> dict[str, Any]:
        if not isinstance(self.values, dict):
            raise self._error(f"is {self.values!r}, but must be a table", self.values)
        for name, value in self.values.items():
            if name not in _TYPES:
                near = difflib.get_close_matches(name, _TYPES, n=1)
                hint = f"Did you mean {near[0]!r}?" if near else f"Known are: {', '.join(_TYPES)}"
                raise self._error(f"has an unknown entry {name!r}", value, hint)
            if type(value) is not _TYPES[name]:
                raise self._error(f"has {name} = {value!r}, but it must be a {_TYPES[name].__name__}", value)
            if name in _CHOICES and value not in _CHOICES[name]:
                raise self._error(f"has {name} = {value!r}; known are {', '.join(_CHOICES[name])}", value)
        return self.values

    def _sources(self, values: dict[str, Any]) -> tuple[Source, ...]:
        sources: list[Source] = []
        if "path" in values:
            sources.append(FileSource(self._path(values["path"])))
        if "repo" in values:
            sources.append(HubSource(values["repo"], values.get("revision")))
        if "mlx_repo" in values:
            sources.append(HubSource(values["mlx_repo"], backend="mlx"))
        if not sources:
            raise self._error(
                "names no source", None, "Give it a repo = 'owner/name' or a path = '/a/folder'."
            )
        return tuple(sources)

    def _path(self, text: str) -> Path:
        """A path of the file; a relative one counts from the file's folder."""
        return settings.config_path().parent / Path(text).expanduser()

    def _error(self, what: str, value: object, hint: str | None = None) -> OptionError:
        return OptionError(
            f"[models.{self.key}] in {settings.config_path()} {what}", hint=hint, name="models", value=value
        )
