"""One array on its way: out, as frames of at most a chunk; in, as the frames that have come, until it is taken."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import zmq

from purine_ref.operation import Array
from purine_ref.transports.zeromq.wire import chunk_end

LITTLE = sys.byteorder == "little"
"""Whether this machine's order of bytes is the wire's. What is sent and taken is in the machine's: that was checked."""

SMALL = 65_536
"""Payloads below this many bytes are copied out of ZeroMQ's memory at once: cheaper than to hold on to it."""

Bytes = Any
"""A buffer of bytes: `bytes`, a memoryview, or a `zmq.Frame`'s."""


def wire_bytes(array: Array) -> Array:
    """The bytes of an array as they go over the wire, C order and little-endian: of the array itself where it is so."""
    if not _plain(array):
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return _flat(array)


class Parcel:
    """What has come of one message. It describes itself by `dtype` and `shape`, as an array does."""

    __slots__ = ("_flat", "_frames", "_target", "dtype", "iteration", "received", "shape", "size")

    def __init__(self, dtype: str, shape: tuple[int, ...], iteration: int) -> None:
        self.dtype = dtype
        self.shape = shape
        self.iteration = iteration
        self.size = math.prod(shape) * np.dtype(dtype).itemsize
        self.received = 0
        self._frames: list[Bytes] = []
        self._target: Array | None = None  # where the message goes, ...
        self._flat: Array | None = None  # ... and its bytes: chunks are written there, not kept

    @property
    def complete(self) -> bool:
        """Whether all has come."""
        return self.received == self.size

    def next_end(self) -> int:
        """Where the chunk that comes next ends."""
        return chunk_end(self.size, self.received)

    def aim(self, target: Array) -> None:
        """Write what has come, and each chunk that comes, into an array, if it can take bytes as they are."""
        if target.shape == self.shape and target.dtype == self.dtype and _plain(target):
            self._target, self._flat = target, _flat(target)
            self._copy(self._flat)
            self._frames.clear()

    def add(self, payload: zmq.Frame) -> None:
        """Take the next chunk."""
        start, self.received = self.received, self.received + len(payload)
        if self._flat is not None:
            self._flat[start : self.received] = np.frombuffer(payload.buffer, np.uint8)
        else:
            self._frames.append(payload.bytes if len(payload) < SMALL else payload.buffer)

    def write(self, into: Array) -> None:
        """Copy the array into another of its shape and dtype, of any layout; nothing if it is there."""
        if into is self._target:
            return
        if self._target is not None:
            into[...] = self._target
        elif _plain(into):
            self._copy(_flat(into))
        else:
            held = np.empty(self.size, np.uint8)
            self._copy(held)
            into[...] = held.view(np.dtype(self.dtype).newbyteorder("<")).reshape(self.shape)

    def _copy(self, flat: Array) -> None:
        offset = 0
        for frame in self._frames:
            piece = np.frombuffer(frame, np.uint8)
            flat[offset : offset + len(piece)] = piece
            offset += len(piece)


def _plain(array: Array) -> bool:
    """Whether the bytes of an array lie as they do on the wire."""
    return LITTLE and bool(array.flags.c_contiguous)


def _flat(array: Array) -> Array:
    """The bytes of a plain array, to be written."""
    return array.reshape(-1).view(np.uint8)
