"""Messages as bytes: four bytes of length, most significant first, then one JSON object in UTF-8.

Nothing else is ever read from a connection, and nothing is unpickled. Numbers are written so that a float
comes back bit for bit; minus infinity is Python's ``-Infinity``.
"""

from __future__ import annotations

import json
import struct
from typing import Any

VERSION = 1
MAX_FRAME_BYTES = 16 * 2**20
MAX_HELLO_BYTES = 64 * 2**10  # of a frame before the greeting
_LENGTH = struct.Struct(">I")

Message = dict[str, Any]


class FrameError(Exception):
    """Bytes that are no message; after `is_fatal` ones it is not known where the next message begins."""

    def __init__(self, text: str, *, is_fatal: bool) -> None:
        super().__init__(text)
        self.is_fatal = is_fatal


def pack(message: Message) -> bytes:
    """A message as the bytes of a frame.

    Raises:
        FrameError: it is larger than the limit.
    """
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(
            f"a message has {len(body):,} bytes, and {MAX_FRAME_BYTES:,} is the limit", is_fatal=False
        )
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Puts messages together from bytes as they arrive, in pieces of any size."""

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take bytes that have arrived."""
        self._buffer += data

    def take(self) -> Message | None:
        """The next message, or None while it is not whole.

        Raises:
            FrameError: the next frame is larger than the limit (fatal), or is no JSON object (it is skipped).
        """
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > self.limit_bytes:
            raise FrameError(
                f"a frame of {length:,} bytes was announced, and {self.limit_bytes:,} is the limit",
                is_fatal=True,
            )
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"a frame is no JSON: {error}", is_fatal=False) from error
        if not isinstance(message, dict):
            raise FrameError(f"a frame is a {type(message).__name__}, not an object", is_fatal=False)
        return message
