"""One ZeroMQ message for each array, by pyzmq, without a copy where it is sent: what one would write first.

The receiver copies it into the array. Nothing says who the peer is, whether it lives, or which array it was.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from purine_ref.benchmarks.links.link import PATIENCE, Ends
from purine_ref.operation import Array


class Message:
    """See `Link`. Raises ImportError where pyzmq is not installed, `zmq.Again` for what does not come in time."""

    def __init__(self, ends: Ends) -> None:
        import zmq  # a peer, which need not be there

        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            self._socket.setsockopt(option, 0)  # else a sender would wait for a receiver that has yet to come
        self._socket.setsockopt(zmq.LINGER, 1000)
        if ends.end == 0:
            self._socket.bind(ends.address)
        else:
            self._socket.connect(ends.address)
        self._patience = round(PATIENCE * 1000)

    def expect(self, arrays: Sequence[Array]) -> None:
        """Nothing: messages wait in a queue."""

    def send(self, array: Array, place: int) -> None:
        """Queue a message that is the array's memory."""
        self._socket.send(array, copy=False)

    def receive(self, into: Array, place: int) -> None:
        """Copy the next message into the array."""
        into[...] = np.frombuffer(self._socket.recv(copy=False).buffer, np.uint8)

    def close(self) -> None:
        """Close the socket and its context."""
        self._socket.close()
        self._context.term()
