"""Raw TCP: one socket, no header, received straight into the array. It is what all others are compared with."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

from purine_ref.benchmarks.links.link import PATIENCE, Ends
from purine_ref.operation import Array


class Sockets:
    """See `Link`."""

    def __init__(self, ends: Ends) -> None:
        host, _, port = ends.address.removeprefix("tcp://").rpartition(":")
        self._socket = accepted((host, int(port))) if ends.end == 0 else connected((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(None)  # a timeout would be a poll before every call

    def expect(self, arrays: Sequence[Array]) -> None:
        """Nothing: bytes wait in the kernel."""

    def send(self, array: Array, place: int) -> None:
        """Hand all bytes to the kernel."""
        self._socket.sendall(array)

    def receive(self, into: Array, place: int) -> None:
        """Have the kernel write into the array."""
        receive_all(self._socket, memoryview(into))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def receive_all(end: socket.socket, view: memoryview) -> None:
    """Fill the view. Raises EOFError where the other end is gone."""
    done = 0
    while done < len(view):
        count = end.recv_into(view[done:])
        if count == 0:
            raise EOFError(f"the other end closed after {done} of {len(view)} bytes")
        done += count


def accepted(address: tuple[str, int]) -> socket.socket:
    """The one connection to a listening address. Raises TimeoutError."""
    with socket.create_server(address) as listening:
        listening.settimeout(PATIENCE)
        return listening.accept()[0]


def connected(address: tuple[str, int]) -> socket.socket:
    """A connection to an address where somebody will listen soon. Raises OSError when nobody does."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection(address, PATIENCE)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)
