"""A model's files made ready for the next load: fetched, and imported if they are of such a kind."""

from __future__ import annotations

from pathlib import Path

from tinykit import hub, settings, sources
from tinykit.loading import checked_dtype, prepare
from tinykit.model_spec import BackendName, HubSource, ModelSpec
from tinykit.progress import Progress


def fetch_model(
    spec: ModelSpec,
    dtype: str | None = None,
    *,
    backend: BackendName = "onnx",
    force: bool = False,
    offline: bool | None = None,
    progress: Progress | None = None,
) -> Path:
    """The folder of a model's files, fetched and imported now if need be.

    Args:
        spec: The model.
        dtype: The precision; None follows the model's entry.
        backend: The backend that is to read it.
        force: Ask the hub for a newer version, and mend files that changed.
        offline: True never uses the network.
        progress: Where to show the work.

    Raises:
        SourceError: the files cannot be had (one of its kinds says why).
        ModelFileError: they cannot be read or imported.
    """
    progress, chosen = progress or Progress(), checked_dtype(dtype, spec)
    source = next(iter(spec.sources_for(backend)), None)
    if isinstance(source, HubSource):
        spec.check_backend(backend)
        if force:
            is_offline = bool(settings.get("offline", offline))
            hub.fetch(source, chosen, model=spec.key, progress=progress, offline=is_offline, force=True)
        return sources.fetch(spec, chosen, backend=backend, progress=progress, offline=offline)
    if source is None or backend != "onnx":
        return sources.fetch(spec, chosen, backend=backend, progress=progress, offline=offline)
    return prepare(spec, chosen, progress=progress, offline=offline)
