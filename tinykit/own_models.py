"""Models that others add: tables `[models.key]` in the config file, and the entry points of packages.

A table of the config file names one source and any facts of a `ModelSpec`:

    [models.support-titles]
    repo = "my-company/support-titles-ONNX"    # or: path = "~/models/support-titles"
    revision = "v2"
    dtype = "q8"
    recipe = "titles"

A table for a key that is known already changes that model: what it names takes the place of the known value,
the rest stays. A source takes the place of all sources, and of what was known about them.

    [models."lfm2.5-230m"]                     # a key with a dot needs quotes
    path = "/data/models/lfm2.5-230m"

A package adds models with an entry point of the group `tinykit.models`, which leads to a `ModelSpec`, to
several of them, or to a function that returns either.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast, get_args

from tinykit import settings
from tinykit.errors import OptionError
from tinykit.model_spec import (
    DTYPES,
    FileSource,
    Group,
    HubSource,
    ModelSpec,
    Source,
    Task,
    WheelSource,
    hub_source,
)

GROUP = "tinykit.models"

_TEXTS = ("label", "family", "dtype", "license", "recipe", "chat_model", "description", "good_for")
_CHOICES = {"task": get_args(Task), "group": get_args(Group), "dtype": DTYPES}
_FACTS = (*_TEXTS, "task", "group", "context_length", "thinking")
_REPOS = ("repo", "mlx_repo")
_TYPES: dict[str, type] = {
    **dict.fromkeys((*_TEXTS, *_CHOICES, *_REPOS, "revision", "path", "adapter"), str),
    "context_length": int,
    "thinking": bool,
}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def from_config(known: Mapping[str, ModelSpec]) -> list[ModelSpec]:
    """The models of the user's config file; those with a key of `known` are that model, changed.

    Raises:
        OptionError: A table cannot be understood; the message names the file, the table and the key.
    """
    tables = settings.config_table("models")
    return [_table(key, values).spec(known.get(key)) for key, values in tables.items()]


def changed(spec: ModelSpec) -> ModelSpec:
    """A known model as the config file changes it; no other table is looked at.

    Raises:
        OptionError: The table of this model cannot be understood.
    """
    tables = settings.config_table("models")
    return _table(spec.key, tables[spec.key]).spec(spec) if spec.key in tables else spec


def from_packages(known: Mapping[str, ModelSpec]) -> list[ModelSpec]:
    """The models of installed packages; a package that fails is warned about and left out."""
    from importlib.metadata import entry_points

    found: list[ModelSpec] = []
    for point in entry_points(group=GROUP):
        try:
            specs = _specs(point.load())
        except Exception as exc:  # whatever a package's own code does
            warnings.warn(f"The models of {point.value} cannot be used: {exc!r}", stacklevel=2)
            continue
        for spec in specs:
            if known.get(spec.key, spec) != spec:
                warnings.warn(
                    f"The model {spec.key!r} of {point.value} is left out: its key stands for another one",
                    stacklevel=2,
                )
        found += [spec for spec in specs if spec.key not in known]
    return found


def described(key: str, values: Mapping[str, object], wheel: WheelSource | None = None) -> ModelSpec:
    """A model from the arguments of `register_model`.

    Raises:
        OptionError: An argument cannot be used.
    """
    description = _Description(key, dict(values), f"register_model({key!r}, …)", Path.cwd())
    return description.spec(wheel=wheel)


def _specs(given: object) -> list[ModelSpec]:
    value = given() if callable(given) else given
    specs = [value] if isinstance(value, ModelSpec) else list(cast("Iterable[object]", value))
    if not all(isinstance(spec, ModelSpec) for spec in specs):
        raise TypeError(f"expected ModelSpec, got {value!r}")
    return cast("list[ModelSpec]", specs)


def _table(key: str, values: object) -> _Description:
    path = settings.config_path()
    shown = key if _BARE_KEY.fullmatch(key) else f'"{key}"'
    return _Description(key, values, f"[models.{shown}] in {path}", path.parent)


@dataclass(frozen=True)
class _Description:
    """A model as a person describes it.

    Attributes:
        key: The name of the model.
        values: Names and values.
        place: Where that stands, as the beginning of an error message.
        folder: What relative paths count from.
    """

    key: str
    values: object
    place: str
    folder: Path

    def spec(self, base: ModelSpec | None = None, wheel: WheelSource | None = None) -> ModelSpec:
        """The model, or the known model `base` with these changes."""
        self._check_key()
        values = self._checked()
        facts = {name: values[name] for name in _FACTS if name in values}
        if "adapter" in values:
            facts["adapter"] = self._path(values["adapter"])
        sources = (*self._sources(values), *((wheel,) if wheel else ()))
        if base is not None:
            if sources:  # what is known of the old files says nothing about these
                return replace(base, **({"dtype": None, "refusals": ()} | facts), sources=sources)
            return replace(base, **facts, sources=self._at_revision(base, values))
        if "revision" in values and "repo" not in values:
            raise self._error("has a revision, but no repo", values["revision"])
        if not sources:
            raise self._error(
                "names no source", None, "Give it a repo = 'owner/name' or a path = '/a/folder'."
            )
        defaults = {"label": self.key, "family": "", "good_for": "your own"}
        return ModelSpec(key=self.key, sources=sources, **(defaults | facts))

    def _check_key(self) -> None:
        if not self.key.strip() or self.key != self.key.strip() or any(c in self.key for c in "/\\@\n"):
            raise self._error(
                "has a key that cannot be used", self.key, "A key is a short name without slash and @."
            )

    def _checked(self) -> dict[str, Any]:
        if not isinstance(self.values, dict):
            raise self._error(f"is {self.values!r}, but must be a table", self.values)
        for name, value in self.values.items():
            self._check_type(name, value)
            if isinstance(value, str) and not value.strip() and name not in ("label", "family"):
                raise self._error(f"has an empty {name}", value)
            if name in _CHOICES and value not in _CHOICES[name]:
                raise self._error(f"has {name} = {value!r}; known are {', '.join(_CHOICES[name])}", value)
            if name in _REPOS and hub_source(value) is None:
                raise self._error(
                    f"has {name} = {value!r}, which is no repo",
                    value,
                    "A repo is named owner/name, or owner/name@revision.",
                )
            if name == "context_length" and value < 1:
                raise self._error(f"has context_length = {value}, but it must be 1 or more", value)
            if name == "recipe":
                self._check_recipe(value)
        return self.values

    def _check_type(self, name: str, value: object) -> None:
        if name not in _TYPES:
            near = difflib.get_close_matches(name, _TYPES, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known are: {', '.join(_TYPES)}"
            if isinstance(value, dict):  # [models.a.b] is a table in a table
                hint = f'A key with a dot needs quotes, such as [models."{self.key}.{name}"].'
            raise self._error(f"has an unknown entry {name!r}", value, hint)
        if type(value) is not _TYPES[name]:
            raise self._error(f"has {name} = {value!r}, but it must be a {_TYPES[name].__name__}", value)

    def _check_recipe(self, name: str) -> None:
        """A recipe is a file or a known name; a name that is neither is most likely mistyped."""
        from tinykit.recipes import RECIPES

        if name not in RECIPES and not Path(name).suffix and "/" not in name:
            raise self._error(f"has recipe = {name!r}; known are {', '.join(RECIPES)}", name)

    def _sources(self, values: dict[str, Any]) -> tuple[Source, ...]:
        sources: list[Source] = []
        if "path" in values:
            sources.append(FileSource(self._path(values["path"])))
        for name in _REPOS:
            if name in values:
                source = cast("HubSource", hub_source(values[name]))
                if name == "mlx_repo":
                    source = replace(source, backend="mlx")
                elif "revision" in values and source.revision not in (None, values["revision"]):
                    raise self._error("names two revisions", values["revision"])
                elif "revision" in values:
                    source = replace(source, revision=values["revision"])
                sources.append(source)
        return tuple(sources)

    def _at_revision(self, base: ModelSpec, values: dict[str, Any]) -> tuple[Source, ...]:
        """The known sources, those of the hub for ONNX at the revision that is named."""
        if "revision" not in values:
            return base.sources
        return tuple(
            replace(source, revision=values["revision"])
            if isinstance(source, HubSource) and source.backend == "onnx"
            else source
            for source in base.sources
        )

    def _path(self, text: str) -> Path:
        """A path as it stands there; a relative one counts from the folder."""
        return self.folder / Path(text).expanduser()

    def _error(self, what: str, value: object, hint: str | None = None) -> OptionError:
        return OptionError(f"{self.place} {what}", hint=hint, name="models", value=value)
