"""What each kind of message does when it comes: handlers, called by the I/O thread, which return calls to make.

A message counts when its connection has greeted. What comes on any other is refused, counted, and changes nothing; a
peer that greeted and then breaks the protocol ends the run, with an error that names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from purine_ref.errors import Refused
from purine_ref.transports.keys import Keys
from purine_ref.transports.waits import Loss
from purine_ref.transports.zeromq.admission import key_of
from purine_ref.transports.zeromq.handshake import Identity
from purine_ref.transports.zeromq.link import PINGS, Link
from purine_ref.transports.zeromq.refusals import Refusals
from purine_ref.transports.zeromq.shared import Call, Parting, Shared
from purine_ref.transports.zeromq.wire import SEQUENCED, Header, Malformed, decode


class Sockets(Protocol):
    """What the handlers need of the thread that owns the sockets."""

    links: dict[int, Link]

    def dial(self, peer: int, address: str, key: str) -> Link:
        """Connect to a peer with that public key, unless that was done before; raises Refused where it may not be."""

    def refuse(self, routing: bytes, reason: str) -> None:
        """Tell a stranger why it is refused, if it can be told."""

    def renew(self, link: Link) -> None:
        """Connect to a peer once more, unless that was done just now."""

    def give_up(self, refusal: Refused) -> None:
        """Have those who wait for this rank to join raise that."""


class Desk:
    """The handlers of one rank."""

    def __init__(
        self, shared: Shared, identity: Identity, sockets: Sockets, refusals: Refusals, keys: Keys | None
    ) -> None:
        self._shared = shared
        self._me = identity
        self._sockets = sockets
        self._refusals = refusals
        self._ranks: dict[bytes, int] = {}  # by connection: who greeted on it
        self._nonces: dict[int, str] = {}  # by rank: the process that joined as it
        self._keys = {} if keys is None else {identity.rank: keys.public.decode(), 0: keys.root.decode()}  # by rank
        self._early: dict[bytes, Header] = {}  # greetings that came before this rank knew who is who, by connection
        self.told = False  # whether this rank knows all addresses
        self._handlers: dict[str, Callable[[Link, Header, Any], list[Call]]] = {
            "welcome": self._welcome,
            "table": self._table,
            "ready": self._ready,
            "ping": self._ping,
            "pong": self._pong,
            "beat": self._beat,
            "ack": self._nothing,
            "open": self._open,
            "data": self._data,
            "expect": self._expect,
            "want": self._want,
            "close": self._close,
            "abort": self._abort,
            "lost": self._lost,
            "bye": self._bye,
        }

    def handle(self, routing: bytes, frames: list[Any]) -> list[Call]:
        """One message: its frames without the first, which says on which connection it came."""
        rank = self._ranks.get(routing)
        try:
            return self._believe(routing, rank, frames)
        except Refused as error:
            self._refusals.count(error, rank)
            if rank is None:
                return []
            return self._breach(rank, str(error))

    def _believe(self, routing: bytes, rank: int | None, frames: list[Any]) -> list[Call]:
        header = decode(frames[0].bytes) if frames else {}
        kind = header.get("kind")
        if len(frames) != (2 if kind == "data" else 1):
            raise Malformed(f"a message of {len(frames)} frames, kind {kind}")
        if kind == "hello":
            return self._hello(routing, {**header, "key": key_of(frames[0])})
        if routing in self._early:
            return []
        if rank is None:
            raise Malformed(f"a message of kind {kind} on a connection that has not greeted")
        link = self._sockets.links[rank]
        link.heard = time.monotonic()
        if kind == "refuse":
            raise Malformed("a refusal that comes as a message")
        if kind in SEQUENCED:
            if header["seq"] != link.received + 1:
                raise Malformed(f"message {header['seq']} came after message {link.received}")
            link.received += 1
        payload = frames[1] if kind == "data" else None
        if "ack" in header:
            self._acknowledge(link, header["ack"])
        calls = self._handlers[str(kind)](link, header, payload)
        if kind in SEQUENCED:
            link.owe(0 if payload is None else len(payload))
        return calls

    def _greet_later(self, routing: bytes, hello: Header) -> list[Call]:
        try:
            return self._hello(routing, hello)
        except Refused as error:
            self._refusals.count(error, None)
            return []

    def _breach(self, rank: int, why: str) -> list[Call]:
        with self._shared.lock:
            return self._shared.lose(Loss(rank, f"it broke the protocol, as rank {self._shared.rank} saw: {why[:500]}"))

    def _acknowledge(self, link: Link, number: int) -> None:
        try:
            found = link.acknowledge(number)
        except ValueError as error:
            raise Malformed(str(error)) from None
        if found:
            with self._shared.lock:
                self.release(link, found)

    def release(self, link: Link, partings: list[Parting]) -> None:
        """Note, under the lock, that messages are delivered, or that their receiver is gone."""
        for parting in partings:
            self._shared.flying[link.peer] -= parting.size
            if parting.ticket is not None:
                parting.ticket.done = True
        self._shared.acknowledged += len(partings)
        self._shared.changed.notify_all()

    # Joining -----------------------------------------------------------------------------------------------------

    def _hello(self, routing: bytes, header: Header) -> list[Call]:
        objection = self._me.objection(header)
        if objection is None:
            rank, nonce, key = header["rank"], header["nonce"], header["key"]
            if self._me.rank != 0 and rank != 0 and not self.told:
                if len(self._early) < self._me.world:  # else it greets again
                    self._early[routing] = header
                return []
            objection = self._imposture(rank, nonce, key)
        if objection is None:
            try:
                link = self._sockets.dial(rank, header["listen"], key)
            except Refused as error:
                objection = str(error)
        if objection is not None:
            self._sockets.refuse(routing, objection)
            raise Malformed(f"a greeting of rank {header.get('rank', '?')}: {objection}")
        self._nonces[rank], self._keys[rank] = nonce, key
        if link.routing is not None:
            self._ranks.pop(link.routing, None)
        link.routing = routing
        link.heard = time.monotonic()
        self._ranks[routing] = rank
        if link.answer(header["epoch"]):
            self._sockets.renew(link)
        if self._me.rank == 0:
            self._introduce()
        return []

    def _imposture(self, rank: int, nonce: str, key: str) -> str | None:
        """Why the sender of a greeting is not who it says it is, as far as that is known."""
        if self._keys.get(rank, key) != key:
            return f"its public key is not the one of rank {rank}"
        if self._nonces.get(rank, nonce) != nonce:
            return f"another process joined as rank {rank} before"
        return None

    def _introduce(self) -> None:
        """On rank 0: tell all ranks of each other, once they are here."""
        links = self._sockets.links
        if self.told or len(links) < self._me.world - 1 or any(link.routing is None for link in links.values()):
            return
        self.told = True
        ranks = [[self._me.listen, self._me.nonce, self._keys.get(0, "")]]
        ranks += [[links[rank].address, self._nonces[rank], self._keys[rank]] for rank in range(1, self._me.world)]
        for link in links.values():
            link.send(Parting(link.peer, {"kind": "table", "ranks": ranks}))

    def _table(self, link: Link, header: Header, _: Any) -> list[Call]:
        ranks = header["ranks"]
        if link.peer != 0 or self.told or len(ranks) != self._me.world or ranks[self._me.rank][1] != self._me.nonce:
            raise Malformed("a table of ranks that is not this world's")
        self.told = True
        for rank, (address, nonce, key) in enumerate(ranks):
            if rank not in (0, self._me.rank):
                self._nonces[rank], self._keys[rank] = nonce, key
                try:
                    self._sockets.dial(rank, address, key)
                except Refused as error:
                    self._sockets.give_up(Refused(f"rank {rank} at {address}: {error}"))
                    return []
        early, self._early = self._early, {}
        return [call for routing, hello in early.items() for call in self._greet_later(routing, hello)]

    def _welcome(self, link: Link, header: Header, _: Any) -> list[Call]:
        if link.welcome(header["epoch"], header["received"]):
            link.ping()
        return []

    def _ping(self, link: Link, header: Header, _: Any) -> list[Call]:
        link.say({"kind": "pong", "at": header["at"], "there": time.perf_counter()})
        return []

    def _pong(self, link: Link, header: Header, _: Any) -> list[Call]:
        now = time.perf_counter()
        trip = now - header["at"]
        if link.pings >= PINGS or trip < 0:
            return []
        if trip < link.trip:
            link.trip, link.offset = trip, now - trip / 2 - header["there"]
        link.pings += 1
        link.ping()
        return []

    def ready(self) -> bool:
        """Whether this rank has met all others."""
        links = self._sockets.links.values()
        met = all(link.welcomed and link.routing is not None and link.pings >= PINGS for link in links)
        return met and len(links) == self._me.world - 1 and (self.told or self._me.world == 1)

    def _ready(self, link: Link, header: Header, _: Any) -> list[Call]:
        with self._shared.lock:
            self._shared.ready.add(link.peer)
            self._shared.changed.notify_all()
        return []

    # Running -----------------------------------------------------------------------------------------------------

    def _nothing(self, link: Link, header: Header, _: Any) -> list[Call]:
        return []

    def _beat(self, link: Link, header: Header, _: Any) -> list[Call]:
        link.waits = [tuple(wait) for wait in header["waits"]]
        return []

    def _open(self, link: Link, header: Header, _: Any) -> list[Call]:
        shared, number = self._shared, header["session"]
        with shared.lock:
            opens = shared.opens.setdefault(number, {}) if number in (shared.opened - 1, shared.opened) else None
            if opens is None or link.peer in opens:
                raise Malformed(f"it opened session {number}; this rank has opened {shared.opened}")
            opens[link.peer] = header
            shared.changed.notify_all()
        return []

    def _data(self, link: Link, header: Header, payload: Any) -> list[Call]:
        with self._shared.lock:
            session = self._shared.sessions.get(self._known(header["session"]))
            return session.receive(link.peer, header, payload) if session is not None else []

    def _expect(self, link: Link, header: Header, _: Any) -> list[Call]:
        with self._shared.lock:
            for number, tag, iteration in header["routes"]:
                session = self._shared.sessions.get(self._known(number))
                if session is not None:
                    session.asked(link.peer, tag, iteration)
        return []

    def _want(self, link: Link, header: Header, _: Any) -> list[Call]:
        with self._shared.lock:
            session = self._shared.sessions.get(self._known(header["session"]))
            if session is not None:
                session.wanted(link.peer)
        return []

    def _close(self, link: Link, header: Header, _: Any) -> list[Call]:
        link.acknowledge_now()
        with self._shared.lock:
            session = self._shared.sessions.get(self._known(header["session"]))
            return session.leave(link.peer, "it closed its transport") if session is not None else []

    def _abort(self, link: Link, header: Header, _: Any) -> list[Call]:
        with self._shared.lock:
            session = self._shared.sessions.get(self._known(header["session"]))
            return session.lose(Loss(link.peer, header["reason"])) if session is not None else []

    def _lost(self, link: Link, header: Header, _: Any) -> list[Call]:
        if header["rank"] >= self._me.world:
            raise Malformed(f"it lost rank {header['rank']} of {self._me.world}")
        with self._shared.lock:
            teller = link.peer if header["rank"] == self._me.rank else None
            return self._shared.lose(Loss(header["rank"], header["reason"], tuple(header["waits"]), teller))

    def _bye(self, link: Link, header: Header, _: Any) -> list[Call]:
        link.acknowledge_now()
        with self._shared.lock:
            self.release(link, link.forget())
            return self._shared.leave(link.peer)

    def _known(self, number: int) -> int:
        if number >= self._shared.opened:
            raise Malformed(f"it speaks of session {number}; this rank has opened {self._shared.opened}")
        return number
