"""A port that runs already, behind a ZeroMQ address: the same messages, one frame each, from a REQ to a REP socket.

pyzmq is imported when the first socket is made, so that nobody else waits for it.
"""

from __future__ import annotations

from typing import Any

from purine_ref.conformance.driving.faults import PortFault
from purine_ref.conformance.driving.messages import LONGEST
from purine_ref.errors import Refused

PREFIXES = ("tcp://", "ipc://")
"""How an address begins."""


def is_address(text: str) -> bool:
    """Whether a port is named by its address and not by a command."""
    return text.startswith(PREFIXES)


class Socket:
    """A connection to a port. It is of no further use once a reply has not come: a REQ socket waits for it forever.

    Raises Refused for an address that is none.
    """

    def __init__(self, address: str) -> None:
        import zmq

        self._context = zmq.Context()
        self._socket: Any = self._context.socket(zmq.REQ)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.MAXMSGSIZE, LONGEST)
        try:
            self._socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise Refused(f"the address {address!r} cannot be connected to: {error}") from None

    def exchange(self, message: bytes, seconds: float, what: str) -> bytes:
        """Send a message and return the reply. Raises PortFault when none comes in time, or one of several frames."""
        self._socket.send(message)
        if not self._socket.poll(int(seconds * 1000)):
            raise PortFault("hung", f"{what}: no reply in {seconds:g} s")
        frames: list[bytes] = self._socket.recv_multipart()
        if len(frames) != 1:
            raise PortFault("garbage", f"{what}: expected one frame, got {len(frames)}")
        return frames[0]

    def finish(self) -> None:
        """Nothing to see: the port's process is somebody else's."""

    def close(self) -> None:
        """Let go of the connection."""
        self._socket.close()
        self._context.term()
