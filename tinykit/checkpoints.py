"""A model's float weights for the backends that bring their own models: MLX, transformers, and yours.

A backend of one's own is an entry point of the group `tinykit.backends`: a function that takes the folder of
a checkpoint (``config.json``, safetensors, tokenizer) and the keyword arguments `device`, `dtype`,
`context_length` and `threads`, and returns a `tinykit.backends.base.Backend`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tinykit import settings, sources, store
from tinykit.builds import float_entry
from tinykit.devices import BACKENDS, CPU, Attempt, Machine, Plan, plan, this_machine
from tinykit.errors import BackendError, ModelFileError, TinykitError, UnsupportedModelError
from tinykit.folders import Skipped
from tinykit.marks import digest, file_marks, stat_marks
from tinykit.model_config import CONFIG_FILES, ModelConfig, read_config
from tinykit.model_spec import BackendName, HubSource, ModelSpec
from tinykit.progress import Progress
from tinykit.residents import Lease, share
from tinykit.tokenizer import Tokenizer

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from tinykit.backends.base import Backend

ENTRY_POINTS = "tinykit.backends"
_NO_CONTEXT = 2048  # tokens, for a model whose files do not say how many it can read


class Opened(NamedTuple):
    """A backend with what an engine needs besides; `build` tells these weights from others.

    `prefixes` is a folder of our own for what is kept of prompts, if there is one.
    """

    backend: Backend
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]
    folder: Path
    build: Callable[[], str]
    skipped: tuple[Skipped, ...] = ()
    prefixes: Path | None = None

    def close(self) -> None:
        """Release the model."""
        self.backend.close()


def other_backends() -> dict[str, EntryPoint]:
    """The backends that installed packages bring, by name; none can take the name of one of ours."""
    from importlib.metadata import entry_points  # 25 ms that most processes need not spend

    return {point.name: point for point in entry_points(group=ENTRY_POINTS) if point.name not in BACKENDS}


def checkpoint_folder(
    spec: ModelSpec, source: Path, fingerprint: str, *, check: Callable[[Path], None], progress: Progress
) -> Path:
    """A folder with float weights: the source itself if it is one, else written now if it is not there.

    Args:
        spec: The model.
        source: Its weights on this machine.
        fingerprint: What tells these weights from others.
        check: Raises if the source is not the file it should be.
        progress: Where to show the work.

    Raises:
        ModelFileError: the weights cannot be read.
        UnsupportedModelError: they cannot be written for other libraries.
    """
    if source.is_dir() and spec.adapter is None:
        return source
    entry = float_entry(spec, fingerprint)
    if entry.is_complete():
        return entry.path
    info: dict[str, object] = {"model": spec.key, "dtype": "fp32"}
    with store.building(entry, info=info, on_wait=lambda text: progress.note(text, model=spec.key)) as folder:
        if folder is not None:
            check(source)
            _write(spec, source, folder, progress)
    return entry.path


def _write(spec: ModelSpec, source: Path, folder: Path, progress: Progress) -> None:
    from tinykit.convert.adapter import Adapter
    from tinykit.convert.export import export_bytes, export_model
    from tinykit.convert.fields import readable
    from tinykit.convert.importer import open_source

    with (
        progress.stage(
            f"{spec.key}: write float weights", total=None, unit="layers", model=spec.key
        ) as stage,
        readable(source),
    ):
        checkpoint = open_source(source)
        store.require_space(folder, export_bytes(checkpoint, "fp32"))
        stage.total = checkpoint.architecture.layers
        adapter = Adapter(spec.adapter) if spec.adapter is not None else None
        export_model(checkpoint, folder, adapter=adapter, advance=stage.advance)


def folder_config(folder: Path) -> ModelConfig:
    """What the configuration files of a checkpoint say."""
    return read_config({name: folder / name for name in CONFIG_FILES if (folder / name).is_file()})


def open_checkpoint(
    folder: Path, attempt: Attempt, dtype: str, *, context_length: int | None, threads: int | None
) -> Backend:
    """The backend that an attempt names, on a folder with float weights (or those of an MLX repo).

    Raises:
        BackendError: the library cannot start, or a backend from outside failed.
        ModelFileError: it cannot use the files.
    """
    device, name = attempt.device.name, attempt.backend
    length = context_length or _NO_CONTEXT
    if name == "mlx":
        from tinykit.backends.mlx import MlxBackend

        return MlxBackend(folder, context_length=length, dtype=dtype, device=device)
    if name == "transformers":
        from tinykit.backends.transformers import TransformersBackend

        return TransformersBackend(folder, context_length=length, device=device, dtype=dtype, threads=threads)
    try:
        make = other_backends()[name].load()
        backend: Backend = make(folder, device=device, dtype=dtype, context_length=length, threads=threads)
    except TinykitError:
        raise
    except Exception as error:
        raise BackendError(f"The backend {name!r} failed: {type(error).__name__}: {error}") from error
    if not hasattr(backend, "info"):
        raise ModelFileError(f"The backend {name!r} returned {backend!r}, which is no backend.", path=folder)
    return backend


def checked_plan(
    device: str | None,
    backend: str | None,
    spec: ModelSpec,
    *,
    detect: Callable[[], Machine] = this_machine,
) -> Plan:
    """What to try for the device and backend asked for by argument or setting; a judge runs on the CPU alone.

    Raises:
        OptionError: an unknown name, or a backend that cannot use the device.
    """
    asked, library = settings.get("device", device), settings.get("backend", backend)
    is_own = library is None or str(library).strip().lower() in ("", "auto", *BACKENDS)
    with settings.blaming(device=device, backend=backend):
        wish = plan(asked, library, others=() if is_own else other_backends(), detect=detect)
    return plan(CPU.name) if spec.task == "judge" else wish


def open_other(
    spec: ModelSpec,
    attempt: Attempt,
    dtype: str,
    *,
    threads: int | None,
    fingerprint: Callable[[ModelSpec], str],
    check: Callable[[ModelSpec, Path], None],
    progress: Progress,
    offline: bool | None,
) -> Lease[Opened]:
    """The model in a library that reads safetensors: from a repo of its own, else from the float weights.

    It is opened now if this process does not have it open.

    Args:
        spec: The model.
        attempt: The library and the device.
        dtype: The precision that the user asked for, or `auto`.
        threads: Threads to compute with, where the library has a say in it.
        fingerprint: Tells the weights of a model from others.
        check: Raises if a file is not the one that the model stands for.
        progress: Where to show the work.
        offline: True forbids the network.

    Raises:
        UnsupportedModelError: there are no weights that this library can read.
        SourceError, ModelFileError, BackendError: they cannot be had, used, or run.
    """
    name: BackendName = "mlx" if attempt.backend == "mlx" else "onnx"
    spec.check_backend(name)
    weights = tuple(one for one in spec.sources if not isinstance(one, HubSource))
    is_repo = not weights and name == "mlx"
    if not weights and not is_repo:
        raise UnsupportedModelError(
            f"{spec.key} has no weights that {attempt.backend} can read.",
            hint="Give it a folder with safetensors, or use backend='onnx'.",
            path=None,
        )
    local = replace(spec, sources=weights or spec.sources_for(name))
    source = sources.fetch(local, None, backend=name, progress=progress, offline=offline)
    folder = source
    if is_repo:
        dtype = "auto"  # its weights are what they are
    else:
        dtype = "q8" if attempt.backend == "mlx" and dtype == "auto" else {"int8": "q8"}.get(dtype, dtype)
        folder = checkpoint_folder(
            local, source, fingerprint(local), check=lambda path: check(local, path), progress=progress
        )
    key = (spec.key, *attempt, folder, stat_marks(folder), dtype, threads)
    return share(key, attempt.backend, lambda: _open(folder, attempt, dtype, threads), Opened.close)


def _open(folder: Path, attempt: Attempt, dtype: str, threads: int | None) -> Opened:
    tokenizer, config = Tokenizer.from_folder(folder), folder_config(folder)
    backend = open_checkpoint(folder, attempt, dtype, context_length=config.context_length, threads=threads)
    eos_ids = tuple(dict.fromkeys((*config.eos_ids, *tokenizer.end_ids())))
    return Opened(backend, tokenizer, eos_ids, folder, lambda: _build(folder))


def _build(folder: Path) -> str:
    return digest(file_marks(sorted(file for file in folder.iterdir() if file.is_file())))
