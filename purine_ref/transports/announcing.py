"""What rank 0 does for all: it alone reads and writes files, and tells the others what it read, or why it could not.

Bytes go as two kinds of messages from rank 0 to every other: how many there are, and then parts of `PART` bytes.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from itertools import count
from types import TracebackType
from typing import Self

import numpy as np

from purine_ref.operation import Array
from purine_ref.tensor import Tensor
from purine_ref.transports.inproc import PATIENCE
from purine_ref.transports.world import World

PART = 1 << 16
"""Bytes in a message."""

_LENGTH, _PART = Tensor((2,), "int64"), Tensor((PART // 8,), "int64")
_LENGTH_TAG, _PART_TAG = 0, 1


class Announcements:
    """One rank's end; with None for the world, this rank is all there is. Every rank makes the same calls.

    `name` is for messages; the text of `equal` must be the same on every rank, as the options of a command must that
    all are to run alike. Raises as `World.open`. Use it as a context manager, or call `close`.
    """

    def __init__(self, world: World | None, name: str = "announcements", equal: object = None) -> None:
        self._world = world
        self._rounds = count()
        self._parts = count()
        if world is not None:
            routes = {(0, _LENGTH_TAG): _LENGTH, (0, _PART_TAG): _PART}
            incoming = [{} if rank == 0 else routes for rank in range(world.size)]
            digest = hashlib.sha256(repr((name, PART, equal)).encode()).hexdigest()
            self._transport = world.open(name, digest, incoming)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, or alone."""
        return self._world is None or self._world.rank == 0

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        """What `make` gives on rank 0, the only one to call it. An OSError that it raises is raised on every rank.

        Raises PeerLost where rank 0 fails otherwise.
        """
        if self._world is None:
            return make()
        if not self.first:
            return self._listen()
        try:
            made = make()
        except OSError as error:
            self._tell(str(error).encode(), failed=True)
            raise
        self._tell(made, failed=False)
        return made

    def close(self) -> None:
        """Let go of the transport."""
        if self._world is not None:
            self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell(self, data: bytes, failed: bool) -> None:
        """Send bytes to all others."""
        self._send(_LENGTH_TAG, next(self._rounds), np.array([len(data), failed], np.int64))
        for start in range(0, len(data), PART):
            part = data[start : start + PART].ljust(PART, b"\0")
            self._send(_PART_TAG, next(self._parts), np.frombuffer(part, np.int64))

    def _send(self, tag: int, iteration: int, array: Array) -> None:
        for peer in range(1, self._transport.world):
            self._transport.send(peer, tag, iteration, array)

    def _listen(self) -> bytes:
        """Receive what rank 0 sends."""
        length, failed = self._take(_LENGTH_TAG, next(self._rounds), _LENGTH).tolist()
        parts = [self._take(_PART_TAG, next(self._parts), _PART).tobytes() for _ in range(0, length, PART)]
        data = b"".join(parts)[:length]
        if failed:
            raise OSError(f"rank 0: {data.decode()}")
        return data

    def _take(self, tag: int, iteration: int, tensor: Tensor) -> Array:
        arrived = threading.Event()
        self._transport.expect(0, tag, iteration, arrived.set)
        while not arrived.wait(PATIENCE):  # it is set, too, when rank 0 is lost; an interrupt is seen between two waits
            pass
        array = np.empty(tensor.shape, tensor.dtype)
        self._transport.take(0, tag, iteration, array)
        return array
