"""ONNX Runtime backend for judge models: an encoder that gives one logit for each option of a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from glob import escape
from pathlib import Path
from typing import Protocol

import numpy as np

from tinykit.backends.base import Array, EncoderInfo
from tinykit.backends.onnx_session import Graph
from tinykit.backends.signature import Port, numpy_dtype
from tinykit.devices import default_threads
from tinykit.errors import BackendError, UnsupportedModelError

_MULTIPLE = 8  # what lengths are padded to
_RUN_TOKENS = 4096  # of one run, with padding, unless a single row is longer
_STOP_EVERY_S = 0.05
_LOGITS = "logits"

# What an input holds, by the names that exports have for it; Julia-1 and Laya have the first of each.
_ROLES: Mapping[str, str] = {
    "input_ids": "ids",
    "attention_mask": "attention",
    "marker_pos": "markers",
    "marker_positions": "markers",
    "marker_mask": "options",
    "qtype": "kinds",
    "question_type": "kinds",
    "token_type_ids": "types",
    "position_ids": "positions",
}
_NEEDED = {"ids": "input_ids", "markers": "marker_pos"}


class Row(Protocol):
    """One question as the model reads it."""

    @property
    def ids(self) -> Sequence[int]:
        """Token ids."""
        ...

    @property
    def markers(self) -> Sequence[int]:
        """Where in `ids` each option begins."""
        ...

    @property
    def kind(self) -> int:
        """The number of the question's kind."""
        ...


class EncoderBackend:
    """A judge graph in ONNX Runtime, always on the CPU.

    Args:
        path: The ``.onnx`` file; external data lies beside it.
        dtype: What to report as the weights' precision.
        context_length: Tokens that the model was made for.
        threads: Threads for one operator; by default `default_threads()`.

    Raises:
        ModelFileError: ONNX Runtime cannot load the file.
        UnsupportedModelError: the graph is no judge, or has an input that tinykit does not know.
    """

    def __init__(self, path: Path, *, dtype: str, context_length: int, threads: int | None = None) -> None:
        threads = threads or default_threads()
        self._graph = Graph(path, threads, {})
        self._roles = _roles(path, self._graph.inputs)
        self._output = _output_name(path, self._graph.outputs)
        self.info = EncoderInfo(
            backend="onnx",
            device="cpu",
            providers=self._graph.providers,
            dtype=dtype,
            context_length=context_length,
            threads=threads,
            weights_bytes=sum(file.stat().st_size for file in path.parent.glob(f"{escape(path.name)}*")),
        )

    def option_logits(self, rows: Sequence[Row], pad_id: int) -> list[list[float]]:
        """One logit for each option of each row.

        Rows go in by length, several at once, padded at their end with `pad_id` to a multiple of 8 tokens.

        Raises:
            ForwardInterrupted: `interrupt` was called meanwhile.
            BackendError: ONNX Runtime failed, or gave logits of another shape.
            KeyboardInterrupt: Ctrl-C, which stops the run that is under way.
        """
        found: dict[int, list[float]] = {}
        for places in _groups([len(row.ids) for row in rows]):
            group = [rows[place] for place in places]
            feeds = self._feeds(group, pad_id)
            logits = self._run_heard(feeds)
            widest = max(len(row.markers) for row in group)
            if logits.ndim != 2 or logits.shape[0] != len(group) or logits.shape[1] < widest:
                raise BackendError(
                    f"The judge gave logits of shape {logits.shape} for {len(group)} questions "
                    f"with up to {widest} options."
                )
            for place, row, values in zip(places, group, logits, strict=True):
                found[place] = [float(value) for value in values[: len(row.markers)]]
        return [found[place] for place in range(len(rows))]

    def interrupt(self) -> None:
        """Let a call that is running raise `ForwardInterrupted` soon; for any thread."""
        self._graph.interrupt()

    def close(self) -> None:
        """Release the session; closing twice is harmless."""
        self._graph.close()

    def _feeds(self, rows: Sequence[Row], pad_id: int) -> dict[str, Array]:
        arrays = _arrays(rows, pad_id)
        return {name: arrays[role].astype(dtype, copy=False) for name, (role, dtype) in self._roles.items()}

    def _run_heard(self, feeds: Mapping[str, Array]) -> Array:
        """Run in a thread of its own: Ctrl-C would not reach this one inside of ONNX Runtime."""
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(self._run, feeds)
            try:
                return future.result()
            except BaseException:
                while not future.done():  # again, if it had not begun to run the first time
                    self.interrupt()
                    wait([future], _STOP_EVERY_S)
                raise

    def _run(self, feeds: Mapping[str, Array]) -> Array:
        with self._graph.running():
            return self._graph.run([self._output], feeds)[0]


def _roles(path: Path, inputs: Sequence[Port]) -> dict[str, tuple[str, np.dtype[np.generic]]]:
    """What each input of the graph is to hold, and its type."""
    roles = {}
    for port in inputs:
        if port.name not in _ROLES:
            raise UnsupportedModelError(
                f"{path} has an input {port.name!r} that a judge model is not known to have.", path=path
            )
        roles[port.name] = (_ROLES[port.name], numpy_dtype(port))
    for needed, usual in _NEEDED.items():
        if needed not in {role for role, _ in roles.values()}:
            raise UnsupportedModelError(
                f"{path} has no input such as {usual!r}: it is no judge model.",
                hint="List judge models with: tinykit models",
                path=path,
            )
    return roles


def _output_name(path: Path, outputs: Sequence[Port]) -> str:
    names = [port.name for port in outputs]
    if _LOGITS not in names and len(names) != 1:
        raise UnsupportedModelError(
            f"{path} has no output named {_LOGITS!r} but {', '.join(names)}.", path=path
        )
    return _LOGITS if _LOGITS in names else names[0]


def _groups(lengths: Sequence[int]) -> list[list[int]]:
    """Places of rows that run together: of similar length, and few enough that a run stays short."""
    groups: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        longest = _padded(lengths[groups[-1][0]]) if groups else 0
        if groups and (len(groups[-1]) + 1) * longest <= _RUN_TOKENS:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def _padded(length: int) -> int:
    return -(-length // _MULTIPLE) * _MULTIPLE


def _arrays(rows: Sequence[Row], pad_id: int) -> dict[str, Array]:
    """Everything that a graph may ask for, by role; what a row lacks is padding, zero or False."""
    length = _padded(max(len(row.ids) for row in rows))
    width = max(len(row.markers) for row in rows)
    ids = np.full((len(rows), length), pad_id, np.int64)
    attention = np.zeros((len(rows), length), np.int64)
    markers = np.zeros((len(rows), width), np.int64)
    options = np.zeros((len(rows), width), np.bool_)
    for at, row in enumerate(rows):
        ids[at, : len(row.ids)] = row.ids
        attention[at, : len(row.ids)] = 1
        markers[at, : len(row.markers)] = row.markers
        options[at, : len(row.markers)] = True
    return {
        "ids": ids,
        "attention": attention,
        "markers": markers,
        "options": options,
        "kinds": np.array([row.kind for row in rows], np.int64),
        "types": np.zeros_like(ids),
        "positions": np.tile(np.arange(length, dtype=np.int64), (len(rows), 1)),
    }
