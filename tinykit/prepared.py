"""A graph from elsewhere, prepared once to be run.

What it can do is read from it or tried, and the passes of `tinykit.convert.optimize` are applied if they
leave the answers as they are. The result lies in the store; the weights stay where they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinykit import store
from tinykit.devices import CPU, Device
from tinykit.errors import ModelFileError, TinykitError
from tinykit.graph_data import is_inside
from tinykit.marks import digest, file_marks
from tinykit.model_config import CONFIG_FILES, ModelConfig
from tinykit.model_files import FileChoice
from tinykit.progress import Progress

if TYPE_CHECKING:
    from tinykit.backends.onnx import OnnxBackend
    from tinykit.backends.signature import StateHints

_NO_CONTEXT = 2048  # tokens, for a model whose files do not say how many it can read
_PREPARED, _GRAPH = "prepared.json", "graph.onnx"
_PROBE_TOKENS = 12
# Logits of a prepared graph against the original's: int8 activations alone give 0.999 and more.
_MIN_SIMILARITY = 0.99
_MIN_BATCH_SIMILARITY = 0.999  # rows that look at wrong tokens of others came out at 0.997


@dataclass(frozen=True)
class PreparedGraph:
    """A graph to load: `data` are the files with its weights if they lie elsewhere than beside it."""

    graph: Path
    data: Mapping[str, Path]
    dtype: str
    shared_kv: bool
    windows: Mapping[str, int]
    rotary_rows: int | None
    passes: tuple[str, ...]
    can_batch: bool = False


def prepare_graph(
    folder: Path, choice: FileChoice, config: ModelConfig, key: str, progress: Progress
) -> PreparedGraph:
    """The graph of a choice, prepared now if it has not been.

    Raises:
        ModelFileError: the graph cannot be read, or a file that it needs is not there.
    """
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


def _prepared(source: Path, folder: Path, facts: Mapping[str, Any]) -> PreparedGraph:
    """The graph to load: the one written to `folder`, or the source if no pass changed it."""
    passes = tuple(facts["passes"])
    if not passes:
        return PreparedGraph(**{**facts, "graph": source, "data": {}, "passes": ()})
    places = {name: source.parent / name for name in facts["data"]}
    own = folder / f"{_GRAPH}_data"
    if own.is_file():
        places[own.name] = own
    return PreparedGraph(**{**facts, "graph": folder / _GRAPH, "data": places, "passes": passes})


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
        original = PreparedGraph(**{**facts, "graph": source, "data": {}, "shared_kv": False, "passes": ()})
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


def _same_answers(
    original: PreparedGraph, changed: PreparedGraph, choice: FileChoice, config: ModelConfig
) -> bool:
    """Whether both graphs answer a probe alike. An original that does not run decides nothing: it is used."""
    try:
        before, after = (_probe(prepared, choice, config) for prepared in (original, changed))
    except TinykitError:
        return False
    return _are_similar(before, after)


def _can_batch(prepared: PreparedGraph, choice: FileChoice, config: ModelConfig) -> bool:
    """Whether sequences of different lengths answer together as they do alone.

    Some graphs take several rows and then look at the wrong tokens, so this is tried and not read.
    """
    import numpy as np

    try:
        backend = load_graph(replace(prepared, can_batch=True), choice, config, None)
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


def _probe(prepared: PreparedGraph, choice: FileChoice, config: ModelConfig) -> Any:
    """Logits after some tokens from all over the vocabulary, less their mean."""
    import numpy as np

    backend = load_graph(prepared, choice, config, None)
    try:
        logits = backend.forward(_probe_ids(backend), backend.new_state())[0].astype(np.float64)
        return logits - logits.mean()
    finally:
        backend.close()


def _probe_ids(backend: OnnxBackend) -> list[int]:
    """Tokens from all over the vocabulary."""
    vocab_size = backend.info.vocab_size
    return [(n * vocab_size) // _PROBE_TOKENS for n in range(_PROBE_TOKENS)]


def load_graph(
    prepared: PreparedGraph,
    choice: FileChoice,
    config: ModelConfig,
    threads: int | None,
    device: Device = CPU,
) -> OnnxBackend:
    """A backend on the graph; `device` is where to run it."""
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


def _hints(config: ModelConfig, windows: Mapping[str, int]) -> StateHints:
    from tinykit.backends.signature import StateHints

    return StateHints(config.sizes, {**windows, **config.windows()}, config.presents())
