"""`join`: from a rank's number and one address to a `World` whose ranks talk ZeroMQ among themselves."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from purine_ref.errors import PeerLost, Refused
from purine_ref.tensor import Tensor
from purine_ref.transports.inbox import EARLY, Route
from purine_ref.transports.keys import Keys
from purine_ref.transports.waits import REASON, Loss
from purine_ref.transports.world import Opening, Words, difference
from purine_ref.transports.zeromq.addresses import default_listen, own_address, parse, parse_numeric
from purine_ref.transports.zeromq.admission import require_protection
from purine_ref.transports.zeromq.allocation import keep_freed_chunks
from purine_ref.transports.zeromq.handshake import Identity
from purine_ref.transports.zeromq.loop import LINGER, Loop
from purine_ref.transports.zeromq.session import Session
from purine_ref.transports.zeromq.shared import LOG, Shared, Ticket

MOST = 256
"""Most ranks of a world: each is connected to each, and one message names all."""


@dataclass(frozen=True, slots=True)
class Joining:
    """How one rank joins.

    `connect` is rank 0's address, which rank 0 binds: `tcp://host:port` or `ipc://path`. Others bind `listen`: if not
    given, a free port on the address that reaches rank 0, or a file beside rank 0's; they tell the others this address,
    or `advertise` where they are reached by another. `run_id` must be the same on all ranks. A rank that is silent for
    `timeout` seconds is lost, as is one that has not come after `patience`. With `keys`, all is encrypted, and only who
    holds an admitted key gets in; without, an address that other machines reach needs the word `insecure`. `bound` is
    called with the address that was bound, before anyone is waited for.
    """

    rank: int
    size: int
    connect: str
    listen: str | None = None
    run_id: str = ""
    timeout: float = 5.0
    patience: float = 60.0
    keys: Keys | None = None
    insecure: bool = False
    advertise: str | None = None
    bound: Callable[[str], None] | None = None


def join(joining: Joining) -> Mesh:
    """Join the other ranks: returns once all of them have met all others.

    Raises Refused where an address is wrong or in use, or another rank refuses this one, with its reason; PeerLost
    where a rank has not come in time. Raises ValueError for a rank that is not one of 1 to 256, and times of 0 or less.
    """
    if not (1 <= joining.size <= MOST and 0 <= joining.rank < joining.size):
        raise ValueError(f"rank {joining.rank} of {joining.size}: expected a rank from 0, of 1 to {MOST}")
    if joining.timeout <= 0 or joining.patience <= 0:
        raise ValueError(f"timeout and patience must be above 0, got {joining.timeout} and {joining.patience}")
    keep_freed_chunks()
    mesh = Mesh(joining)
    try:
        mesh.meet()
    except BaseException as error:
        mesh.abort(f"it could not join: {error}")
        mesh.close()
        raise
    return mesh


class Mesh:
    """One rank's end of a world over ZeroMQ: see `World`. Made by `join` alone."""

    transport = "zeromq"

    def __init__(self, joining: Joining) -> None:
        first = parse(joining.connect)
        if joining.rank > 0:
            parse_numeric(str(first))  # refuses what can only be bound
        here = first if joining.rank == 0 else default_listen(joining.rank, first)
        here = here if joining.listen is None else parse(joining.listen)
        advertise = None if joining.advertise is None else str(parse_numeric(str(parse(joining.advertise))))
        self._shared = Shared(joining.rank, joining.size, joining.timeout, joining.patience)
        for endpoint in (first, here):
            require_protection(str(endpoint), joining.keys, joining.insecure)
        host = own_address(first) if here.wild and joining.rank > 0 else here.host  # where the others reach this rank
        self._loop = Loop(self._shared, here, joining.keys, joining.insecure)
        listen = advertise or self._loop.bound.replace(here.host, host)
        identity = Identity(joining.size, joining.rank, joining.run_id, listen)
        self._bound = joining.bound
        self._loop.start(identity, None if joining.rank == 0 else first)
        self._closed = False
        atexit.register(self._at_exit)

    @property
    def rank(self) -> int:
        """This rank."""
        return self._shared.rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._shared.size

    @property
    def payload(self) -> int:
        """How many bytes of arrays this rank has sent, headers not counted."""
        return self._shared.payload

    @property
    def refused(self) -> Mapping[str, int]:
        """How many messages were refused: those of `stranger`s, and of a `peer`."""
        return dict(self._loop.refusals.counts)

    def meet(self) -> None:
        """Wait until all ranks have met. `join` has called it."""
        shared = self._shared
        until = time.monotonic() + shared.patience
        if self._bound is not None:
            self._bound(self._loop.bound)
        with shared.lock:
            while len(shared.ready) < self.size:
                if shared.refusal is not None:
                    raise shared.refusal
                shared.require_nobody_lost()
                if not shared.nap(until) and not (self._loop.waits_for_table() and shared.nap(until + shared.timeout)):
                    break
            else:
                return
        loss = self._missing()
        with shared.lock:
            shared.lose(loss)
        raise loss.error()

    def _missing(self) -> Loss:
        """Who has not come, and what is known of it."""
        trouble = self._loop.trouble()
        unknown = [peer for peer in self._shared.peers if peer not in self._loop.links]
        unready = set(self._shared.peers) - self._shared.ready
        rank = min((0,) if 0 in trouble else unknown or trouble or unready or (self.rank,))
        reason = f"it did not come within {self._shared.patience:g} s"
        if rank in trouble:
            reason += f" ({trouble[rank]})"
        if self._loop.refusals.last:
            reason += f"; refused meanwhile: {self._loop.refusals.last}"
        return Loss(rank, reason)

    def open(
        self,
        name: str,
        fingerprint: str,
        incoming: Sequence[Mapping[Route, Tensor]],
        *,
        early: int = EARLY,
        words: Words | None = None,
    ) -> Session:
        """A transport for one graph, once every rank has opened its own; see `World`."""
        shared = self._shared
        shared.require_process()
        if len(incoming) != self.size:
            raise ValueError(f"graph {name!r} says what comes in at {len(incoming)} ranks, and {self.size} have joined")
        with shared.lock:
            if self._closed:
                raise RuntimeError(f"rank {self.rank} has left its world, and cannot open graph {name!r}: join anew")
            shared.require_nobody_lost()
            number = shared.opened
            session = Session(shared, number, name, incoming, early, words or {})
            for peer in shared.gone:
                session.leave(peer, "it has left")
            shared.opened += 1
            shared.sessions[number] = session
            header = {"kind": "open", "session": number, "name": name[:200], "fingerprint": fingerprint, "early": early}
            for peer in shared.peers:
                shared.post(peer, dict(header))
            try:
                self._wait_for_all(number, name)
                opens = shared.opens.pop(number, {})
                self._compare({**opens, self.rank: header})
            except BaseException:
                shared.sessions.pop(number, None)
                raise
        return session

    def _wait_for_all(self, number: int, name: str) -> None:
        """Wait, under the lock, until all ranks have opened a session."""
        shared = self._shared
        opens = shared.opens.setdefault(number, {})
        until = time.monotonic() + shared.patience
        while len(opens) < self.size - 1:
            shared.require_nobody_lost()
            missing = [peer for peer in shared.peers if peer not in opens]
            for peer in missing:
                if peer in shared.gone:
                    raise PeerLost(peer, f"it has left, and did not open graph {name!r}")
            if not shared.nap(until):
                loss = Loss(missing[0], f"it did not open graph {name!r} within {shared.patience:g} s")
                shared.lose(loss)
                raise loss.error()

    def _compare(self, opens: Mapping[int, Mapping[str, Any]]) -> None:
        """Raise Refused unless all ranks have opened the same graph, in the same way."""
        said = difference({rank: Opening(header["name"], header["fingerprint"]) for rank, header in opens.items()})
        rooms = {header["early"] for header in opens.values()}
        if said is None and len(rooms) > 1:
            said = f"the ranks have room for {', '.join(map(str, sorted(rooms)))} early messages: give all the same"
        if said is not None:
            raise Refused(said)

    def offset(self, peer: int) -> float:
        """Seconds to add to `peer`'s clock for this rank's; see `World`."""
        return 0.0 if peer == self.rank else self._shared.offsets[peer]

    def close(self) -> None:
        """Leave, once what was sent has been delivered or its receiver is gone; see `World`."""
        shared = self._shared
        if self._closed:
            return
        shared.require_process()
        self._closed = True
        with shared.lock:
            for session in list(shared.sessions.values()):
                session.abandon()
            if shared.loss is None and not shared.ended:
                self._say_goodbye()
        self._loop.stop(LINGER if shared.loss is None else LINGER // 2)
        if not self._loop.join(2 * LINGER / 1000 + 1):
            LOG.warning("rank %d: its sockets did not close in time", self.rank)
        atexit.unregister(self._at_exit)

    def _say_goodbye(self) -> None:
        """Wait, under the lock, until every peer has acknowledged the last message, or nothing moves any more."""
        shared = self._shared
        tickets = {peer: Ticket() for peer in shared.peers if peer not in shared.gone}
        for peer, ticket in tickets.items():
            shared.post(peer, {"kind": "bye"}, ticket=ticket)
        shared.await_delivery(tickets, lambda peer: shared.loss is not None or peer in shared.gone)

    def abort(self, reason: str) -> None:
        """Tell all others that this rank is lost, and do not wait; see `World`."""
        shared = self._shared
        if self._closed or shared.loss is not None:
            return
        shared.require_process()
        with shared.lock:
            calls = shared.lose(Loss(self.rank, reason[:REASON]))
        for call in calls:
            call()
        shared.rouse()

    def _at_exit(self) -> None:
        """The process ends without having left; one that was forked from it has nothing to leave."""
        if not self._shared.forked:
            self.abort("its process ended")
            self.close()
