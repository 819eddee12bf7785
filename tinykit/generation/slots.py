"""Slots: conversations whose state is kept, one generation at a time in each."""

from __future__ import annotations

import hashlib
import itertools
import numbers
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tinykit.backends.base import State
from tinykit.errors import BackendError, OptionError
from tinykit.generation.run import Run
from tinykit.generation.turns import Bell

SlotName = int | str
_POLL_S = 0.05  # how often a waiting request looks whether it was cancelled
_PASSING = "\0"  # what names of slots begin with that live no longer than a call


@dataclass
class Slot:
    """The token ids that a slot's state has seen, who is using it, and who waits for it."""

    token_ids: tuple[int, ...] = ()
    state: State | None = None
    holder: Run | None = None
    thread: int | None = None  # of the holder
    line: dict[Run, Bell] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Memory held by the state."""
        return self.state.size_bytes if self.state is not None else 0

    @property
    def is_in_use(self) -> bool:
        """Whether a run holds it. One that an interrupt tore off holds nothing, whatever was left undone."""
        holder = self.holder
        return holder is not None and not holder.is_left


def passing_slot(number: int) -> SlotName:
    """A name for a slot of a single call: its memory is the first to be given up."""
    return f"{_PASSING}{number}"


def checked_slot(slot: object) -> SlotName | None:
    """A slot's number from 0, or its name; None and -1 are no slot.

    Raises:
        OptionError: anything else.
    """
    if slot is None:
        return None
    if not isinstance(slot, bool) and isinstance(slot, numbers.Integral) and int(slot) >= -1:
        return None if slot == -1 else int(slot)
    if isinstance(slot, str) and slot:
        return slot
    raise OptionError(
        f"slot must be a number from 0, a name, or -1 for none, not {slot!r}.",
        hint="For example: slot=0 or slot='ada'",
        name="slot",
        value=slot,
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


def slot_key(
    *,
    conversation: str | None = None,
    segments: Iterable[tuple[str, bool]] = (),
    prefix: str | None = None,
    key: str | None = None,
) -> str | None:
    """The name by which requests that belong together find their slot: for `slot`, or `slot_for_key`.

    The first of these that is there counts, marked with its kind so that no two meet: the conversation's id,
    the beginning of the prompt that stays the same, the prompt's prefix, the caller's own key. None without
    any of them.

    Args:
        conversation: What the caller calls the conversation.
        segments: Parts of the prompt, each with whether it stays the same from turn to turn; those from the
            first changing one on do not count.
        prefix: The text that prompts have in common.
        key: A name of the caller's.
    """
    if conversation:
        return f"conversation:{conversation}"
    stable = [text for text, _ in itertools.takewhile(lambda segment: segment[1], segments)]
    if stable:
        return f"segments:{_short_digest(*stable)}"
    if prefix:
        return f"prefix:{_short_digest(prefix)}"
    return f"key:{key}" if key else None


def _short_digest(*texts: str) -> str:
    """16 hex digits; where one text ends and the next begins makes a difference."""
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:16]


class Slots:
    """All slots of a model."""

    def __init__(self) -> None:
        self._slots: dict[SlotName, Slot] = {}
        # taken twice where the garbage collector closes a stream in the middle of what is done here
        self._lock = threading.RLock()

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
        if not self._drop(name, slot):
            raise slot_in_use(name)
        return True

    def _drop(self, name: SlotName, slot: Slot) -> bool:
        """Forget a slot unless it is in use; who waits for it takes a new one."""
        with self._lock:
            if slot.is_in_use:
                return False
            if self._slots.get(name) is slot:
                del self._slots[name]
            slot.state, slot.token_ids = None, ()
        return True

    def shrink(self, budget_bytes: int, *, except_for: Slot | None = None, passing: bool = False) -> None:
        """Drop the slots that were used longest ago, until the states of all fit into the budget.

        With `passing`, only slots of single calls go.
        """
        with self._lock:
            for name in [name for name, slot in self._slots.items() if slot is except_for]:
                self._slots[name] = self._slots.pop(name)  # the last is the most recently used
        for name, slot in self.items():
            if self.size_bytes <= budget_bytes:
                return
            if slot is not except_for and (not passing or str(name).startswith(_PASSING)):
                self._drop(name, slot)

    def clear(self) -> None:
        """Forget all of them."""
        self._slots.clear()

    def put(self, name: SlotName, token_ids: tuple[int, ...], state: State) -> None:
        """Let a slot go on from a state.

        Raises:
            BackendError: a generation is running in it.
        """
        with self._lock:
            slot = self[name]
            if slot.is_in_use:
                raise slot_in_use(name)
            slot.token_ids, slot.state = token_ids, state

    @contextmanager
    def hold(self, name: SlotName, run: Run, is_cancelled: Callable[[], bool]) -> Iterator[Slot]:
        """Wait until nobody else uses the slot, and hold it; gives up waiting once the request is cancelled.

        Those who wait get it in the order in which they came. It is held until the block ends or the run is
        left, whichever comes first.

        Raises:
            BackendError: this thread has an open stream in the slot, so waiting would never end.
        """
        slot = self._waited_for(name, run, is_cancelled)
        try:
            yield slot or Slot()  # of a request that will do nothing
        finally:
            if slot is not None and slot.holder is run:  # not after others have taken what was left
                slot.holder = None
                for told in list(slot.line.values())[:1]:
                    told.ring()

    def _waited_for(self, name: SlotName, run: Run, is_cancelled: Callable[[], bool]) -> Slot | None:
        """The slot of that name, held by the run; None once the request is cancelled."""
        slot, told, me = self[name], Bell(), threading.get_ident()
        try:
            while not is_cancelled():
                if self[name] is not slot:  # it was freed meanwhile
                    slot.line.pop(run, None)
                    slot = self[name]
                slot.line[run] = told
                with self._lock:
                    is_next = list(slot.line)[:1] == [run] and self._slots.get(name) is slot
                    if is_next and not slot.is_in_use:
                        slot.holder, slot.thread = run, me
                        return slot
                if slot.is_in_use and slot.thread == me:
                    raise BackendError(
                        f"A stream of slot {name!r} is still open in this thread.",
                        hint="Read it to its end or close it before the next call.",
                    )
                told.wait(_POLL_S)
            return None
        finally:
            slot.line.pop(run, None)


def slot_in_use(name: SlotName) -> BackendError:
    """The error of whoever wants to change a slot in which a generation is running."""
    return BackendError(f"Slot {name!r} is in use.", hint="Cancel or read its stream to the end first.")
