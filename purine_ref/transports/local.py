"""A world inside one process: its ranks are threads, and its transports those of a `Hub`. For tests, mostly.

State, all guarded by the meeting's lock: what each rank has opened, and who has left. Ranks meet in the order of their
calls: the n-th graph that one opens is the n-th of all.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from purine_ref.errors import PeerLost, Refused
from purine_ref.tensor import Tensor
from purine_ref.transports.inbox import EARLY, Route
from purine_ref.transports.inproc import PATIENCE, Hub, InProcess
from purine_ref.transports.world import Opening, Words, difference

JOINED_WITHIN = 60.0
"""Seconds that a rank waits for the others to open the graph that it opens."""


def local_worlds(size: int, *, patience: float = JOINED_WITHIN) -> list[LocalWorld]:
    """A world of `size` ranks in this process, each for a thread of its own. Raises ValueError below 1."""
    if size < 1:
        raise ValueError(f"local_worlds: there must be 1 rank or more, got {size}")
    meeting = _Meeting(size, patience)
    return [LocalWorld(meeting, rank) for rank in range(size)]


@dataclass
class _Place:
    """Where all ranks meet for one graph: what each has brought, and what came of it."""

    openings: dict[int, Opening] = field(default_factory=dict)
    outcome: Hub | str | None = None  # or why it is refused


class _Meeting:
    """What the ranks share. `lock` guards all but `size` and `patience`."""

    def __init__(self, size: int, patience: float) -> None:
        self.size = size
        self.patience = patience
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)  # notified when a rank that waits for others should look again
        self.places: dict[int, _Place] = {}  # by number, where not all have come yet
        self.gone: dict[int, str] = {}  # the ranks that have left, or did not come in time, and why

    def enter(self, number: int, rank: int, opening: Opening, incoming: _Incoming, early: int) -> _Place:
        """Bring what a rank opens to its place; the last one to come finds out what comes of it. Under the lock."""
        place = self.places.setdefault(number, _Place())
        place.openings[rank] = opening
        if len(place.openings) == self.size:
            place.outcome = difference(place.openings) or Hub(incoming, early=early)
            del self.places[number]
            self.changed.notify_all()
        return place

    def require_all(self, place: _Place, deadline: float) -> None:
        """Raise PeerLost where a rank will not come to the place any more, or has not in time. Under the lock."""
        missing = [rank for rank in range(self.size) if rank not in place.openings]
        if time.monotonic() > deadline:
            self.gone.setdefault(missing[0], f"it did not open the graph within {self.patience:g} s")
        for rank in missing:
            self.require(rank)

    def require(self, rank: int) -> None:
        """Raise PeerLost for a rank that is gone. Under the lock."""
        if rank in self.gone:
            raise PeerLost(rank, self.gone[rank])


_Incoming = Sequence[Mapping[Route, Tensor]]


class LocalWorld:
    """One rank of a world in this process: see `World`. Made by `local_worlds` alone."""

    transport = "local"

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self.rank = rank
        self._meeting = meeting
        self._opened = 0
        self._left = False
        self._transports: weakref.WeakSet[InProcess] = weakref.WeakSet()

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._meeting.size

    def open(
        self, name: str, fingerprint: str, incoming: _Incoming, *, early: int = EARLY, words: Words | None = None
    ) -> InProcess:
        """Meet the others for one graph; see `World`. A loss is told without `words`: all ranks are at hand."""
        meeting = self._meeting
        with meeting.lock:
            if self._left:
                raise RuntimeError(f"rank {self.rank} has left its world, and cannot open graph {name!r}: join anew")
            meeting.require(self.rank)
            place = meeting.enter(self._opened, self.rank, Opening(name, fingerprint), incoming, early)
            self._opened += 1
            deadline = time.monotonic() + meeting.patience
            while place.outcome is None:
                meeting.require_all(place, deadline)
                meeting.changed.wait(PATIENCE)
            if isinstance(place.outcome, str):
                raise Refused(place.outcome)
            transport = place.outcome.transports[self.rank]
            self._transports.add(transport)
        return transport

    def offset(self, peer: int) -> float:
        """0: there is one clock."""
        return 0.0

    def close(self) -> None:
        """Leave; what was sent lies with its receivers."""
        for transport in self._leave("it closed"):
            transport.close()

    def abort(self, reason: str) -> None:
        """Tell all others that this rank is lost."""
        for transport in self._leave(reason):
            transport.abort(reason)

    def _leave(self, reason: str) -> list[InProcess]:
        """Open nothing any more; returns what is open, or was before this rank left for the first time."""
        with self._meeting.lock:
            self._left = True
            self._meeting.gone.setdefault(self.rank, reason)
            self._meeting.changed.notify_all()
            return list(self._transports)
