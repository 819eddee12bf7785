"""Which slot a conversation runs in, and how much one step of a stream may hold."""

from __future__ import annotations

import hashlib

from tinykit import settings


def slot_for_key(key: str | None, slots: int) -> int:
    """The slot of a conversation's key, always the same one; -1, for any slot, without a key or slots.

    An empty key is none.
    """
    if not key or slots < 1:
        return -1
    # surrogates stand in names of files that are no UTF-8, and such a name may be a key
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "big") % slots


def checked_tokens_per_step(value: object = None) -> int:
    """The most tokens in one piece of a stream, 1 to 512: the argument, else the setting, else 32.

    Numbers outside are brought to the nearest end, fractions are cut off, and of a text its leading digits
    count. What is no number, or infinite, counts as 32, and does not ask the setting.

    Raises:
        OptionError: neither a number nor a text.
    """
    return int(settings.get("tokens_per_step", value))
