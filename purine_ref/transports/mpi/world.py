"""The world of an MPI communicator: ranks meet, compare what they run, open transports, and leave."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from purine_ref.errors import PeerLost, Refused
from purine_ref.operation import Array
from purine_ref.tensor import Tensor
from purine_ref.transports.inbox import EARLY, Route
from purine_ref.transports.mpi.clocks import Clocks
from purine_ref.transports.mpi.frames import PROTOCOL, integer, loss_of, lost, text, waits
from purine_ref.transports.mpi.link import Calls, Fields, Link
from purine_ref.transports.mpi.session import PATIENCE, Session
from purine_ref.transports.waits import LINE, LINES, REASON, Loss, Wait
from purine_ref.transports.world import Opening, Words, difference


class MpiWorld:
    """One rank's end of a communicator that nobody else uses: see `World`. `mpi` is the module `mpi4py.MPI`.

    `timeout` is in seconds until a silent rank is lost, `patience` until one is that does not come to join, or to open
    a graph that others opened. `run_id` must be the same on all ranks. `meet` comes first, `leave` last.
    """

    transport = "mpi"

    def __init__(
        self, mpi: Any, communicator: Any, *, timeout: float = 5.0, patience: float = 60.0, run_id: str = ""
    ) -> None:
        self._link = Link(mpi, communicator, timeout, self)
        self.rank, self.size = self._link.rank, self._link.size
        self._patience = patience
        self._hello = {"kind": "hello", "protocol": PROTOCOL, "run": run_id}
        self._hellos: dict[int, Fields] = {self.rank: self._hello}
        self._ready: dict[int, bool] = {}  # the ranks that know all clocks
        self._others = [rank for rank in range(self.size) if rank != self.rank]
        self._clocks = Clocks(self._link)
        self._opened = 0
        self._came: Counter[int] = Counter()  # how many graphs each other rank has opened
        self._openings: dict[int, dict[int, Opening]] = defaultdict(dict)  # by number of the graph and rank
        self._sessions: dict[int, Session] = {}
        self._gone: dict[int, str] = {}  # ranks that left
        self._waits: dict[int, list[Wait]] = {}  # by rank: what it last said that it waits for
        self._lost: Loss | None = None
        self._gone_too = False  # whether the rank that was lost first cannot be talked to any more
        self._left = False
        self._link.start()

    def meet(self) -> None:
        """Wait until all ranks have come, and know each other. Raises Refused where they differ; PeerLost."""
        with self._link.lock:
            self._link.post(self._others, self._hello)
            self._wait_for(self._hellos, "join")
            self._require_equal()
            self._clocks.start()
            self._wait_for(self._clocks.known, "tell its time")
            self._link.post(self._others, {"kind": "ready"})
            self._ready[self.rank] = True
            self._wait_for(self._ready, "learn the time")

    def open(
        self,
        name: str,
        fingerprint: str,
        incoming: Sequence[Mapping[Route, Tensor]],
        *,
        early: int = EARLY,
        words: Words | None = None,
    ) -> Session:
        """Meet the others for one graph; see `World`."""
        link = self._link
        with link.lock:
            if self._left:
                raise RuntimeError(f"rank {self.rank} has left its world, and cannot open graph {name!r}: join anew")
            number = self._opened
            self._opened += 1
            self._sessions = {number: one for number, one in self._sessions.items() if not one.over}
            session = self._sessions[number] = Session(link, number, name, incoming, early, words)
            self._openings[number][self.rank] = Opening(name, fingerprint)
            link.post(link.here(), {"kind": "open", "session": number, "name": name, "fingerprint": fingerprint})
        try:
            with link.lock:
                self._wait_for(self._openings[number], f"open graph {name!r}")
                problem = difference(self._openings.pop(number))
        except BaseException:
            session.abandon()
            raise
        if problem is not None:
            session.close()
            raise Refused(problem)
        return session

    def offset(self, peer: int) -> float:
        """Seconds to add to a peer's clock; see `World`."""
        with self._link.lock:
            return self._clocks.offset(peer)

    def close(self) -> None:
        """Leave, once what was sent is on its way; see `World`."""
        with self._link.lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            session.close()
        self._say_goodbye()

    def abort(self, reason: str) -> None:
        """Tell all others that this rank is lost; see `World`."""
        with self._link.lock:
            if self._left or self._lost:
                return
            calls = self._lose(Loss(self.rank, reason[:REASON]))
        for call in calls:
            call()

    def leave(self) -> bool:
        """Wait until all others have left, too, or are lost; returns whether none was, and MPI can be finalized.

        Nothing is left running. The wait ends, since others that work are heard, and others that hang are lost.
        """
        self._say_goodbye()
        link = self._link
        with link.lock:
            while link.here():
                link.changed.wait(PATIENCE)
            while not link.idle():
                link.changed.wait(PATIENCE)
        link.end()
        return len(self._gone) == self.size - 1

    # The link's listener ----------------------------------------------------------------------------------------

    def buffer(self, peer: int, fields: Fields) -> Array | None:
        """Where to receive an array: only messages of a graph have one."""
        return self._session(fields).buffer(peer, fields) if fields["kind"] == "data" else None

    def received(self, peer: int, fields: Fields, array: Array | None) -> Calls:
        """Go by a frame that came."""
        kind = fields["kind"]
        if kind in ("ping", "pong"):
            self._clocks.received(peer, fields)
        elif kind == "hello":
            self._hellos[peer] = fields
        elif kind == "ready":
            self._ready[peer] = True
        elif kind == "open":
            self._opening(peer, fields)
        elif kind == "leave":
            return self._forget(peer)
        elif kind == "lost" and "session" not in fields:
            return self._note(loss_of(fields), fields.get("gone") is True)
        elif kind == "beat":
            self._waits[peer] = waits(fields)
        else:
            return self._session(fields).received(peer, fields, array)
        return ()

    def lose(self, rank: int, reason: str) -> Calls:
        """A rank is lost for good: nobody waits for its leaving."""
        return self._lose(Loss(rank, reason[:REASON], self._graph_of_waits()), gone=True)

    def beat(self) -> Fields:
        """That this rank is there, and what it waits for."""
        return {"kind": "beat", "waits": self._own_waits()}

    # With the link's lock held ----------------------------------------------------------------------------------

    def _opening(self, peer: int, fields: Fields) -> None:
        number = integer(fields, "session")
        if number != self._came[peer] or number > self._opened:
            raise Refused(
                f"opening of graph {number}: expected {self._came[peer]}; this rank has opened {self._opened}"
            )
        self._came[peer] += 1
        self._openings[number][peer] = Opening(text(fields, "name"), text(fields, "fingerprint"))

    def _session(self, fields: Fields) -> Session:
        session = self._sessions.get(integer(fields, "session"))
        if session is None:
            raise Refused(f"frame of kind {fields['kind']!r} for graph {fields['session']}: no such graph is open")
        return session

    def _forget(self, peer: int) -> Calls:
        self._gone[peer] = "it left"
        self._link.leave(peer)
        return [call for session in self._sessions.values() for call in session.forget(peer, "it left")]

    def _lose(self, loss: Loss, gone: bool = False) -> Calls:
        """Note the first loss, and tell the others. A rank that is `gone` cannot be talked to any more."""
        if self._lost is None:
            self._link.post(self._link.here(), lost(loss) | {"gone": gone})
        return self._note(loss, gone)

    def _note(self, loss: Loss, gone: bool) -> Calls:
        if self._lost is None:
            self._lost, self._gone_too = loss, gone
        if gone:  # if it is this rank that is taken for gone, nobody listens to it any more
            for peer in self._others if loss.rank == self.rank else [loss.rank]:
                self._link.forget(peer)
        self._link.changed.notify_all()
        return [call for session in self._sessions.values() for call in session.lose(loss)]

    def _own_waits(self) -> list[Wait]:
        found: list[Wait] = [
            ("open", number, peer, 0, 0)
            for number, openings in self._openings.items()
            if self.rank in openings
            for peer in self._others
            if peer not in openings
        ]
        for session in self._sessions.values():
            found += session.waits()
        return found[:LINES]

    def _graph_of_waits(self) -> tuple[str, ...]:
        known = self._waits | {self.rank: self._own_waits()}
        told = [(rank, wait) for rank in sorted(known) for wait in known[rank] if wait[1] in self._sessions]
        return tuple(self._sessions[wait[1]].describe(rank, wait)[:LINE] for rank, wait in told)[:LINES]

    def _wait_for(self, come: Mapping[int, object], what: str) -> None:
        """Wait until all ranks are in `come`; one that does not come in time is lost."""
        deadline = time.monotonic() + self._patience
        while True:
            missing = [rank for rank in range(self.size) if rank not in come]
            if missing and time.monotonic() > deadline:
                loss = Loss(missing[0], f"it did not {what} within {self._patience:g} s", self._graph_of_waits())
                self._lose(loss)
            if self._lost is not None:
                raise self._lost.error()
            if not missing:
                return
            for rank in missing:
                if rank in self._gone:
                    raise PeerLost(rank, self._gone[rank])
            self._link.changed.wait(PATIENCE)

    # Coming and leaving -----------------------------------------------------------------------------------------

    def _require_equal(self) -> None:
        first = self._hellos[0]
        for rank, hello in sorted(self._hellos.items()):
            for key, name in (("protocol", "protocol"), ("run", "run id")):
                if hello.get(key) != first.get(key):
                    raise Refused(
                        f"rank {rank} has {name} {hello.get(key)!r}, and rank 0 {first.get(key)!r}: every rank must "
                        "run the same command of the same version"
                    )

    def _say_goodbye(self) -> None:
        with self._link.lock:
            if not self._left:
                self._left = True
                if self._lost is not None:  # whoever has not heard of it yet shall not think that this rank just left
                    self._link.post(self._link.here(), lost(self._lost) | {"gone": self._gone_too})
                self._link.post(self._others, {"kind": "leave"})  # also to those that wait for nothing else
            while self._lost is None and not self._link.idle():
                self._link.changed.wait(PATIENCE)
