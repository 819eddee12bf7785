"""A folder of ONNX graphs, from the hub or elsewhere, to a running backend.

The graph is prepared first, once for all sessions: see `tinykit.prepared`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tinykit.devices import CPU, Device
from tinykit.errors import BackendError, DeviceError, ModelFileError, OptionError
from tinykit.model_config import ModelConfig, read_config
from tinykit.model_files import FileChoice, choose_files, onnx_choices
from tinykit.prepared import load_graph, prepare_graph
from tinykit.progress import Progress
from tinykit.tokenizer import Tokenizer, missing_tokenizer

if TYPE_CHECKING:
    from tinykit.backends.onnx import OnnxBackend


class Skipped(NamedTuple):
    """A precision that `auto` tried in vain."""

    dtype: str
    reason: str


@dataclass(frozen=True)
class OpenedFolder:
    """A model folder that is ready to run.

    Attributes:
        backend: The loaded graph.
        tokenizer: Its tokenizer.
        config: What its configuration files say.
        eos_ids: Every token that ends an answer.
        skipped: Precisions that do not run here, with reasons.
        passes: Names of the graph passes that were applied.
    """

    backend: OnnxBackend
    tokenizer: Tokenizer
    config: ModelConfig
    eos_ids: tuple[int, ...]
    skipped: tuple[Skipped, ...]
    passes: tuple[str, ...]


def has_graphs(folder: Path) -> bool:
    """Whether `folder` holds ONNX graphs in a layout that tinykit knows."""
    return folder.is_dir() and bool(onnx_choices(file_names(folder)))


def open_folder(
    folder: Path,
    dtype: str,
    *,
    key: str,
    threads: int | None = None,
    progress: Progress | None = None,
    device: Device = CPU,
) -> OpenedFolder:
    """Open the graph of a precision; `auto` takes the first that runs.

    Args:
        folder: A model folder in transformers.js or onnxruntime-genai layout.
        dtype: A precision, or `auto`.
        key: The model's name, under which prepared graphs are stored.
        threads: Threads for one operator.
        progress: Where to show the preparation.
        device: Where to run it.

    Raises:
        DeviceError: the device cannot be used, or computes something else than the CPU.
        OptionError: this precision is not there; the message lists those that are.
        ModelFileError: the files cannot be used.
        BackendError: the graph loads but does not run.
    """
    choices = _candidates(file_names(folder), dtype)
    if not any(Path(name).name == "tokenizer.json" for choice in choices for name in choice.extra):
        raise missing_tokenizer(folder)  # no precision is to blame
    skipped: list[Skipped] = []
    for choice in choices:
        try:
            opened = _open(folder, choice, tuple(skipped), key, threads, progress or Progress(), device)
        except DeviceError:
            raise
        except (ModelFileError, BackendError) as error:
            if len(choices) == 1:
                raise
            skipped.append(Skipped(choice.dtype, error.message))
        else:
            if choice.dtype == "auto":
                _require_dtype(opened, dtype, key)
            return opened
    reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped)
    raise ModelFileError(f"No precision of {key} runs here. {reasons}", path=folder, skipped=tuple(skipped))


def _candidates(names: list[str], dtype: str) -> list[FileChoice]:
    """The graphs to try; one whose name does not tell its precision is opened to see it."""
    every = onnx_choices(names)
    if every and (dtype == "auto" or [choice.dtype for choice in every] == ["auto"]):
        return every
    return [choose_files(names, dtype)]


def _require_dtype(opened: OpenedFolder, dtype: str, key: str) -> None:
    found = opened.backend.info.dtype
    if dtype not in ("auto", found):
        opened.backend.close()
        raise OptionError(
            f"{key} is there as {found} only, not as {dtype!r}.",
            hint=f"Use dtype={found!r}, or dtype='auto'.",
            name="dtype",
            value=dtype,
        )


def file_names(folder: Path) -> list[str]:
    """All files below a folder, as its configuration would name them."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _open(
    folder: Path,
    choice: FileChoice,
    skipped: tuple[Skipped, ...],
    key: str,
    threads: int | None,
    progress: Progress,
    device: Device,
) -> OpenedFolder:
    files = {Path(name).name: folder / name for name in choice.extra}
    config = read_config(files)
    tokenizer = folder_tokenizer(folder, files)
    prepared = prepare_graph(folder, choice, config, key, progress)
    backend = load_graph(prepared, choice, config, threads, device)
    if device == CPU:
        _check_steps(backend, choice)
    else:
        check_on_cpu(backend, lambda: load_graph(prepared, choice, config, threads))
    eos_ids = tuple(dict.fromkeys((*config.eos_ids, *tokenizer.end_ids())))
    return OpenedFolder(backend, tokenizer, config, eos_ids, skipped, prepared.passes)


def folder_tokenizer(folder: Path, files: Mapping[str, Path]) -> Tokenizer:
    """The tokenizer among a folder's files, which are given by name.

    Raises:
        ModelFileError: it is not there.
    """
    if "tokenizer.json" not in files:
        raise missing_tokenizer(folder)
    return Tokenizer.from_folder(files["tokenizer.json"].parent)


def check_on_cpu(backend: OnnxBackend, open_on_cpu: Callable[[], OnnxBackend]) -> None:
    """Close `backend` and raise unless it chooses the tokens that the same graph chooses on the CPU.

    Raises:
        DeviceError: another token, or a step that failed.
    """
    from tinykit.backends.smoke import check_like

    try:
        trusted = open_on_cpu()
        try:
            check_like(backend, trusted)
        finally:
            trusted.close()
    except BaseException:
        backend.close()
        raise


def _check_steps(backend: OnnxBackend, choice: FileChoice) -> None:
    """Two steps, since some graphs load and fail only when they run."""
    state = backend.new_state()
    for token_ids in ([0, 1], [2]):
        best = float(backend.forward(token_ids, state).max())
        if not math.isfinite(best):
            raise ModelFileError(f"{choice.graph} computes no finite logits; its weights may be damaged.")
