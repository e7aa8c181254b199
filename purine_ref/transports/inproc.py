"""The in-process transport: ranks are threads of one process, and share nothing but a `Hub`.

A message is copied once when it is sent and once when it is taken, so no rank ever sees another's memory. State, all
guarded by the hub's lock: the inboxes, which transports are closed, and the first loss. Callbacks are called after
the lock is let go. There is no global state: a hub is garbage when its transports are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from purine_ref.errors import PeerLost, Refused
from purine_ref.operation import Array
from purine_ref.tensor import Tensor
from purine_ref.transports.inbox import EARLY, Inbox, Route

PATIENCE = 0.25
"""Seconds of one sleep of a sender that waits for room: between two, an interrupt from the keyboard is seen."""


class Hub:
    """Where the transports of one process meet. `incoming[rank]` has the description of each route into a rank.

    `early` is how many messages from one rank may wait at another before they are expected there; with 0 a message is
    sent only when it is. Raises ValueError below 0. `transports` has one for each rank.
    """

    def __init__(self, incoming: Sequence[Mapping[Route, Tensor]], *, early: int = EARLY) -> None:
        if early < 0:
            raise ValueError(f"Hub: early must be 0 or more, got {early}")
        self.lock = threading.Lock()
        self.room = threading.Condition(self.lock)  # notified when a sender that waits for room should look again
        self.lost: tuple[int, str] | None = None  # the rank that was lost first, and why
        inboxes = [Inbox(rank, routes, early) for rank, routes in enumerate(incoming)]
        self.transports = tuple(InProcess(self, rank, inbox) for rank, inbox in enumerate(inboxes))

    def close(self) -> None:
        """Close all transports."""
        for transport in self.transports:
            transport.close()


class InProcess:
    """One rank's end of a hub: see `Transport`. Made by `Hub` alone."""

    def __init__(self, hub: Hub, rank: int, inbox: Inbox) -> None:
        self.rank = rank
        self._hub = hub
        self._inbox = inbox
        self._watcher: Callable[[PeerLost], None] | None = None
        self._closed = False

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self._hub.transports)

    def send(self, peer: int, tag: int, iteration: int, array: Array) -> None:
        """Copy the array into the peer's inbox, once there is room; see `Transport`."""
        with self._hub.lock:
            self._addressee(peer, tag, iteration, array)
        copy = np.array(array, order="C")  # outside the lock: it may take long
        with self._hub.lock:
            inbox = self._addressee(peer, tag, iteration, array)
            while not inbox.has_room(self.rank, tag):
                self._hub.room.wait(PATIENCE)
                inbox = self._addressee(peer, tag, iteration, array)
            arrived = inbox.put(self.rank, tag, iteration, copy)
        if arrived is not None:
            arrived()

    def expect(
        self, peer: int, tag: int, iteration: int, arrived: Callable[[], None], into: Array | None = None
    ) -> None:
        """Call back when the message is there or never will be; see `Transport`. `into` is left alone until `take`."""
        with self._hub.lock:
            self._require_open()
            if self._hub.lost or self._inbox.expect(peer, tag, iteration, arrived):
                calls = [arrived]
            else:
                calls = self._inbox.missing(peer) if self._hub.transports[peer]._closed else []
            self._hub.room.notify_all()
        for call in calls:
            call()

    def wait(self, arrived: threading.Event, seconds: float) -> bool:
        """Sleep until a callback has set `arrived`; see `Transport`."""
        return arrived.wait(seconds)

    def take(self, peer: int, tag: int, iteration: int, into: Array) -> None:
        """Write a message that has arrived into an array; see `Transport`."""
        with self._hub.lock:
            self._require_open()
            self._require_nobody_lost()
            array = self._inbox.take(peer, tag, iteration, into)
            if array is None:
                self._require_peer(peer)
                raise Refused(f"message of tag {tag}, iteration {iteration}, from rank {peer} has not arrived")
        into[...] = array

    def watch(self, lost: Callable[[PeerLost], None]) -> None:
        """Call back when a peer is lost; see `Transport`."""
        with self._hub.lock:
            self._require_open()
            self._watcher = lost
            calls = self._watchers() if self._hub.lost else []
        for call in calls:
            call()

    def close(self) -> None:
        """Let go of everything. What was sent lies with its receivers, and can still be taken."""
        with self._hub.lock:
            if self._closed:
                return
            self._closed = True
            self._watcher = None
            self._inbox.missing()
            self._inbox.clear()
            calls = [call for other in self._hub.transports for call in other._inbox.missing(self.rank)]
            self._hub.room.notify_all()
        for call in calls:
            call()

    def abort(self, reason: str) -> None:
        """Tell all ranks that this one is lost."""
        with self._hub.lock:
            if self._closed or self._hub.lost:
                return
            self._hub.lost = (self.rank, reason)
            calls = [call for end in self._hub.transports for call in (*end._watchers(), *end._inbox.missing())]
            for end in self._hub.transports:
                end._inbox.clear()
            self._hub.room.notify_all()
        for call in calls:
            call()

    # Under the hub's lock ---------------------------------------------------------------------------------------

    def _addressee(self, peer: int, tag: int, iteration: int, array: Array) -> Inbox:
        """The inbox of a peer that can take the message. Raises as `send` does."""
        self._require_open()
        self._require_nobody_lost()
        if not 0 <= peer < self.world:
            raise Refused(f"message of tag {tag}, iteration {iteration}, to rank {peer}: there are {self.world} ranks")
        self._require_peer(peer)
        inbox = self._hub.transports[peer]._inbox
        inbox.check(self.rank, tag, iteration, array)
        return inbox

    def _watchers(self) -> list[Callable[[], None]]:
        """Calls that tell this rank of the loss, if it watches: each rank gets an error of its own."""
        watcher, self._watcher = self._watcher, None
        if watcher is None or self._hub.lost is None:
            return []
        error = PeerLost(*self._hub.lost)
        return [lambda: watcher(error)]

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"transport of rank {self.rank} is closed: make a new one")

    def _require_nobody_lost(self) -> None:
        if self._hub.lost is not None:
            raise PeerLost(*self._hub.lost)

    def _require_peer(self, peer: int) -> None:
        if self._hub.transports[peer]._closed:
            raise PeerLost(peer, "it closed its transport")
