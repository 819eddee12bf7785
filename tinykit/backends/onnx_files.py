"""A graph that is told where its weights lie, so that ONNX Runtime maps their files itself.

Files that are handed to ONNX Runtime in memory it copies. It maps what lies below one folder, under the names
that the graph has for it; links that lead out of that folder it refuses, and those of the hub's cache do. So
each name is replaced by the path of the real file below the folder that all of them share. That is done to
the bytes of the graph: nothing is written, and nothing but Python is needed to read them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# Numbers of the fields that lead to names of files:
# https://github.com/onnx/onnx/blob/v1.18.0/onnx/onnx.proto
_PARTS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {
        5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse tensor", 23: "sparse tensor",
    },
    "sparse tensor": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external data"},
}  # fmt: skip
_KEY, _VALUE = 1, 2  # of an entry of a tensor's external data
_LOCATION = b"location"
_BYTES_FIELD = 2  # the wire type of texts, bytes and messages
_FIXED_SIZES = {1: 8, 5: 4}  # of other wire types
# of a graph without its weights: ONNX Runtime keeps the bytes for as long as the session is open
_MOST_BYTES = 16 * 2**20


@dataclass(frozen=True)
class LocatedGraph:
    """The bytes of a graph, and the folder from which its names lead to the files with its weights."""

    model: bytes
    folder: Path


def locate(graph: Path, data: Mapping[str, Path]) -> LocatedGraph | None:
    """The graph with the places of its files, by the names that it has for them; None if it cannot be told.

    That is so where they lie on several drives, a name is not text, or the graph is damaged, refers to a file
    that is not among them, or is large itself.
    """
    try:
        if graph.stat().st_size > _MOST_BYTES:
            return None
        real = {name: file.resolve(strict=True) for name, file in data.items()}
        folder = Path(os.path.commonpath([file.parent for file in real.values()]))
        str(folder).encode()
        names = {name.encode(): file.relative_to(folder).as_posix().encode() for name, file in real.items()}
        return LocatedGraph(renamed(graph.read_bytes(), names), folder)
    except (OSError, ValueError, LookupError, RuntimeError):  # RuntimeError: links in a circle, before 3.13
        return None


def renamed(model: bytes, names: Mapping[bytes, bytes]) -> bytes:
    """An ONNX model with other names for the files with its weights.

    Raises:
        LookupError: it has a name that is not among `names`, or ends in the middle of a field.
        ValueError: this is not a model.
    """
    return _renamed(model, "model", names)


def _renamed(message: bytes, kind: str, names: Mapping[bytes, bytes]) -> bytes:
    if kind == "external data":
        return _renamed_entry(message, names)
    pieces, kept = [], 0
    for number, at, start, end in _fields(message):
        part = _PARTS[kind].get(number)
        if part is not None and message.find(_LOCATION, start, end) >= 0:
            changed = _renamed(message[start:end], part, names)
            pieces += [message[kept:at], _varint(len(changed)), changed]
            kept = end
    return b"".join([*pieces, message[kept:]])


def _renamed_entry(message: bytes, names: Mapping[bytes, bytes]) -> bytes:
    places = {number: (at, start, end) for number, at, start, end in _fields(message)}
    _, start, end = places[_KEY]
    if message[start:end] != _LOCATION:
        return message
    at, start, end = places[_VALUE]
    name = names[message[start:end]]
    return b"".join([message[:at], _varint(len(name)), name, message[end:]])


def _fields(message: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Number of each field of bytes, and where its length, these bytes, and the next field begin.

    The encoding: https://protobuf.dev/programming-guides/encoding/
    """
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        kind = tag & 7
        if kind == _BYTES_FIELD:
            length, start = _read_varint(message, at)
            end = start + length
            if end > len(message):
                raise LookupError("a field ends behind its message")
            yield tag >> 3, at, start, end
            at = end
        elif kind == 0:
            _, at = _read_varint(message, at)
        elif kind in _FIXED_SIZES:
            at += _FIXED_SIZES[kind]
        else:
            raise ValueError(f"no such wire type: {kind}")


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    """A number, seven bits a byte, and where it ends."""
    if (value := message[at]) < 0x80:  # most of them
        return value, at + 1
    value = 0
    for shift in range(0, 64, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than 64 bits")


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
