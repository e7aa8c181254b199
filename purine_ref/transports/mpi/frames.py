"""The messages between ranks over MPI: a few fields as JSON, and the bytes of an array behind them or on their own.

An array of at most `INLINE` bytes travels in the frame; a larger one follows on MPI's second tag, straight from the
sender's copy into the receiver's array, in pieces of at most `PIECE` bytes, since not every MPI counts beyond 2^31.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from purine_ref.errors import Refused
from purine_ref.operation import Array
from purine_ref.tensor import Tensor
from purine_ref.transports.waits import Loss, Wait

PROTOCOL = 1
"""The version of what is said here, and how; peers of another are refused."""

INLINE = 32 << 10
"""Bytes of the largest array that travels inside a frame."""

PIECE = 1 << 30
"""Bytes of the largest MPI message."""

LIMIT = 64 << 10
"""Bytes of the longest frame, without an array."""

_LENGTH = struct.Struct("<I")


def pack(fields: dict[str, Any], array: Array | None = None) -> bytes:
    """One frame: the length of the fields, the fields, and the bytes of a small array."""
    text = json.dumps(fields, separators=(",", ":")).encode()
    return _LENGTH.pack(len(text)) + text + (b"" if array is None else array.tobytes())


def unpack(frame: memoryview) -> tuple[dict[str, Any], memoryview]:
    """The fields of a frame, and the bytes behind them. Raises Refused for what is not a frame."""
    if len(frame) < _LENGTH.size:
        raise Refused(f"frame: expected at least {_LENGTH.size} bytes, got {len(frame)}")
    end = _LENGTH.size + _LENGTH.unpack_from(frame)[0]
    if end > min(len(frame), LIMIT):
        raise Refused(f"frame of {len(frame)} bytes: expected fields of at most {LIMIT}, got {end}")
    try:
        fields = json.loads(bytes(frame[_LENGTH.size : end]))
    except (ValueError, RecursionError) as error:
        raise Refused(f"frame: expected JSON, got {error}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("kind"), str):
        raise Refused("frame: expected an object that says its kind")
    return fields, frame[end:]


def integer(fields: dict[str, Any], name: str, least: int = 0) -> int:
    """An integer field. Raises Refused for one that is missing, of another type, too small, or above 64 bits."""
    value = fields.get(name)
    if type(value) is not int or not least <= value < 1 << 63:
        raise Refused(f"frame of kind {fields['kind']!r}: expected {name!r} to be an integer from {least} up")
    return value


def text(fields: dict[str, Any], name: str) -> str:
    """A text field. Raises Refused for one that is missing or of another type."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise Refused(f"frame of kind {fields['kind']!r}: expected {name!r} to be text")
    return value


def lost(loss: Loss) -> dict[str, Any]:
    """The fields that tell of a loss."""
    return {"kind": "lost", "rank": loss.rank, "reason": loss.reason, "waits": loss.waits}


def loss_of(fields: dict[str, Any]) -> Loss:
    """The loss that a frame tells of. Raises Refused for fields that are missing or of another type."""
    waits = fields.get("waits")
    if not isinstance(waits, list) or not all(isinstance(line, str) for line in waits):
        raise Refused("frame of kind 'lost': expected 'waits' to be lines of text")
    return Loss(integer(fields, "rank"), text(fields, "reason"), tuple(waits))


def waits(fields: dict[str, Any]) -> list[Wait]:
    """What a beat says that its rank waits for. Raises Refused for what is not that."""
    value = fields.get("waits")
    shapes = {(str, int, int, int, int)}
    if not isinstance(value, list) or {tuple(map(type, wait)) for wait in value if isinstance(wait, list)} - shapes:
        raise Refused("frame of kind 'beat': expected 'waits' to be a list of waits")
    return [(what, graph, peer, tag, iteration) for what, graph, peer, tag, iteration in value]


def outgoing(array: Array) -> Array:
    """A copy for the way: C order, little-endian."""
    return np.array(array, dtype=array.dtype.newbyteorder("<"), order="C")


def buffer(tensor: Tensor) -> Array:
    """Where an array that comes is received: C order, little-endian."""
    return np.empty(tensor.shape, np.dtype(tensor.dtype).newbyteorder("<"))


def octets(array: Array) -> memoryview:
    """The memory of an array in C order, as bytes."""
    return memoryview(array.reshape(-1).view(np.uint8))


def pieces(array: Array) -> Iterator[memoryview]:
    """The memory of an array in C order, at most `PIECE` bytes at a time."""
    view = octets(array)
    for start in range(0, len(view), PIECE):
        yield view[start : start + PIECE]
