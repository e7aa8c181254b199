"""The sockets of one rank, with the options and the keys that they need before they are bound or connected."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable

import zmq

from purine_ref.errors import Refused
from purine_ref.transports.keys import Keys
from purine_ref.transports.zeromq.addresses import Endpoint
from purine_ref.transports.zeromq.admission import Admission
from purine_ref.transports.zeromq.handshakes import FAILED
from purine_ref.transports.zeromq.wire import CHUNK, HEADER_LIMIT

FRAME_LIMIT = 2 * max(CHUNK, HEADER_LIMIT)
"""Most bytes of a frame: ZeroMQ ends a connection that announces more, before it takes memory."""

BACKLOG = 128
"""Messages that ZeroMQ holds of one connection; while there are more, the sender's system waits. None is dropped."""

REFUSALS = 16
"""Refusals that wait for a stranger to read them; more are dropped, or one that never reads would fill the memory."""


class SocketMaker:
    """Makes the sockets of a rank, in a context of its own; `refused` is told of strangers without a right key.

    A peer may be silent for `timeout` seconds: by then ZeroMQ's own attempts must have failed several times.
    """

    def __init__(self, timeout: float, keys: Keys | None, refused: Callable[[str], None]) -> None:
        self._timeout = timeout
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.admission = Admission(self._context, keys, refused)

    def listen(self, endpoint: Endpoint) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """A ROUTER that is bound, and its monitor of `FAILED` handshakes. Raises Refused where it cannot be bound."""
        router = self._make(zmq.ROUTER, endpoint)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.SNDHWM, REFUSALS)
        self.admission.listen(router)
        monitor = router.get_monitor_socket(FAILED)
        try:
            _require_unused(endpoint)
            router.bind(str(endpoint))
        except (OSError, zmq.ZMQError) as error:
            self._context.destroy(0)
            raise Refused(f"{endpoint} cannot be listened at: {os.strerror(error.errno or 0)}") from None
        return router, monitor

    def connect(self, endpoint: Endpoint, key: str) -> zmq.Socket[bytes]:
        """A DEALER that can be connected to an endpoint, whose public key is `key`, if there are keys."""
        dealer = self._make(zmq.DEALER, endpoint)
        self.admission.connect(dealer, key)
        dealer.setsockopt(zmq.RECONNECT_IVL, 50)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        dealer.setsockopt(zmq.CONNECT_TIMEOUT, max(100, int(200 * self._timeout)))
        return dealer

    def close(self) -> None:
        """Wait until all sockets, which are closed, have sent what they may linger for."""
        self.admission.close()
        self._context.term()

    def _make(self, kind: int, endpoint: Endpoint) -> zmq.Socket[bytes]:
        made: zmq.Socket[bytes] = self._context.socket(kind)
        made.setsockopt(zmq.LINGER, 0)  # until it is closed
        made.setsockopt(zmq.IPV6, int(endpoint.ipv6))
        made.setsockopt(zmq.SNDHWM, 0)  # the window and the room bound what is sent
        made.setsockopt(zmq.RCVHWM, BACKLOG)
        made.setsockopt(zmq.MAXMSGSIZE, FRAME_LIMIT)
        made.setsockopt(zmq.HANDSHAKE_IVL, max(100, int(1000 * self._timeout)))
        return made


def _require_unused(endpoint: Endpoint) -> None:
    """Raise OSError if a process listens on the file of an `ipc` endpoint: ZeroMQ would take it away from it."""
    if endpoint.scheme != "ipc" or not os.path.exists(endpoint.host):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(endpoint.host)
        except OSError:
            return  # left over by a process that has gone
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
