"""Keep the state of a conversation in a file, and go on from it in another process.

The file (`tinykit.generation.state_file`) names the model, its build and its precision.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tinykit.backends.base import Array, State
from tinykit.errors import OptionError
from tinykit.generation.engine import Engine
from tinykit.generation.slots import SlotName, slot_in_use
from tinykit.generation.state_file import read_state, write_state


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
    return write_state(path, token_ids, arrays, engine.identity)


def restore_state(engine: Engine, path: str | Path, *, slot: SlotName | None = None) -> int:
    """Read a state into a slot, or among the states that prompts reuse; returns how many tokens it has seen.

    Raises:
        ModelFileError: the file is no state, is damaged, or belongs to another model, build or precision.
        BackendError: a generation is running in the slot.
    """
    path = _checked_path(path)
    ids, arrays = read_state(path, engine.identity, engine.backend.info.vocab_size)
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


def _checked_path(path: str | Path) -> Path:
    try:
        found = Path(path).expanduser()
        if not found.name or found.is_dir():
            raise ValueError("it is a folder" if str(path).strip() else "it is empty")
        return found
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: the home of nobody
        raise OptionError(
            f"path must name a file, not {path!r}: {error}",
            hint='For example: "chat.state"',
            name="path",
            value=path,
        ) from error


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
