"""The models that tinykit knows by name, and how a name becomes a model.

A name is a key of the catalog, of a package or of the user's config file; else the path of a GGUF file or
of a model folder; else the id of a repo on the hub, `owner/name` or `owner/name@revision`, with `:Q4_K_M` or
`:file.gguf` behind it to choose one of its GGUF files.
"""

from __future__ import annotations

import difflib
import os
import re
from contextlib import suppress
from pathlib import Path

from tinykit.catalog import CATALOG
from tinykit.errors import OptionError, UnknownModelError
from tinykit.model_spec import (
    BackendName,
    FileSource,
    Group,
    HubSource,
    ModelSpec,
    Source,
    Task,
    WheelSource,
)

__all__ = [
    "MODELS",
    "BackendName",
    "FileSource",
    "Group",
    "HubSource",
    "ModelSpec",
    "Source",
    "Task",
    "WheelSource",
    "get_model",
    "known_models",
    "register_model",
]

MODELS: dict[str, ModelSpec] = {spec.key: spec for spec in CATALOG}

_REPO = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95})(@(?P<revision>[\w./-]+))?(:(?P<gguf>[\w./-]+))?",
    re.ASCII,
)
# the address of a file on the hub's pages
_FILE_PAGE = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)/(?:blob|resolve)/(?P<revision>[\w.-]+)/(?P<gguf>[\w./-]+\.gguf)", re.ASCII
)
_HUB_PREFIXES = ("hf://", "https://huggingface.co/", "https://hf.co/")
_MODEL_CONFIGS = ("config.json", "genai_config.json")


def register_model(spec: ModelSpec) -> None:
    """Make a model known under its key, for `get_model` and for every list of models.

    Raises:
        OptionError: Another model has this key already.
    """
    if MODELS.get(spec.key, spec) != spec:
        raise OptionError(f"There is already a model with the key {spec.key!r}", name="key", value=spec.key)
    MODELS[spec.key] = spec


def known_models() -> dict[str, ModelSpec]:
    """All models that have a key: registered ones, those of packages, those of the config file.

    Raises:
        OptionError: The config file describes a model wrongly.
    """
    from tinykit import own_models

    found = dict(MODELS)
    for specs in (own_models.from_packages(), own_models.from_config()):
        for spec in specs:
            found.setdefault(spec.key, spec)
    return found


def get_model(name: str | Path) -> ModelSpec:
    """The model with this key, or one for this GGUF file, this folder or this repo of the hub.

    Raises:
        UnknownModelError: None of these; `.nearest` holds keys that look alike.
        OptionError: Neither text nor a path, or the config file describes a model wrongly.
    """
    if not isinstance(name, str | os.PathLike):
        raise OptionError(
            f"A model is named by a key or a path, not by {name!r}.",
            hint="List all with: tinykit models",
            name="model",
            value=name,
        )
    if isinstance(name, str):
        spec = MODELS.get(name) or known_models().get(name)
        if spec is not None:
            return spec
    path = Path(name)
    with suppress(RuntimeError):  # "~name" without such a user
        path = path.expanduser()
    spec = _spec_for_repo(name) if isinstance(name, str) else None
    is_file_of_repo = spec is not None and ":" in str(name) and not _is_file(path)
    if (path.suffix.lower() == ".gguf" and not is_file_of_repo) or _is_model_folder(path):
        return _spec_for_path(path)
    if spec is not None:
        return spec
    nearest = difflib.get_close_matches(str(name).lower(), known_models(), n=3, cutoff=0.5)
    known = f"Did you mean {' or '.join(nearest)}? " if nearest else ""
    raise UnknownModelError(
        f"There is no model {str(name)!r:.300}",
        hint=f"{known}List all with: tinykit models",
        model=str(name),
        nearest=nearest,
    )


def _is_model_folder(path: Path) -> bool:
    return any(_is_file(path / config) for config in _MODEL_CONFIGS)


def _spec_for_path(path: Path) -> ModelSpec:
    if not _is_file(path) and not _is_model_folder(path):
        raise UnknownModelError(
            f"There is no file {str(path)!r:.300}",
            hint="Give the path of an existing .gguf file, or a key from: tinykit models",
            model=str(path),
            nearest=[],
        )
    path = path.resolve()
    name = path.stem if path.is_file() else path.name
    key = (
        f"{name}-local" if name in known_models() else name
    )  # the key of a known model is that model's alone
    return ModelSpec(key=key, label=name, family="", sources=(FileSource(path),))


def _is_file(path: Path) -> bool:
    """False also for what can be no file, such as a name of 5,000 characters or, before 3.13, with a NUL."""
    with suppress(OSError, ValueError):
        return path.is_file()
    return False


def _spec_for_repo(name: str) -> ModelSpec | None:
    for prefix in _HUB_PREFIXES:
        name = name.removeprefix(prefix)
    match = _REPO.fullmatch(name.rstrip("/")) or _FILE_PAGE.fullmatch(name)
    if match is None:
        return None
    source = HubSource(match["repo"], match["revision"], gguf=match["gguf"] or "")
    return ModelSpec(key=source.name, label=match["repo"].partition("/")[2], family="", sources=(source,))
