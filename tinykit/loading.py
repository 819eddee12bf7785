"""From a model's name to an engine or a judge: find or fetch the file, import it once, open it."""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tinykit import residents, settings, sources, store
from tinykit.backends.apart import call_beside
from tinykit.builds import (
    AUTO,
    IMPORT_ALIASES,
    IMPORT_DTYPES,
    PREFIXES,
    build_entry,
    check_hash,
    fingerprint_of,
    import_dtype,
    import_into,
    marks_of,
    open_build,
)
from tinykit.checkpoints import Opened, checked_plan, open_other
from tinykit.devices import CPU, Attempt, Device, default_threads
from tinykit.errors import (
    BackendError,
    DeviceError,
    ModelFileError,
    OptionError,
    SourceError,
    TinykitError,
)
from tinykit.failures import FailureMemory
from tinykit.folders import (
    OpenedFolder,
    Skipped,
    check_on_cpu,
    has_graphs,
    open_folder,
)
from tinykit.generation.engine import Engine
from tinykit.generation.judging import Judge
from tinykit.generation.prefix_files import PrefixFiles
from tinykit.gguf_names import is_number_format, number_format
from tinykit.judge_folder import is_judge_folder, open_judge
from tinykit.loaded_model import Loaded
from tinykit.marks import digest, processor, stat_marks
from tinykit.model_spec import DTYPES, WEIGHTS, graphs_only
from tinykit.optional import onnxruntime_library
from tinykit.placing import place
from tinykit.progress import Progress
from tinykit.registry import FileSource, HubSource, ModelSpec, WheelSource, get_model
from tinykit.residents import Lease, share
from tinykit.tokenizer import Tokenizer

DEFAULT_MODEL = "smollm2-135m-titles"
_log = logging.getLogger("tinykit")


class _Ready(NamedTuple):
    """What generates or judges, where its files are, and the precisions that did not run."""

    runner: Engine | Judge
    folder: Path
    skipped: tuple[Skipped, ...] = ()


# as other libraries call them
_OTHER_NAMES = {
    "float32": "fp32", "f32": "fp32", "float": "fp32", "float16": "fp16", "f16": "fp16", "half": "fp16",
    "int8": "q8", "8bit": "q8", "q8_0": "q8", "int4": "q4", "4bit": "q4", "q4_0": "q4", "q4_1": "q4",
}  # fmt: skip
FAILURES = FailureMemory()  # of this process


def checked_dtype(name: str | None, spec: ModelSpec) -> str:
    """The precision asked for by argument or setting; with ``auto`` or nothing the model entry's own.

    Raises:
        OptionError: an unknown name, or a precision that this model cannot be imported to.
    """
    asked = settings.get("dtype", name)
    dtype = str(asked or "auto").strip().lower()
    is_hub = any(isinstance(source, HubSource) for source in spec.sources_for("onnx") or spec.sources)
    is_import = graph_folder(spec) is None and (spec.adapter is not None or not is_hub)
    if is_import:
        dtype = IMPORT_ALIASES.get(dtype, dtype)
    known = IMPORT_DTYPES if is_import else DTYPES
    if dtype not in known and (is_import or not is_number_format(dtype)):
        with settings.blaming(dtype=name):
            raise OptionError(
                f"Unknown dtype {asked!r}; known are {', '.join(known)}.",
                hint=_near_dtype(dtype, known),
                name="dtype",
                value=asked,
            )
    if dtype == "auto":
        # what is recommended for a repo's graphs says nothing about its float weights
        is_own = is_import and isinstance(spec.sources[0], HubSource)
        return dtype if is_own else spec.dtype or dtype
    if dtype == "q4":
        _check_q4(spec)
    return dtype


def _on_device(dtype: str, device: Device) -> str:
    """A model entry's own precision where it runs on this device; what multiplies integers is for CPUs."""
    return "q8" if dtype == "w8a8" and device != CPU else dtype


def _near_dtype(name: str, known: Sequence[str]) -> str:
    others = [
        dtype
        for dtype in (_OTHER_NAMES.get(name), *difflib.get_close_matches(name, known, 1))
        if dtype in known
    ]
    return f"Did you mean {others[0]!r}?" if others else "Leave it out for the model's own."


def _check_q4(spec: ModelSpec) -> None:
    """Refuse 4 bits before anything is fetched, where the file's name tells that it has none."""
    from tinykit.convert.importer import choose_dtype

    for source in spec.sources:
        if isinstance(source, WheelSource) and (kind := number_format(source.member)):
            choose_dtype("q4", [kind], spec.key)


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
    target, checkpoint = import_dtype(local, dtype, progress=progress, offline=offline)
    entry = build_entry(local, target)
    if entry.is_complete():
        return entry.path
    source = sources.fetch(local, progress=progress, offline=offline)
    info: dict[str, object] = {"model": spec.key, "dtype": target, "origin": spec.origin}
    if spec.adapter is not None:
        info["adapter"] = str(spec.adapter)
    with store.building(entry, info=info, on_wait=lambda text: progress.note(text, model=spec.key)) as folder:
        if folder is not None:
            check_hash(local, source)
            info[AUTO] = import_into(local, source, folder, target, progress, checkpoint)
    return entry.path


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
    asked_dtype = str(settings.get("dtype", dtype) or "auto").strip().lower()
    progress = progress or Progress()
    threads = settings.get("threads", threads)
    fallback = settings.get("fallback", fallback)
    started = time.perf_counter()

    def open_on(attempt: Attempt) -> _Ready:
        residents.require_sound(attempt.backend)  # before anything is fetched
        if attempt.backend == "onnx":
            suited = chosen_dtype if asked_dtype != "auto" else _on_device(chosen_dtype, attempt.device)
            return _open_onnx(spec, suited, attempt.device, threads, progress, offline)
        lease = open_other(
            spec,
            attempt,
            asked_dtype,
            threads=threads,
            fingerprint=fingerprint_of,
            check=check_hash,
            progress=progress,
            offline=offline,
        )
        return _ready(lease, spec)

    placed = place(
        wish, open_on, model=spec.key, dtype=chosen_dtype, memory=FAILURES, fallback=bool(fallback)
    )
    runner, folder, skipped = placed.opened
    if isinstance(runner, Judge):
        spec = replace(spec, task="judge")
    residents.add(spec.key, runner, placed.attempt.backend)
    progress.ready(spec.key, name=spec.origin, task=spec.hub_task)
    load_s = time.perf_counter() - started
    info = runner.backend.info
    _log.debug(
        "%s %s on %s (%s), asked for %s, in %.0f ms",
        spec.key, info.dtype, info.device, info.backend, wish.asked, 1000 * load_s,
    )  # fmt: skip
    return Loaded(spec, runner, folder, load_s, skipped, wish.asked, placed.failures)


def _ready(lease: Lease[Opened], spec: ModelSpec) -> _Ready:
    opened = lease.parts
    engine = Engine(
        opened.backend,
        opened.tokenizer,
        opened.eos_ids,
        cache_bytes=settings.get("cache_bytes"),
        identity=lambda: {"model": spec.key, "build": opened.build()},
        turns=lease.turns,
        release=lease.release,
        files=_prefix_files(opened),
    )
    return _Ready(engine, opened.folder, opened.skipped)


def _prefix_files(opened: Opened) -> PrefixFiles | None:
    """Where the states of recipes' prefixes are kept for the next process; None where they are not."""
    if opened.prefixes is None or not settings.get("keep_prefixes"):
        return None

    def identity() -> dict[str, str]:
        library = onnxruntime_library().__version__
        return {"build": opened.build(), "library": library, "processor": processor()}

    return PrefixFiles(opened.prefixes, opened.backend, identity)


def _open_onnx(
    spec: ModelSpec,
    dtype: str,
    device: Device,
    threads: int | None,
    progress: Progress,
    offline: bool | None,
) -> _Ready:
    local = on_this_machine(spec, dtype, progress=progress, offline=offline)
    asked = (spec.key, "onnx", threads or default_threads())
    if judge := judge_folder(local):
        held = share(
            (*asked, judge, stat_marks(judge), dtype),
            "onnx",
            lambda: open_judge(judge, dtype, threads=threads),
            Judge.close,
        )
        return _Ready(held.parts.twin(turns=held.turns, release=held.release), judge)
    if graphs := graph_folder(local):

        def open_graphs() -> Opened:
            found = _open_graphs(
                spec, graphs, dtype, threads=threads, progress=progress, offline=offline, device=device
            )
            build = lambda: digest(marks_of(graphs))  # noqa: E731
            return Opened(found.backend, found.tokenizer, found.eos_ids, graphs, build, found.skipped)

        key: Hashable = (*asked, device.name, graphs, stat_marks(graphs), dtype)
        return _ready(share(key, "onnx", open_graphs, Opened.close), spec)
    folder = prepare(local, dtype, progress=progress, offline=offline)
    key = (*asked, device.name, folder, stat_marks(folder, but=PREFIXES))
    lease = share(key, "onnx", lambda: _open_import(folder, threads, device), Opened.close)
    return _ready(lease, spec)


def _open_import(folder: Path, threads: int | None, device: Device) -> Opened:
    onnxruntime_library()
    (backend, eos_ids), tokenizer = call_beside(
        lambda: open_build(folder, threads=threads, device=device),
        lambda wait: _ready_tokenizer(folder, wait),
        lambda opened: opened[0].close(),
    )
    if device != CPU:
        check_on_cpu(backend, lambda: open_build(folder, threads=threads)[0])
    ends = (*eos_ids, *tokenizer.end_ids())
    return Opened(backend, tokenizer, ends, folder, lambda: folder.name, prefixes=folder / PREFIXES)


def _ready_tokenizer(folder: Path, wait: Callable[[], None]) -> Tokenizer:
    """The tokenizer of an import, and its template compiled while there is time.

    The library `tokenizers` keeps Python's lock while it reads, so `wait` is called first.
    """
    wait()
    tokenizer = Tokenizer.from_folder(folder)
    with suppress(TinykitError):  # without a template texts can still be completed
        tokenizer.check()
    return tokenizer


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
