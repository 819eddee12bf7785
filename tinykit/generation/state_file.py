"""States as files in the format safetensors (https://github.com/huggingface/safetensors): no code is in it.

The metadata say what has made the state, since it means nothing to another model or build.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tinykit.backends.base import Array
from tinykit.errors import CacheError, ModelFileError

_FORMAT = "tinykit-state-1"
_TOKENS = "token_ids"
_PREFIX = "state."


def write_state(
    path: Path,
    token_ids: Sequence[int],
    arrays: Mapping[str, Array],
    identity: Mapping[str, str],
    *,
    is_synced: bool = True,
) -> int:
    """Write a state whole or not at all; returns the file's size in bytes.

    Without `is_synced` a power failure may leave a damaged file, which `read_state` refuses.

    Raises:
        CacheError: the file cannot be written; folders are not made.
    """
    tensors: dict[str, npt.NDArray[Any]] = {_PREFIX + name: array for name, array in arrays.items()}
    tensors[_TOKENS] = np.asarray(token_ids, np.int64)
    metadata = {"format": _FORMAT, "sha256": _digest(tensors), **identity}
    return _write(path, tensors, metadata, is_synced)


def read_state(
    path: Path, identity: Mapping[str, str], vocab_size: int
) -> tuple[tuple[int, ...], dict[str, Array]]:
    """The ids of the tokens that were seen, and the state's arrays by name.

    Raises:
        ModelFileError: the file is no state, is damaged, or was made by something else than `identity` says.
    """
    metadata, tensors = _read(path)
    for name, own in identity.items():
        if metadata.get(name) != own:
            raise ModelFileError(
                f"{path} was saved by another model: its {name} is {metadata.get(name)!r}, "
                f"here it is {own!r}.",
                hint="Open the model that saved it, with the same dtype.",
                path=path,
            )
    if metadata.get("sha256") != _digest(tensors):
        raise ModelFileError(
            f"{path} is damaged: its checksum does not fit.",
            hint="Save the state again; without it the prompt is computed anew.",
            path=path,
        )
    ids = _checked_ids(tensors.pop(_TOKENS, None), vocab_size, path)
    return ids, {name.removeprefix(_PREFIX): array for name, array in tensors.items()}


def _digest(tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    """A checksum of the names and the contents."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(np.ascontiguousarray(tensors[name]).data)
    return found.hexdigest()


def _checked_ids(token_ids: npt.NDArray[Any] | None, vocab_size: int, path: Path) -> tuple[int, ...]:
    """The token ids of a file as plain numbers."""
    is_list = token_ids is not None and token_ids.ndim == 1 and token_ids.dtype == np.int64
    if token_ids is None or not is_list or not all(0 <= index < vocab_size for index in token_ids):
        raise ModelFileError(f"{path} is damaged: it lacks the ids of the tokens that were seen.", path=path)
    return tuple(token_ids.tolist())


def _write(
    path: Path, tensors: dict[str, npt.NDArray[Any]], metadata: dict[str, str], is_synced: bool
) -> int:
    from safetensors.numpy import save_file

    partial = None
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        os.close(handle)
        save_file(tensors, partial, metadata)
        if is_synced:
            with open(partial, "rb") as written:  # noqa: PTH123  # a descriptor to sync
                os.fsync(written.fileno())
        Path(partial).replace(path)
        return path.stat().st_size
    except FileNotFoundError as error:
        raise CacheError(
            f"The state cannot be written to {path}: there is no folder {path.parent}.",
            hint="Make the folder first, or name another.",
            path=path,
        ) from error
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise CacheError(f"The state cannot be written to {path}: {error}.", path=path) from error
    finally:
        if partial is not None:
            with suppress(OSError):
                Path(partial).unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, str], dict[str, npt.NDArray[Any]]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            if metadata.get("format") != _FORMAT:
                raise ModelFileError(
                    f"{path} is no state that this version saved: its format is {metadata.get('format')!r}, "
                    f"not {_FORMAT!r}.",
                    path=path,
                )
            return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise ModelFileError(
            f"{path} cannot be read as a saved state: {reason}.",
            hint="Give a file that save_state has written.",
            path=path,
        ) from error
