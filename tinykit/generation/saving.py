"""Keep the state of a conversation in a file, and go on from it in another process.

The file is in the safetensors format (https://github.com/huggingface/safetensors): no code can hide in it.
Its metadata names the model, its build and its precision, since a state means nothing to another one.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tinykit.backends.base import Array, State
from tinykit.errors import CacheError, ModelFileError, OptionError
from tinykit.generation.engine import Engine
from tinykit.generation.slots import SlotName, slot_in_use

_FORMAT = "tinykit-state-1"
_TOKENS = "token_ids"
_PREFIX = "state."


def save_state(engine: Engine, path: str | Path, *, slot: SlotName | None = None) -> int:
    """Write the state of a slot, or of the chat that was answered last, and return the file's size in bytes.

    Titles and choices are no chats. A file of that name is replaced only once the new one is whole.

    Raises:
        OptionError: there is nothing to save, or `path` is no path.
        BackendError: a generation is running in the slot.
        CacheError: the file cannot be written; folders are not made.
    """
    path = _checked_path(path)
    token_ids, arrays = engine.turns.take(lambda: _dumped(*_kept(engine, slot)))
    tensors = {_PREFIX + name: array for name, array in arrays.items()}
    tensors[_TOKENS] = np.asarray(token_ids, np.int64)
    return _write(path, tensors, {"format": _FORMAT, "sha256": _digest(tensors), **engine.identity})


def restore_state(engine: Engine, path: str | Path, *, slot: SlotName | None = None) -> int:
    """Read a state into a slot, or among the states that prompts reuse; returns how many tokens it has seen.

    Raises:
        ModelFileError: the file is no state, is damaged, or belongs to another model, build or precision.
        BackendError: a generation is running in the slot.
    """
    path = _checked_path(path)
    metadata, tensors = _read(path)
    for name, own in engine.identity.items():
        if metadata.get(name) != own:
            raise ModelFileError(
                f"{path} was saved by another model: its {name} is {metadata.get(name)!r}, "
                f"here it is {own!r}.",
                hint="Open the model that saved it, with the same dtype.",
                path=path,
            )
    if metadata.get("sha256") != _digest(tensors):
        raise ModelFileError(f"{path} is damaged: its checksum does not fit.", path=path)
    ids = _checked_ids(tensors.pop(_TOKENS, None), engine.backend.info.vocab_size, path)
    arrays = {name.removeprefix(_PREFIX): array for name, array in tensors.items()}
    engine.turns.take(lambda: _put(engine, slot, ids, engine.backend.load_state(arrays, len(ids))))
    return len(ids)


def _dumped(token_ids: tuple[int, ...], state: State) -> tuple[tuple[int, ...], dict[str, Array]]:
    """Copies, since what goes on in the slot while the file is written overwrites the state."""
    return token_ids, {name: np.array(array, order="C") for name, array in state.dump().items()}


def _put(engine: Engine, slot: SlotName | None, token_ids: tuple[int, ...], state: State) -> None:
    if slot is None:
        engine.cache.keep(token_ids, state, is_answered=True)
    else:
        engine.slots.put(slot, token_ids, state)


def _digest(tensors: Mapping[str, npt.NDArray[Any]]) -> str:
    """A checksum of the names and the contents."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(np.ascontiguousarray(tensors[name]).data)
    return found.hexdigest()


def _checked_path(path: str | Path) -> Path:
    try:
        return Path(path).expanduser()
    except (TypeError, RuntimeError) as error:  # no path; the home of a user that does not exist
        raise OptionError(
            f"path must name a file, not {path!r}: {error}",
            hint='For example: "chat.state"',
            name="path",
            value=path,
        ) from error


def _checked_ids(token_ids: npt.NDArray[Any] | None, vocab_size: int, path: Path) -> tuple[int, ...]:
    """The token ids of a file as plain numbers."""
    is_list = token_ids is not None and token_ids.ndim == 1 and token_ids.dtype == np.int64
    if token_ids is None or not is_list or not all(0 <= index < vocab_size for index in token_ids):
        raise ModelFileError(f"{path} is damaged: it lacks the ids of the tokens that were seen.", path=path)
    return tuple(token_ids.tolist())


def _kept(engine: Engine, slot: SlotName | None) -> tuple[tuple[int, ...], State]:
    if slot is None:
        if (last := engine.cache.last) is not None:
            return last
        raise OptionError(
            "There is no state to save: no chat was answered yet, or its state was dropped.",
            hint="Name a slot, whose state stays: chat(..., slot=0), then save_state(path, slot=0).",
            name="slot",
            value=slot,
        )
    if slot not in engine.slots or (state := engine.slots[slot].state) is None:
        if slot in engine.slots and engine.slots[slot].is_in_use:
            raise slot_in_use(slot)
        names = [name for name, one in engine.slots.items() if one.state is not None]
        raise OptionError(
            f"Slot {slot!r} holds no state.",
            hint=f"Those that do: {', '.join(map(repr, names)) or 'none'}.",
            name="slot",
            value=slot,
        )
    return engine.slots[slot].token_ids, state


def _write(path: Path, tensors: dict[str, npt.NDArray[Any]], metadata: dict[str, str]) -> int:
    from safetensors.numpy import save_file

    partial = None
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        os.close(handle)
        save_file(tensors, partial, metadata)
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
