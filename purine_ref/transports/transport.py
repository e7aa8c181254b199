"""The contract of a transport: one rank's end of what carries arrays between ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from purine_ref.errors import PeerLost
from purine_ref.operation import Array


class Transport(Protocol):
    """One rank's end.

    `send`, `expect`, `wait`, `take`, `watch` and `abort` may be called from any thread, by several at once; `close`
    by one, when no other call is under way. Callbacks come on any thread, inside a call of this or of another rank,
    and with no lock held: they must be short, must not raise, and must not close. After `close` everything but
    `close`, `abort` and `wait` raises RuntimeError. A transport belongs to the process that made it.

    A peer is *lost* when it aborts, or dies; then nothing more can be had from any peer, since the ranks compute one
    graph together. All messages under way are dropped, and `send` and `take` raise PeerLost, the same for all callers
    on all ranks: it names the rank that was lost first, this one perhaps, and why. A peer that closes has had its
    time: what it sent is delivered; only what needs more of it raises PeerLost. A transport that lost a peer stays so.
    """

    @property
    def rank(self) -> int:
        """This rank."""

    @property
    def world(self) -> int:
        """The number of ranks."""

    def send(self, peer: int, tag: int, iteration: int, array: Array) -> None:
        """Send `array`, of any layout. When `send` returns, the caller may write over it.

        It may wait while the peer's buffer of early messages has no room for more of this rank's, but never for a
        message that the peer expects. So ranks that expect all messages of a run before they compute cannot wait for
        each other in a circle: the rank that is furthest behind waits for nobody.

        Raises Refused for a route that the peer does not have, another shape or dtype than its, and an iteration that
        is not above those sent along the route; PeerLost. An iteration that is not the one that the peer expects is
        refused here or, where only the peer can see it, by the peer's `take`.
        """

    def expect(
        self, peer: int, tag: int, iteration: int, arrived: Callable[[], None], into: Array | None = None
    ) -> None:
        """Have `arrived` called, once, when `take` would not wait: the message is there, or it will never be.

        `into` is the array that `take` will be given. It belongs to the transport from now on, which may write what
        comes as it comes, until `take` returns, the peer or this rank closes, or a rank is lost.

        Raises Refused for a route that this rank does not have, for one whose last expected message was not taken,
        and for an iteration that is not above those expected along it, or not the one that has come early.
        """

    def wait(self, arrived: threading.Event, seconds: float) -> bool:
        """Sleep until `arrived` is set, as a callback does it, or for so long; returns whether it is set.

        Better than `arrived.wait(seconds)`: the thread may do the transport's work meanwhile, callbacks included, so it
        must hold no lock that they take. What sets `arrived` must be a callback: else it may be noticed late.
        """

    def take(self, peer: int, tag: int, iteration: int, into: Array) -> None:
        """Write an expected message that has arrived into an array of its shape and dtype, of any layout. Never waits.

        Raises Refused for what is not expected or has not arrived, and for another shape or dtype; PeerLost.
        """

    def watch(self, lost: Callable[[PeerLost], None]) -> None:
        """Have `lost` called with the error, once, when a rank is lost; at once if one is. Only the last watcher is."""

    def close(self) -> None:
        """Let go of everything, once what was sent has been delivered or its receiver is gone; may be called again."""

    def abort(self, reason: str) -> None:
        """Tell all peers that this rank is lost, and do not wait. Does nothing after a loss, or after `close`."""
