"""Who may talk to this process: encryption and proof by CURVE, and admission by public key.

CURVE (CurveZMQ, ZeroMQ RFC 26) is on for every socket of a mesh that has keys: both ends prove that they hold the
secret key of the public key that they name, and all bytes are encrypted. A listening socket then asks, over ZeroMQ's
authentication protocol (ZAP, RFC 27), whether that public key is admitted; `Admission` is who answers, on the thread
that owns the sockets. So a stranger gets no further than the handshake, and nothing that it sends is ever read here.
A mesh without keys may only use endpoints that no other machine reaches, but for one that was told `insecure`.
"""

from __future__ import annotations

import ipaddress
import socket as sockets
from collections.abc import Callable

import zmq
from zmq.utils import z85

from purine_ref.errors import Refused
from purine_ref.transports.keys import Keys

_ZAP = "inproc://zeromq.zap.01"  # where libzmq asks; one for each context
_VERSION = b"1.0"
_DOMAIN = b"purine_ref"
_ADMITTED, _NOT_ADMITTED = (b"200", b"OK"), (b"400", b"this public key is not admitted")


class Admission:
    """The answerer of one context, which must be made before any of its sockets is bound.

    `socket` is to be polled, with `answer` called when it can be read; `refused` is told of each that is turned away.
    Without `keys`, nothing is encrypted and nobody asked. Everything here is for the thread that owns the sockets.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], keys: Keys | None, refused: Callable[[str], None]
    ) -> None:
        self._keys = keys
        self._refused = refused
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(_ZAP)

    def listen(self, socket: zmq.Socket[bytes]) -> None:
        """Make a socket, before it is bound, let in only who is admitted."""
        if self._keys is not None:
            socket.curve_server = True
            socket.curve_secretkey = self._keys.secret
            socket.zap_domain = _DOMAIN
            socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # with nobody to ask, nobody comes in

    def require_admitted(self, key: str) -> None:
        """Raise Refused for a public key that is not admitted here; without keys, none is asked for."""
        if self._keys is not None and key.encode() not in self._keys.admitted:
            raise Refused(f"public key {key}: it is not admitted here; copy its .key file into the folder of keys")

    def connect(self, socket: zmq.Socket[bytes], listener: str) -> None:
        """Make a socket, before it is connected, trust only who holds the public key `listener`."""
        if self._keys is not None:
            socket.curve_serverkey = listener.encode()
            socket.curve_publickey, socket.curve_secretkey = self._keys.public, self._keys.secret

    def answer(self) -> None:
        """Answer every question that has come; never waits."""
        while self.socket.poll(0):
            # version, number of the request, domain, address of the asker, its identity, mechanism, credentials
            _, number, domain, address, _, mechanism, *credentials = self.socket.recv_multipart()
            key = z85.encode(credentials[0]) if mechanism == b"CURVE" and domain == _DOMAIN else b""
            admitted = self._keys is not None and key in self._keys.admitted
            if not admitted:
                self._refused(f"peer at {address.decode()}: its public key, {key.decode() or 'none'}, is not admitted")
            status = _ADMITTED if admitted else _NOT_ADMITTED
            self.socket.send_multipart([_VERSION, number, *status, key if admitted else b"", b""])

    def close(self) -> None:
        """Let go of the socket. Who asks from now on gets no answer, and is not let in."""
        self.socket.close()


def key_of(frame: zmq.Frame) -> str:
    """The public key of who sent a frame, as it was proven in the handshake; empty where nothing was."""
    try:
        return str(frame.get("User-Id"))
    except zmq.ZMQError:
        return ""


def require_protection(endpoint: str, keys: Keys | None, insecure: bool) -> None:
    """Raise Refused for an endpoint that other machines reach, where there are no keys and nobody said `insecure`."""
    if keys is None and not insecure and not is_local(endpoint):
        raise Refused(
            f"{endpoint} can be reached from other machines, and there are no keys: give --keys DIR with the keys "
            "that `purine-ref keygen DIR` makes, or --insecure to let everybody in who can reach it"
        )


def is_local(endpoint: str) -> bool:
    """Whether no other machine can reach an endpoint: `ipc`, or `tcp` on addresses that are all of the loopback.

    A name is looked up; one that is not found, an interface and `*` count as reachable.
    """
    transport, _, rest = endpoint.partition("://")
    if transport in ("ipc", "inproc"):
        return True
    host = rest.rpartition(":")[0].removeprefix("[").removesuffix("]")
    if transport != "tcp" or not host or host == "*":
        return False
    try:
        found = sockets.getaddrinfo(host, None, type=sockets.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_is_loopback(str(address[0])) for *_, address in found)


def _is_loopback(address: str) -> bool:
    number = ipaddress.ip_address(address)
    mapped = number.ipv4_mapped if isinstance(number, ipaddress.IPv6Address) else None
    return (mapped or number).is_loopback
