"""Which files of a hub repo a model needs: graphs, else safetensors, else a GGUF file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from tinykit.errors import OptionError, UnsupportedModelError
from tinykit.gguf_names import FAMILIES, choose_gguf, gguf_choices
from tinykit.graph_data import is_inside, read_data_names, unexplained_names
from tinykit.hub_listing import Listing
from tinykit.model_files import FileChoice, choose_files, choose_safetensors, onnx_choices
from tinykit.model_spec import WEIGHTS, HubSource, graphs_only


def choose_for(source: HubSource, names: list[str], dtype: str) -> FileChoice:
    """The files of `source` for a precision, out of all `names` of its repo.

    Raises:
        OptionError: The repo has no such precision or file; the message lists those it has.
        UnsupportedModelError: It has no files that tinykit can use.
    """
    if source.files:
        missing = set(source.files) - set(names)
        if missing:
            raise OptionError(
                f"{source.repo} has no {', '.join(sorted(missing))}", name="files", value=source.files
            )
        return FileChoice("auto", "", source.files, ())
    if dtype == WEIGHTS:
        return _weights(source, names)
    if source.backend == "mlx":
        return choose_safetensors(names, with_old_tokenizers=True)
    has_graphs, has_gguf = bool(onnx_choices(names)), bool(gguf_choices(names))
    has_safetensors = "config.json" in names and any(name.endswith(".safetensors") for name in names)
    if source.gguf or (has_gguf and not has_graphs and not has_safetensors):
        chosen = choose_gguf(names, dtype, source.gguf)
        return FileChoice(chosen.number_format or "auto", "", (chosen.name,), ())
    if has_safetensors and not has_graphs:
        return choose_safetensors(names)
    return choose_files(names, dtype)


def _weights(source: HubSource, names: list[str]) -> FileChoice:
    """Weights for an adapter or a training, which graphs are no use for."""
    has_safetensors = any(name.endswith(".safetensors") for name in names)
    if source.gguf or (gguf_choices(names) and not has_safetensors):
        return FileChoice(WEIGHTS, "", (choose_gguf(names, "fp32", source.gguf).name,), ())
    if onnx_choices(names) and not has_safetensors:
        raise graphs_only(source.repo)
    return replace(choose_safetensors(names), dtype=WEIGHTS)


def with_named_data(choice: FileChoice, names: Sequence[str], graph: Path) -> FileChoice:
    """`choice` with those of `names` that only the graph, which is at `graph` now, says it needs."""
    if not choice.graph or not unexplained_names(names, choice.graph):
        return choice
    beside = PurePosixPath(choice.graph).parent
    wanted = [(beside / name).as_posix() for name in read_data_names(graph) if is_inside(name)]
    more = [name for name in wanted if name in names and name not in choice.data]
    return replace(choice, data=(*choice.data, *more))


def check_family(listing: Listing, choice: FileChoice) -> None:
    """Refuse a GGUF file of an architecture that the importer does not know before it is downloaded.

    Raises:
        UnsupportedModelError: the hub tells such an architecture.
    """
    is_gguf = any(name.endswith(".gguf") for name in choice.data)
    if is_gguf and listing.gguf_family and listing.gguf_family not in FAMILIES:
        raise UnsupportedModelError(
            f"{listing.repo} holds a model of family {listing.gguf_family!r}; the GGUF importer knows "
            f"{', '.join(FAMILIES)}",
            hint="Look for a repo of the same model with ONNX graphs.",
            path=None,
        )
