"""Slots: conversations whose state is kept, one generation at a time in each."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tinykit.backends.base import State
from tinykit.errors import BackendError, OptionError

SlotName = int | str
_POLL_S = 0.05  # how often a waiting request looks whether it was cancelled


@dataclass
class Slot:
    """The token ids that a slot's state has seen, and who is using it."""

    token_ids: tuple[int, ...] = ()
    state: State | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    owner: int | None = None  # the thread whose request is running

    @property
    def size_bytes(self) -> int:
        """Memory held by the state."""
        return self.state.size_bytes if self.state is not None else 0


def checked_slot(slot: object) -> SlotName | None:
    """A slot's number from 0, or its name; None and -1 are no slot.

    Raises:
        OptionError: anything else.
    """
    if slot is None or (isinstance(slot, int) and not isinstance(slot, bool) and slot == -1):
        return None
    if isinstance(slot, int) and not isinstance(slot, bool) and slot >= 0:
        return slot
    if isinstance(slot, str) and slot:
        return slot
    raise OptionError(
        f"slot must be a number from 0, a name, or -1 for none, not {slot!r}.", name="slot", value=slot
    )


def slot_for_key(key: str | None, slots: int) -> int:
    """The slot of a conversation's key, always the same one; -1, for any slot, without a key or slots.

    An empty key is none.
    """
    if not key or slots < 1:
        return -1
    # surrogates stand in names of files that are no UTF-8, and such a name may be a key
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "big") % slots


class Slots:
    """All slots of a model."""

    def __init__(self) -> None:
        self._slots: dict[SlotName, Slot] = {}
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """Memory held by all of them."""
        return sum(slot.size_bytes for slot in list(self._slots.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._slots

    def __getitem__(self, name: SlotName) -> Slot:
        """The slot of that name, made now if there is none."""
        with self._lock:
            return self._slots.setdefault(name, Slot())

    def items(self) -> list[tuple[SlotName, Slot]]:
        """Names and slots, the least recently used first."""
        return list(self._slots.items())

    def free(self, name: SlotName) -> bool:
        """Forget a slot's state; False if there is no such slot.

        Raises:
            BackendError: a generation is running in it.
        """
        slot = self._slots.get(name)
        if slot is None:
            return False
        if not slot.lock.acquire(blocking=False):
            raise BackendError(
                f"Slot {name!r} is in use.", hint="Cancel or read its stream to the end first."
            )
        with self._lock:
            del self._slots[name]
        slot.lock.release()
        return True

    def shrink(self, budget_bytes: int, *, except_for: Slot) -> None:
        """Drop the states of the slots that were used longest ago, until all fit into the budget."""
        with self._lock:
            for name in [name for name, slot in self._slots.items() if slot is except_for]:
                self._slots[name] = self._slots.pop(name)  # the last is the most recently used
        for _, slot in self.items():
            if self.size_bytes <= budget_bytes:
                return
            if slot is not except_for and slot.lock.acquire(blocking=False):
                slot.state, slot.token_ids = None, ()
                slot.lock.release()

    def clear(self) -> None:
        """Forget all of them."""
        self._slots.clear()

    @contextmanager
    def hold(self, name: SlotName, is_cancelled: Callable[[], bool]) -> Iterator[Slot]:
        """Wait until nobody else uses the slot, and hold it; gives up waiting once the request is cancelled.

        Raises:
            BackendError: this thread has an open stream in the slot, so waiting would never end.
        """
        slot = self[name]
        if slot.owner == threading.get_ident():
            raise BackendError(
                f"A stream of slot {name!r} is still open in this thread.",
                hint="Read it to its end or close it before the next call.",
            )
        while not (is_held := slot.lock.acquire(timeout=_POLL_S)) and not is_cancelled():
            pass
        if not is_held:
            yield Slot()  # of a request that will do nothing
            return
        slot.owner = threading.get_ident()
        try:
            yield slot
        finally:
            slot.owner = None
            slot.lock.release()
