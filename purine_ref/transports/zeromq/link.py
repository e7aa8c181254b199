"""This rank's connection to one peer: what is sent there, and what is known of it. Used by the I/O thread alone.

What must arrive is numbered, and kept until the peer has acknowledged it. A connection that breaks is made again: the
peer then says what it has received, and the rest is sent once more. So nothing is lost and nothing comes twice.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq

from purine_ref.transports.waits import Wait
from purine_ref.transports.zeromq.handshakes import events, failure
from purine_ref.transports.zeromq.shared import WINDOW, Parting
from purine_ref.transports.zeromq.wire import SEQUENCED, encode, encode_data

ACK_BYTES = WINDOW // 4
"""A rank acknowledges at least whenever it has received this many bytes since the last time, ..."""

ACK_MESSAGES = 64
"""... or this many messages."""

PINGS = 8
"""Round trips by which the offset of a peer's clock is estimated."""


class Link:
    """The connection to `peer` at `address`. `dial` makes a socket that connects there, with keys if `encrypted`."""

    def __init__(
        self,
        peer: int,
        address: str,
        greeting: Callable[[int, int], dict[str, Any]],
        dial: Callable[[str], zmq.Socket[bytes]],
        *,
        encrypted: bool,
    ) -> None:
        self.peer = peer
        self.address = address
        self._greeting = greeting
        self._dial = dial
        self._encrypted = encrypted
        self.epoch = 0  # how often the connection was made
        self.ended = False  # the peer has left, and nobody listens at its address, or somebody else
        self.connected = False  # ZeroMQ's handshake has ended well
        self.welcomed = False  # the peer has answered this connection's greeting
        self.dialled = 0.0  # when
        self.failure = ""  # what the last trouble with the connection was
        self._barred = False  # a handshake failed in a way that trying again does not mend
        self._turned_away = math.inf  # since when every handshake has failed, as they do with a wrong key
        # What is sent.
        self._sent = 0  # the number of the last message
        self._unacknowledged: deque[tuple[int, Parting]] = deque()
        # What is received: by the peer's connection to this rank.
        self.routing: bytes | None = None  # which one it is, once its greeting was believed
        self.received = 0  # the number of the last message
        self._owed_bytes = self._owed_messages = 0
        self._answered = 0  # the last greeting of the peer that was believed
        self.heard = 0.0  # when anything came last, by the monotonic clock; 0 while nobody has been there
        self.waits: list[Wait] = []  # what the peer said that it waits for
        # Its clock.
        self.pings = 0
        self.trip = float("inf")  # the best round trip, in seconds
        self.offset = 0.0  # to be added to the peer's clock for this rank's
        self.connect()

    def connect(self) -> None:
        """Connect, or once more: whatever the old connection still held is dropped, and sent again later."""
        if self.epoch:
            self.close(0)
        self.epoch += 1
        self.dialled = time.monotonic()
        self.socket = self._dial(self.address)
        self.monitor = self.socket.get_monitor_socket()
        self.socket.connect(self.address)

    @property
    def unmade(self) -> bool:
        """Whether the first connection is yet to be made."""
        return self.epoch == 1 and not self.connected

    def close(self, linger: int) -> None:
        """Close the sockets; what was handed to them has `linger` milliseconds to go."""
        self.connected = self.welcomed = False
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger)

    def watch(self) -> bool:
        """Look at what happened to the connection; returns whether it has broken."""
        broken = False
        for event, value in events(self.monitor):
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.connected = True
                self._turned_away = math.inf
                self.heard = self.heard or time.monotonic()  # who was there once must be heard from now on
                self.greet()
                if self._answered:
                    self.answer(self._answered)
            elif event == zmq.EVENT_DISCONNECTED:
                if self.connected:
                    broken, self.failure = True, "its connection was closed"
            elif event == zmq.EVENT_CONNECT_RETRIED:
                self.failure = self.failure or "its connection is not accepted"
            elif (failed := failure(event, value, listening=False, encrypted=self._encrypted)) is not None:
                if failed.final or not (self.failure and self.heard):  # of a lost peer it is told how it was lost
                    self.failure = f"the handshake failed: {failed.reason}"
                self._barred = self._barred or failed.final
                self._turned_away = min(self._turned_away, time.monotonic())
        return broken

    def barred(self, limit: float) -> bool:
        """Whether its handshakes have failed for good, or, with keys, for `limit` seconds: the peer ended each."""
        return self._barred or (self._encrypted and time.monotonic() - self._turned_away > limit)

    # Sending -----------------------------------------------------------------------------------------------------

    def greet(self) -> None:
        """Say who this is, as the first thing on a connection."""
        self.say(self._greeting(self.peer, self.epoch))

    def answer(self, epoch: int) -> bool:
        """Answer a greeting of the peer: now, and again on every new connection, where it may have been lost.

        Returns whether the peer has made its connection anew. It may have done so since it hears nothing by this one,
        which can be stuck without a sign of it here, as when a length was altered on the way.
        """
        anew = 0 < self._answered < epoch
        self._answered = epoch
        self.say({"kind": "welcome", "epoch": epoch, "received": self.received})
        return anew

    def say(self, header: dict[str, Any]) -> None:
        """Send what need not arrive."""
        if self.connected:
            self._write(header, None)

    def ping(self) -> None:
        """Ask for the peer's time, until that was done often enough: with a connection, an answer may get lost."""
        if self.welcomed and self.pings < PINGS:
            self.say({"kind": "ping", "at": time.perf_counter()})

    def send(self, parting: Parting) -> None:
        """Send what must arrive."""
        self._sent += 1
        self._unacknowledged.append((self._sent, parting))
        if self.welcomed:
            self._pass(self._sent, parting)

    def welcome(self, epoch: int, received: int) -> bool:
        """The peer answered a greeting: if it is this connection's, send what has not come, and return that it is."""
        if self.welcomed or epoch != self.epoch:
            return False
        self.welcomed, self.failure = True, ""
        for number, parting in self._unacknowledged:
            if number > received:
                self._pass(number, parting)
        return True

    def acknowledge(self, number: int) -> list[Parting]:
        """The peer has everything up to `number`; returns what that is. Raises ValueError for more than was sent."""
        if number > self._sent:
            raise ValueError(f"it acknowledged message {number}, and {self._sent} were sent")
        found = []
        while self._unacknowledged and self._unacknowledged[0][0] <= number:
            found.append(self._unacknowledged.popleft()[1])
        return found

    def forget(self) -> list[Parting]:
        """The peer is gone: nothing more is acknowledged; returns what was not."""
        found = [parting for _, parting in self._unacknowledged]
        self._unacknowledged.clear()
        return found

    def owe(self, size: int) -> None:
        """Note that a message was received, and acknowledge when enough were."""
        self._owed_bytes += size
        self._owed_messages += 1
        if self._owed_bytes >= ACK_BYTES or self._owed_messages >= ACK_MESSAGES:
            self.acknowledge_now()

    def acknowledge_now(self) -> None:
        """Acknowledge everything."""
        self._owed_bytes = self._owed_messages = 0
        self.say({"kind": "ack", "ack": self.received})

    def _pass(self, number: int, parting: Parting) -> None:
        self._owed_bytes = self._owed_messages = 0
        assert parting.header["kind"] in SEQUENCED
        self._write({**parting.header, "seq": number, "ack": self.received}, parting.payload)

    def _write(self, header: dict[str, Any], payload: Any) -> None:
        frame = encode_data(header) if header["kind"] == "data" else encode(header)
        if payload is None:
            self.socket.send(frame)
        else:
            self.socket.send(frame, zmq.SNDMORE)
            self.socket.send(payload, copy=False)
