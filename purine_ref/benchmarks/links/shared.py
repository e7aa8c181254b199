"""Shared memory: the sender copies into it, the receiver out of it, and a socket carries one byte for each that is new
or free again. With two blocks each way, both copy at once.

The memory has no name: it is a file in memory, which goes from process to process over the socket, so nothing is left
behind however they end.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from purine_ref.benchmarks.links.link import PATIENCE, Ends
from purine_ref.benchmarks.links.sockets import receive_all
from purine_ref.operation import Array

BLOCKS = 2
NEW, FREE = b"n", b"f"


class SharedMemory:
    """See `Link`. Needs `memfd_create`, so Linux."""

    def __init__(self, ends: Ends) -> None:
        largest = max(ends.counts)
        path = ends.address.removeprefix("ipc://")
        if ends.end == 0:
            self._socket = _accepted(path)
            file = os.memfd_create("bench transport")
            os.ftruncate(file, 2 * BLOCKS * largest)
            socket.send_fds(self._socket, [b"m"], [file])
        else:
            self._socket = _connected(path)
            _, [file], _, _ = socket.recv_fds(self._socket, 1, 1)
        self._memory = mmap.mmap(file, 2 * BLOCKS * largest)
        os.close(file)
        blocks = np.frombuffer(self._memory, np.uint8).reshape(2, BLOCKS, largest)
        self._out, self._in = blocks[ends.end], blocks[1 - ends.end]
        self._sent = self._received = 0
        self._told: Counter[bytes] = Counter({FREE: BLOCKS})

    def expect(self, arrays: Sequence[Array]) -> None:
        """Nothing: a block waits until it is received."""

    def send(self, array: Array, place: int) -> None:
        """Copy into the next block, once it is free, and say so."""
        self._wait(FREE)
        self._out[self._sent % BLOCKS, : array.size] = array
        self._sent += 1
        self._socket.sendall(NEW)

    def receive(self, into: Array, place: int) -> None:
        """Copy out of the next block, once it is new, and say so."""
        self._wait(NEW)
        into[...] = self._in[self._received % BLOCKS, : into.size]
        self._received += 1
        self._socket.sendall(FREE)

    def close(self) -> None:
        """Close the socket, once the other end has said its last word; the memory goes with the arrays."""
        with self._socket, contextlib.suppress(OSError):
            self._socket.settimeout(PATIENCE)
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(BLOCKS):
                pass

    def _wait(self, word: bytes) -> None:
        """Read words until this one has come once more than it was waited for."""
        one = bytearray(1)
        while not self._told[word]:
            receive_all(self._socket, memoryview(one))
            self._told[bytes(one)] += 1
        self._told[word] -= 1


def _accepted(path: str) -> socket.socket:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(1)
        listening.settimeout(PATIENCE)
        end = listening.accept()[0]
    end.settimeout(None)
    return end


def _connected(path: str) -> socket.socket:
    """A connection to where somebody will listen soon. Raises OSError when nobody does."""
    limit = time.monotonic() + PATIENCE
    while True:
        end = socket.socket(socket.AF_UNIX)
        try:
            end.connect(path)
            return end
        except OSError:
            end.close()
            if time.monotonic() > limit:
                raise
            time.sleep(0.01)
