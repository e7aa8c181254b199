"""What becomes of handshakes: a wrong key, a missing key and a stranger, told apart from a network that is dead.

ZeroMQ itself only tries again, or stops, and says nothing. It tells the monitor of the socket, though.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
"""The events that a monitor has for handshakes that failed."""

_MISMATCH = "one end has keys and the other none: give --keys on every rank, or on none"
_MALFORMED = "what came is not ZeroMQ's protocol, or was altered on the way"
_JOINING = {
    "refused": "it does not admit this rank's public key: copy that .key file into the folder of keys there",
    "unreadable": "its answer cannot be read with the key that it should have",
    "ended": "it ended the connection",
    "ended, with keys": "it ended the connection, as one does that has another public key than the one expected here: "
    "is it the same in the folder of keys here and there?",
}
_LISTENING = {
    "refused": "its public key is not admitted",
    "unreadable": "it took another public key for this rank's",
    "ended": "it ended the connection",
    "ended, with keys": "it ended the connection",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A handshake that failed, and why. `final` says that who connected does not try again by itself."""

    reason: str
    final: bool


def failure(event: int, value: int, *, listening: bool, encrypted: bool) -> Failure | None:
    """What an event of a monitor, with its value, says of a handshake that failed; None for other events.

    `listening` says that the monitor is of a socket that is bound, `encrypted` that this end has keys.
    """
    reasons = _LISTENING if listening else _JOINING
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return Failure(reasons["refused"], final=True)
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        return Failure(reasons["ended, with keys" if encrypted else "ended"], final=False)
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        if value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            return Failure(reasons["unreadable"], final=True)
        return Failure(_MISMATCH if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH else _MALFORMED, final=True)
    return None


def events(monitor: zmq.Socket[bytes]) -> Iterator[tuple[int, int]]:
    """Each event that a monitor has to tell, with its value, until there is no more; never waits."""
    while monitor.poll(0):
        message = parse_monitor_message(monitor.recv_multipart())
        yield int(message["event"]), int(message["value"])
