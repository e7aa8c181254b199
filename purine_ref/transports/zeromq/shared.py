"""What the threads of one rank share: its state, under one lock, and the queue to the thread that owns the sockets."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from purine_ref.errors import Refused
from purine_ref.transports.waits import LINE, LINES, Loss, Wait

LOG = logging.getLogger("purine_ref.transports.zeromq")

WINDOW = 16 * 2**20
"""Most bytes of arrays on their way to one peer, that it has not acknowledged: a sender of more waits."""

NAP = 0.25
"""Seconds of one sleep of a thread that waits: between two, an interrupt from the keyboard is seen."""

Call = Callable[[], None]


@dataclass(slots=True)
class Ticket:
    """A message whose delivery somebody waits for."""

    done: bool = False


@dataclass(slots=True)  # one for each message: frozen ones take longer to make
class Parting:
    """One message on its way out: `size` bytes of the window are free again once it is acknowledged."""

    rank: int
    header: dict[str, Any]
    payload: Any = None
    size: int = 0
    ticket: Ticket | None = None


class Session(Protocol):
    """What arrives is handed to the session it is for. All is called under the lock; calls to make are returned."""

    def lose(self, loss: Loss) -> list[Call]:
        """A rank is lost."""

    def leave(self, peer: int, reason: str) -> list[Call]:
        """A peer has closed, and needs nothing more."""

    def receive(self, peer: int, header: Mapping[str, Any], payload: Any) -> list[Call]:
        """A chunk of an array has come."""

    def asked(self, peer: int, tag: int, iteration: int) -> None:
        """A peer expects a message."""

    def wanted(self, peer: int) -> None:
        """A peer waits for room."""

    def abandon(self) -> None:
        """This rank leaves: nothing more is to be had here."""

    def waits(self) -> Iterator[Wait]:
        """What is waited for."""

    def describe(self, rank: int, wait: Wait) -> str:
        """A line that says what a rank waits for."""

    def flush(self) -> None:
        """Tell the peers what they have not been told yet."""


@dataclass
class Shared:
    """The state of one rank. Everything below `lock` is guarded by it; `changed` tells those who wait to look again."""

    rank: int
    size: int
    timeout: float
    patience: float
    pid: int = field(default_factory=os.getpid)
    thread: int = 0  # that owns the sockets, at this time
    rouse: Call = lambda: None  # wakes that thread
    await_arrival: Callable[[threading.Event, float], bool] = threading.Event.wait  # lets who waits be that thread
    lock: threading.Lock = field(default_factory=threading.Lock)
    loss: Loss | None = None
    refusal: Refused | None = None  # a rank that this one was to join has refused it
    ended: bool = False  # the thread that owns the sockets is gone
    gone: set[int] = field(default_factory=set)  # ranks that left in peace
    ready: set[int] = field(default_factory=set)  # ranks that have met all others
    sessions: dict[int, Session] = field(default_factory=dict)
    opened: int = 0  # how many sessions this rank has opened
    opens: dict[int, dict[int, Mapping[str, Any]]] = field(default_factory=dict)  # by session and peer: what came
    flying: Counter[int] = field(default_factory=Counter)  # bytes on their way, by peer
    payload: int = 0  # bytes of arrays that were sent
    acknowledged: int = 0  # messages that peers have acknowledged: it grows as long as anything moves
    offsets: dict[int, float] = field(default_factory=dict)
    queue: deque[Parting] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.changed = threading.Condition(self.lock)
        self._signalled = False

    # Any thread --------------------------------------------------------------------------------------------------

    def require_process(self) -> None:
        """Raise RuntimeError in a process that has all this only because it was forked."""
        if self.forked:
            raise RuntimeError(
                f"the transport of rank {self.rank} belongs to process {self.pid}: "
                f"process {os.getpid()} was forked from it, and must join for itself"
            )

    @property
    def forked(self) -> bool:
        """Whether this process has all this only because it was forked."""
        return os.getpid() != self.pid

    @property
    def peers(self) -> list[int]:
        """All other ranks."""
        return [rank for rank in range(self.size) if rank != self.rank]

    # Under the lock ----------------------------------------------------------------------------------------------

    def post(
        self, rank: int, header: dict[str, Any], payload: Any = None, size: int = 0, ticket: Ticket | None = None
    ) -> None:
        """Have a message sent, after all that were posted to that rank before."""
        self.queue.append(Parting(rank, header, payload, size, ticket))
        self.flying[rank] += size
        self.payload += size
        if not self._signalled and threading.get_ident() != self.thread:
            self._signalled = True
            self.rouse()

    def posted(self) -> list[Parting]:
        """All that was posted since the last time."""
        self._signalled = False
        found = list(self.queue)
        self.queue.clear()
        return found

    def nap(self, until: float) -> bool:
        """Let go of the lock until something has changed, for a short time; returns whether `until` has not come."""
        left = until - time.monotonic()
        if left > 0:
            self.changed.wait(min(left, NAP))
        return left > 0

    def await_delivery(self, tickets: Mapping[int, Ticket], gone: Callable[[int], bool]) -> None:
        """Wait until each peer has acknowledged its message or is gone, or nothing has moved for too long."""
        if threading.get_ident() == self.thread:
            raise RuntimeError(f"rank {self.rank}: a callback closed its transport; callbacks never wait")
        moved, until = self.acknowledged, time.monotonic() + 2 * self.timeout
        while not self.ended:
            waiting = [peer for peer, ticket in tickets.items() if not ticket.done and not gone(peer)]
            if not waiting:
                return
            if self.acknowledged != moved:
                moved, until = self.acknowledged, time.monotonic() + 2 * self.timeout
            if not self.nap(until):
                LOG.warning("rank %d: ranks %s did not acknowledge what they were sent", self.rank, waiting)
                return

    def lose(self, loss: Loss) -> list[Call]:
        """Note the first loss, which ends every session."""
        if self.loss is not None:
            return []
        self.loss = loss
        self.changed.notify_all()
        return [call for session in self.sessions.values() for call in session.lose(loss)]

    def leave(self, peer: int) -> list[Call]:
        """Note that a peer has left."""
        self.gone.add(peer)
        self.changed.notify_all()
        return [call for session in self.sessions.values() for call in session.leave(peer, "it has left")]

    def waits(self) -> list[Wait]:
        """What this rank waits for, as far as it fits into a heartbeat."""
        found: list[Wait] = []
        for number in self.opens:
            if number < self.opened:
                missing = [peer for peer in self.peers if peer not in self.opens[number]]
                found += [("open", number, peer, 0, 0) for peer in missing]
        for session in self.sessions.values():
            found += session.waits()
        return found[:LINES]

    def describe(self, known: Mapping[int, list[Wait]]) -> tuple[str, ...]:
        """The wait-for graph, of what each rank is known to wait for: a line for each wait."""
        lines = []
        for rank in sorted(known):
            for wait in known[rank]:
                session = self.sessions.get(wait[1])
                if session is not None:
                    lines.append(session.describe(rank, wait)[:LINE])
        return tuple(lines[:LINES])

    def require_nobody_lost(self) -> None:
        """Raise PeerLost after a loss."""
        if self.loss is not None:
            raise self.loss.error()
