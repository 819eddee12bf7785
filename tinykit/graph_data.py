"""Where a graph keeps weights that are not inside it: names of files, told by the graph itself.

Exports name such files as they like (`weights.bin`, one file for each tensor), so that only the graph can
say which they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

_EXTERNAL = 1  # onnx.TensorProto.EXTERNAL
# files beside a graph that hold no weights
_OTHER = re.compile(
    r"\..*|README.*|LICENSE.*|.*\.(json|md|txt|jinja|model|py|png|yaml|yml|pdf)", re.IGNORECASE
)


def data_names(model: Any) -> tuple[str, ...]:
    """Names of the files with the weights of an `onnx.ModelProto`, as it writes them and in its order."""
    return tuple(dict.fromkeys(_locations(model.graph)))


def is_inside(name: str) -> bool:
    """Whether this name stays in the graph's folder on every system."""
    path = PurePosixPath(name)
    return not (path.is_absolute() or ".." in path.parts or re.search(r"\\|^\w:", name) or not path.name)


def unexplained_names(names: Sequence[str], graph: str) -> list[str]:
    """Those of `names` that may hold weights of `graph`, though no custom of naming tells."""
    if not graph:
        return []
    folder = graph[: len(graph) - len(PurePosixPath(graph).name)]
    own = f"{graph}_data", f"{graph}.data"
    found = []
    for name in names:
        base = PurePosixPath(name).name
        is_other_graphs = ".onnx" in base and not name.startswith(graph)
        if name == graph or not name.startswith(folder) or name.startswith(own) or is_other_graphs:
            continue
        if not _OTHER.fullmatch(base):
            found.append(name)
    return found


def read_data_names(graph: Path) -> tuple[str, ...]:
    """The same from a file; none if it is not a graph, which is for the one to say who opens it."""
    import onnx

    try:
        return data_names(onnx.load(graph, load_external_data=False))
    except Exception:  # protobuf has several kinds
        return ()


def _locations(graph: Any) -> Iterator[str]:
    for tensor in _tensors(graph):
        if tensor.data_location == _EXTERNAL:
            yield from (entry.value for entry in tensor.external_data if entry.key == "location")


def _tensors(graph: Any) -> Iterator[Any]:
    """All constants, also those inside nodes and inside the branches of an If."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)
