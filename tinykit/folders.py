"""A folder of ONNX graphs, from the hub or elsewhere, to a running backend.

The graph is prepared once: what it can do is read from it, and the passes of `tinykit.convert.optimize` are
applied if they leave the answers as they are. The result lies in the store; the weights stay where they are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tinykit import store
from tinykit.devices import CPU, Device
from tinykit.errors import BackendError, DeviceError, ModelFileError, OptionError, TinykitError
from tinykit.generation.judging import MAX_TOKENS, Judge, Marks
from tinykit.graph_data import is_inside
from tinykit.marks import digest, file_marks
from tinykit.model_config import CONFIG_FILES, ModelConfig, read_config
from tinykit.model_files import FileChoice, choose_files, onnx_choices
from tinykit.progress import Progress
from tinykit.tokenizer import Tokenizer, missing_tokenizer

if TYPE_CHECKING:
    from tinykit.backends.onnx import OnnxBackend
    from tinykit.backends.signature import StateHints

_NO_CONTEXT = 2048  # tokens, for a model whose files do not say how many it can read
_PREPARED, _GRAPH = "prepared.json", "graph.onnx"
_PROBE_TOKENS = 12
_CLASS_ID = 2  # of a judge model whose tokenizer names neither a class token nor one for the beginning
# Logits of a prepared graph against the original's: int8 activations alone give 0.999 and more.
_MIN_SIMILARITY = 0.99
_MIN_BATCH_SIMILARITY = 0.999  # rows that look at wrong tokens of others came out at 0.997


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


@dataclass(frozen=True)
class _Prepared:
    """A graph to load: `data` are the files with its weights if they lie elsewhere than beside it."""

    graph: Path
    data: Mapping[str, Path]
    dtype: str
    shared_kv: bool
    windows: Mapping[str, int]
    rotary_rows: int | None
    passes: tuple[str, ...]
    can_batch: bool = False


def has_graphs(folder: Path) -> bool:
    """Whether `folder` holds ONNX graphs in a layout that tinykit knows."""
    return folder.is_dir() and bool(onnx_choices(_names(folder)))


def is_judge_folder(folder: Path) -> bool:
    """Whether a folder of graphs has the layout of a judge model: a tokenizer, and no model configuration."""
    names = {Path(name).name for choice in onnx_choices(_names(folder)) for name in choice.extra}
    return "tokenizer.json" in names and names.isdisjoint(("config.json", "genai_config.json"))


def open_judge(folder: Path, dtype: str, *, threads: int | None = None) -> Judge:
    """Open the graph of a judge model in the precision asked for, on the CPU whatever the device.

    Raises:
        OptionError: this precision is not there; the message lists those that are.
        ModelFileError: the files cannot be used, or are no judge model.
    """
    from tinykit.backends.onnx_encoder import EncoderBackend

    choice = choose_files(_names(folder), dtype)
    files = {Path(name).name: folder / name for name in choice.extra}
    tokenizer = _tokenizer(folder, files)
    context_length = read_config(files).context_length or MAX_TOKENS
    backend = EncoderBackend(
        folder / choice.graph, dtype=choice.dtype, context_length=context_length, threads=threads
    )
    return Judge(backend, tokenizer.encode_document, _marks(folder, tokenizer))


def _marks(folder: Path, tokenizer: Tokenizer) -> Marks:
    """A judge's special tokens, by the names that its tokenizer's configuration gives them."""
    mask, separator = (tokenizer.named_token(name) for name in ("mask_token", "sep_token"))
    if mask is None or separator is None:
        raise ModelFileError(
            f"The tokenizer of {folder} names no mask_token or no sep_token, which a judge model needs.",
            hint="Fetch the model again; tokenizer_config.json belongs to it.",
            path=folder / "tokenizer_config.json",
        )
    begin = tokenizer.named_token("cls_token") or tokenizer.named_token("bos_token")
    padding = tokenizer.named_token("pad_token")
    return Marks(
        mask_id=mask[1],
        class_id=begin[1] if begin else _CLASS_ID,
        separator_id=separator[1],
        pad_id=padding[1] if padding else 0,
        mask_text=mask[0],
    )


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
    choices = _candidates(_names(folder), dtype)
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


def _names(folder: Path) -> list[str]:
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
    tokenizer = _tokenizer(folder, files)
    prepared = _prepare(folder, choice, config, key, progress)
    backend = _load(prepared, choice, config, threads, device)
    if device == CPU:
        _check_steps(backend, choice)
    else:
        check_on_cpu(backend, lambda: _load(prepared, choice, config, threads))
    eos_ids = tuple(dict.fromkeys((*config.eos_ids, *tokenizer.end_ids())))
    return OpenedFolder(backend, tokenizer, config, eos_ids, skipped, prepared.passes)


def _tokenizer(folder: Path, files: Mapping[str, Path]) -> Tokenizer:
    if "tokenizer.json" not in files:
        raise missing_tokenizer(folder)
    return Tokenizer.from_folder(files["tokenizer.json"].parent)


def _hints(config: ModelConfig, windows: Mapping[str, int]) -> StateHints:
    from tinykit.backends.signature import StateHints

    return StateHints(config.sizes, {**windows, **config.windows()}, config.presents())


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


def _load(
    prepared: _Prepared, choice: FileChoice, config: ModelConfig, threads: int | None, device: Device = CPU
) -> OnnxBackend:
    from tinykit.backends.onnx import OnnxBackend

    lengths = [n for n in (config.context_length, prepared.rotary_rows) if n]
    return OnnxBackend(
        prepared.graph,
        dtype=prepared.dtype if choice.dtype == "auto" else choice.dtype,
        context_length=min(lengths, default=_NO_CONTEXT),
        threads=threads,
        shared_kv=prepared.shared_kv,
        can_batch=prepared.can_batch,
        hints=_hints(config, prepared.windows),
        data=prepared.data,
        device=device,
    )


def _check_steps(backend: OnnxBackend, choice: FileChoice) -> None:
    """Two steps, since some graphs load and fail only when they run."""
    state = backend.new_state()
    for token_ids in ([0, 1], [2]):
        best = float(backend.forward(token_ids, state).max())
        if not math.isfinite(best):
            raise ModelFileError(f"{choice.graph} computes no finite logits; its weights may be damaged.")


# ---- preparing ----------------------------------------------------------------------------------


def _prepare(
    folder: Path, choice: FileChoice, config: ModelConfig, key: str, progress: Progress
) -> _Prepared:
    from tinykit.convert.optimize import OPTIMIZE_VERSION

    configs = [name for name in choice.extra if Path(name).name in CONFIG_FILES]
    marks = file_marks(folder / name for name in (choice.graph, *choice.data, *configs))
    build = f"{digest(marks)[:12]}-{choice.dtype}-graph{OPTIMIZE_VERSION}"
    entry = store.entry("models", key, build)
    source = folder / choice.graph
    if not entry.is_complete():
        info: dict[str, object] = {"model": key, "dtype": choice.dtype, "source": str(source)}
        size_bytes = source.stat().st_size
        with store.building(entry, needed_bytes=size_bytes, info=info) as target:
            if target is not None:
                label = f"{key}: prepare {choice.dtype}"
                with progress.stage(label, total=None, unit="graph", model=key) as stage:
                    if _write_prepared(source, choice, config, target):
                        stage.total = 1
                        stage.advance(1)
    facts = json.loads((entry.path / _PREPARED).read_text(encoding="utf-8"))
    return _prepared(source, entry.path, facts)


def _prepared(source: Path, folder: Path, facts: Mapping[str, Any]) -> _Prepared:
    """The graph to load: the one written to `folder`, or the source if no pass changed it."""
    passes = tuple(facts["passes"])
    if not passes:
        return _Prepared(**{**facts, "graph": source, "data": {}, "passes": ()})
    places = {name: source.parent / name for name in facts["data"]}
    own = folder / f"{_GRAPH}_data"
    if own.is_file():
        places[own.name] = own
    return _Prepared(**{**facts, "graph": folder / _GRAPH, "data": places, "passes": passes})


def _write_prepared(source: Path, choice: FileChoice, config: ModelConfig, target: Path) -> bool:
    """Write what is known of the graph, and a changed graph if the passes find anything; True if they do."""
    from tinykit.convert.optimize import apply_passes, inspect_graph, read_graph, write_graph

    model = read_graph(source)
    facts = asdict(inspect_graph(model, _hints(config, {})))
    _check_data(source, facts["data"])
    facts["passes"] = apply_passes(model)
    if facts["passes"]:
        write_graph(model, target / _GRAPH)
        changed = _prepared(source, target, facts)
        original = _Prepared(**{**facts, "graph": source, "data": {}, "shared_kv": False, "passes": ()})
        if not _same_answers(original, changed, choice, config):
            facts["passes"] = ()
            for file in target.iterdir():
                file.unlink()
    facts["can_batch"] = _can_batch(_prepared(source, target, facts), choice, config)
    (target / _PREPARED).write_text(json.dumps(facts, indent=1), encoding="utf-8")
    return bool(facts["passes"])


def _check_data(source: Path, names: tuple[str, ...]) -> None:
    for name in names:
        place = source.parent / name
        if not is_inside(name):
            raise ModelFileError(f"{source} refers to a file outside its folder: {name}.", path=source)
        if not place.is_file():
            raise ModelFileError(
                f"{source.name} needs the file {name}, which is not beside it.",
                hint="Copy it there or fetch the model again; if the repo lacks it, choose another dtype.",
                path=place,
            )


def _same_answers(original: _Prepared, changed: _Prepared, choice: FileChoice, config: ModelConfig) -> bool:
    """Whether both graphs answer a probe alike. An original that does not run decides nothing: it is used."""
    try:
        before, after = (_probe(prepared, choice, config) for prepared in (original, changed))
    except TinykitError:
        return False
    return _are_similar(before, after)


def _can_batch(prepared: _Prepared, choice: FileChoice, config: ModelConfig) -> bool:
    """Whether sequences of different lengths answer together as they do alone.

    Some graphs take several rows and then look at the wrong tokens, so this is tried and not read.
    """
    import numpy as np

    try:
        backend = _load(replace(prepared, can_batch=True), choice, config, None)
    except TinykitError:
        return False  # the error will be met again where it can be told
    try:
        if not backend.info.can_batch:
            return False
        batch, states = backend.new_batch(), []
        for length in (_PROBE_TOKENS, 1, _PROBE_TOKENS // 2):
            states.append(backend.new_state())
            backend.forward(_probe_ids(backend)[-length:], states[-1])
            batch.add(states[-1])
        for token_id in _probe_ids(backend)[:2]:
            together = batch.forward([token_id] * len(states)).astype(np.float64)
            for row, state in zip(together, states, strict=True):
                alone = backend.forward([token_id], state)[0].astype(np.float64)
                if not _are_similar(row - row.mean(), alone - alone.mean(), _MIN_BATCH_SIMILARITY):
                    return False
        return True
    except TinykitError:
        return False
    finally:
        backend.close()


def _are_similar(a: Any, b: Any, least: float = _MIN_SIMILARITY) -> bool:
    norms = float((a @ a) * (b @ b)) ** 0.5
    return bool(norms > 0 and float(a @ b) / norms >= least)


def _probe(prepared: _Prepared, choice: FileChoice, config: ModelConfig) -> Any:
    """Logits after some tokens from all over the vocabulary, less their mean."""
    import numpy as np

    backend = _load(prepared, choice, config, None)
    try:
        logits = backend.forward(_probe_ids(backend), backend.new_state())[0].astype(np.float64)
        return logits - logits.mean()
    finally:
        backend.close()


def _probe_ids(backend: OnnxBackend) -> list[int]:
    """Tokens from all over the vocabulary."""
    vocab_size = backend.info.vocab_size
    return [(n * vocab_size) // _PROBE_TOKENS for n in range(_PROBE_TOKENS)]
