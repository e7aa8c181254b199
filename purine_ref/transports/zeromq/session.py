"""One graph's transport over the mesh: what is sent, expected and taken, on any thread; see `Transport`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import zmq

from purine_ref.errors import PeerLost, Refused
from purine_ref.operation import Array
from purine_ref.tensor import Tensor
from purine_ref.transports.inbox import Inbox, Route
from purine_ref.transports.outbox import Outbox
from purine_ref.transports.waits import REASON, Loss, Wait, describe
from purine_ref.transports.world import Words
from purine_ref.transports.zeromq.parcel import SMALL, Parcel, wire_bytes
from purine_ref.transports.zeromq.shared import WINDOW, Call, Shared, Ticket
from purine_ref.transports.zeromq.wire import Malformed, chunks

BATCH = 64
"""How many of its expectations a rank keeps to itself at most, while no peer waits for room."""


class Session:
    """This rank's end of one graph's transport. Made by `Mesh.open` alone; `number` is the same on all ranks."""

    def __init__(
        self,
        shared: Shared,
        number: int,
        name: str,
        incoming: Sequence[Mapping[Route, Tensor]],
        early: int,
        words: Words,
    ) -> None:
        self.rank = shared.rank
        self.name = name
        self.number = number
        self._shared = shared
        self._inbox = Inbox(self.rank, incoming[self.rank], early)
        self._outbox = Outbox(self.rank, incoming, early)
        self._heads: dict[Route, dict[str, Any]] = {  # by (receiver, tag): what the headers of all its messages have
            (peer, tag): {
                "kind": "data",
                "session": number,
                "tag": tag,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
            }
            for peer, routes in enumerate(incoming)
            for (source, tag), tensor in routes.items()
            if source == self.rank
        }
        self._sending: set[Route] = set()  # routes along which a part of a message has gone
        self._wanting: set[int] = set()  # peers that know that this rank waited for their room
        self._words = words
        self._parcels: dict[Route, Parcel] = {}  # messages of which not all has come
        self._targets: dict[Route, tuple[int, Array]] = {}  # where expected messages go, of which nothing has come
        self._refusals: dict[Route, Refused] = {}  # of messages that are not the ones that were due
        self._asked: dict[int, list[list[int]]] = {}  # by peer: what it has not been told yet that it is expected
        self._batch = max(1, min(BATCH, early // 4))
        self._eager: set[int] = set()  # peers that waited for room, and so are told at once
        self._blocked: list[Wait] = []  # sends that wait
        self._left: dict[int, str] = {}  # peers that have closed, and how
        self._loss: Loss | None = None
        self._watcher: Callable[[PeerLost], None] | None = None
        self._closed = False

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self._shared.size

    # Any thread --------------------------------------------------------------------------------------------------

    def send(self, peer: int, tag: int, iteration: int, array: Array) -> None:
        """Copy the array, in chunks, into messages that wait to be sent, once there is room; see `Transport`.

        On the thread of a callback, which must not wait, it raises RuntimeError where it would have to wait for room.
        """
        shared = self._shared
        shared.require_process()
        with shared.lock:
            self._require_sendable(peer, tag, iteration, array)
            if not self._may_go(peer, tag):
                self._wait_to_go(peer, tag, iteration, array)
            self._outbox.put(peer, tag, iteration)
            self._sending.add((peer, tag))
        try:
            self._transmit(peer, tag, iteration, array)
        except PeerLost:
            raise
        except BaseException as error:
            self.abort(f"it sent only a part of a message: {error!r}")
            raise

    def expect(
        self, peer: int, tag: int, iteration: int, arrived: Callable[[], None], into: Array | None = None
    ) -> None:
        """Call back when the message is there or never will be; see `Transport`. Its chunks go right into `into`."""
        shared = self._shared
        shared.require_process()
        with shared.lock:
            self._require_open()
            if self._loss is not None:
                calls = [arrived]
            else:
                here = self._inbox.expect(peer, tag, iteration, arrived)
                calls = [arrived] if here else []
                if into is not None and not here:
                    self._aim(peer, tag, iteration, into)
                if peer in self._left:
                    calls += self._inbox.missing(peer)
                else:
                    self._ask(peer, tag, iteration)
        for call in calls:
            call()

    def wait(self, arrived: threading.Event, seconds: float) -> bool:
        """Sleep until a callback has set `arrived`; see `Transport`. This thread does the I/O meanwhile, if it can."""
        self._shared.require_process()
        return self._shared.await_arrival(arrived, seconds)

    def take(self, peer: int, tag: int, iteration: int, into: Array) -> None:
        """Write a message that has arrived into an array; see `Transport`."""
        shared = self._shared
        shared.require_process()
        with shared.lock:
            self._require_open()
            self._require_nobody_lost()
            refusal = self._refusals.get((peer, tag))
            if refusal is not None:
                raise Refused(str(refusal))
            parcel = self._inbox.take(peer, tag, iteration, into)
            if parcel is None:
                self._require_peer(peer)
                raise Refused(f"message of tag {tag}, iteration {iteration}, from rank {peer} has not arrived")
        parcel.write(into)

    def _aim(self, peer: int, tag: int, iteration: int, into: Array) -> None:
        """Have the chunks of an expected message written where they go, those that come and those that have come."""
        parcel = self._parcels.get((peer, tag))
        if parcel is None:
            self._targets[peer, tag] = iteration, into
        elif parcel.iteration == iteration:
            parcel.aim(into)

    def watch(self, lost: Callable[[PeerLost], None]) -> None:
        """Call back when a peer is lost; see `Transport`."""
        self._shared.require_process()
        with self._shared.lock:
            self._require_open()
            self._watcher = lost
            calls = self._watchers()
        for call in calls:
            call()

    def close(self) -> None:
        """Let go of everything, once every peer has acknowledged what it was sent, or is gone."""
        shared = self._shared
        shared.require_process()
        with shared.lock:
            if self._closed:
                return
            tickets: dict[int, Ticket] = {}
            if self._loss is None:
                self._tell_all({"kind": "close", "session": self.number}, tickets)
            self.abandon()
            shared.await_delivery(tickets, lambda peer: self._loss is not None or peer in self._left)
            shared.sessions.pop(self.number, None)

    def abort(self, reason: str) -> None:
        """Tell all ranks that this one is lost for this graph."""
        shared = self._shared
        shared.require_process()
        with shared.lock:
            if self._closed or self._loss is not None:
                return
            calls = self.lose(Loss(self.rank, reason[:REASON]))
            self._tell_all({"kind": "abort", "session": self.number, "reason": reason[:REASON]}, {})
        for call in calls:
            call()

    # Sending, under the lock but for `_transmit` --------------------------------------------------------------------

    def _require_sendable(self, peer: int, tag: int, iteration: int, array: Array) -> None:
        """Raise, as `send` does, for a message that the peer cannot take."""
        self._require_open()
        self._require_nobody_lost()
        if not 0 <= peer < self.world:
            raise Refused(f"message of tag {tag}, iteration {iteration}, to rank {peer}: there are {self.world} ranks")
        self._require_peer(peer)
        self._outbox.check(peer, tag, iteration, array)

    def _may_go(self, peer: int, tag: int) -> bool:
        """Whether the last message along a route has gone, and there is room for the next one."""
        return (peer, tag) not in self._sending and self._outbox.has_room(peer, tag)

    def _wait_to_go(self, peer: int, tag: int, iteration: int, array: Array) -> None:
        if threading.get_ident() == self._shared.thread:
            raise RuntimeError(f"rank {self.rank}: a callback sent to rank {peer}, which has no room: it cannot wait")
        wait: Wait = ("send", self.number, peer, tag, iteration)
        self._blocked.append(wait)
        try:
            while not self._may_go(peer, tag):
                if peer not in self._wanting and not self._outbox.has_room(peer, tag):
                    self._wanting.add(peer)
                    self._shared.post(peer, {"kind": "want", "session": self.number})
                self._shared.nap(time.monotonic() + 1)
                self._require_sendable(peer, tag, iteration, array)
        finally:
            self._blocked.remove(wait)

    def _transmit(self, peer: int, tag: int, iteration: int, array: Array) -> None:
        """Post a message chunk by chunk: each is copied while those before it travel."""
        shared = self._shared
        flat = wire_bytes(array)
        may_wait = threading.get_ident() != shared.thread
        head = {**self._heads[peer, tag], "iteration": iteration}
        for offset, end in chunks(flat.size):
            size = end - offset
            payload = flat[offset:end].tobytes() if size < SMALL else zmq.Frame(flat[offset:end], copy=True)
            with shared.lock:
                while may_wait and 0 < shared.flying[peer] > WINDOW - size:
                    self._shared.nap(time.monotonic() + 1)
                    self._require_open()
                    self._require_nobody_lost()
                    self._require_peer(peer)
                shared.post(peer, {**head, "offset": offset}, payload, size)
                if end == flat.size:
                    self._sending.discard((peer, tag))  # before an answer can come
                    if self._blocked:
                        shared.changed.notify_all()

    def _ask(self, peer: int, tag: int, iteration: int) -> None:
        """Note that a peer is to be told that a message is expected: at once, if it may wait for that."""
        asked = self._asked.setdefault(peer, [])
        asked.append([self.number, tag, iteration])
        if peer in self._eager or len(asked) >= self._batch:
            self._flush(peer)

    def _flush(self, peer: int) -> None:
        asked = self._asked.pop(peer, None)
        if asked and peer not in self._left:
            self._shared.post(peer, {"kind": "expect", "routes": asked})

    def _tell_all(self, header: dict[str, Any], tickets: dict[int, Ticket]) -> None:
        for peer in self._shared.peers:
            if peer not in self._left:
                tickets[peer] = Ticket()
                self._shared.post(peer, dict(header), ticket=tickets[peer])

    # What arrives, under the lock -----------------------------------------------------------------------------------

    def receive(self, peer: int, header: Mapping[str, Any], payload: zmq.Frame) -> list[Call]:
        """Keep a chunk; returns whom to call, if it was the last one of an expected message. Raises Refused."""
        if self._loss is not None or self._closed:
            return []
        tag, iteration, offset = header["tag"], header["iteration"], header["offset"]
        route = (peer, tag)
        parcel = self._parcels.get(route)
        if parcel is None:
            parcel = Parcel(header["dtype"], tuple(header["shape"]), iteration)
            self._check_first(peer, tag, parcel)
            self._parcels[route] = parcel
            due, into = self._targets.pop(route, (None, None))
            if due == iteration:
                parcel.aim(into)
        if (parcel.iteration, parcel.received) != (iteration, offset) or len(payload) != parcel.next_end() - offset:
            raise Malformed(
                f"a chunk of iteration {iteration} of bytes {offset} to {offset + len(payload)} along tag {tag}, where "
                f"{parcel.received} to {parcel.next_end()} of iteration {parcel.iteration} come next"
            )
        parcel.add(payload)
        if not parcel.complete:
            return []
        del self._parcels[route]
        return self._put(peer, tag, iteration, parcel)

    def _check_first(self, peer: int, tag: int, parcel: Parcel) -> None:
        """Check a message at its first chunk, before memory is taken for it."""
        self._inbox.admit(peer, tag, parcel.iteration, parcel)  # a conflict is told to whoever takes it
        if not self._inbox.has_room(peer, tag):
            raise Malformed(f"a message of tag {tag}, iteration {parcel.iteration}, for which there is no room")

    def _put(self, peer: int, tag: int, iteration: int, parcel: Parcel) -> list[Call]:
        conflict = self._inbox.conflict(peer, tag, iteration)
        if conflict is not None:
            self._refusals[peer, tag] = conflict
            arrived = self._inbox.give_up(peer, tag)
        else:
            arrived = self._inbox.put(peer, tag, iteration, parcel)
        return [] if arrived is None else [arrived]

    def asked(self, peer: int, tag: int, iteration: int) -> None:
        """A peer expects a message. Raises Refused for one that it cannot expect."""
        self._outbox.ask(peer, tag, iteration)
        if self._blocked:
            self._shared.changed.notify_all()

    def wanted(self, peer: int) -> None:
        """A peer waits for room: from now on it is told at once what is expected."""
        self._eager.add(peer)
        self._flush(peer)

    def flush(self) -> None:
        """Tell the peers what they have not been told yet."""
        for peer in list(self._asked):
            self._flush(peer)

    def leave(self, peer: int, reason: str) -> list[Call]:
        """A peer has closed."""
        self._left.setdefault(peer, reason)
        self._shared.changed.notify_all()
        return [] if self._closed else self._inbox.missing(peer)

    def lose(self, loss: Loss) -> list[Call]:
        """A rank is lost: drop everything; returns calls to the watcher and to all who expect anything."""
        if self._loss is not None or self._closed:
            self._loss = self._loss or loss
            self._shared.changed.notify_all()
            return []
        self._loss = loss
        calls = [*self._watchers(), *self._inbox.missing()]
        self._inbox.clear()
        self._parcels.clear()
        self._targets.clear()
        self._asked.clear()
        self._shared.changed.notify_all()
        return calls

    def abandon(self) -> None:
        """Be closed: nothing more is to be had here."""
        self._closed = True
        self._watcher = None
        self._inbox.missing()
        self._inbox.clear()
        self._parcels.clear()
        self._targets.clear()
        self._shared.changed.notify_all()

    def waits(self) -> Iterator[Wait]:
        """What is expected and has not come, and what is to be sent and has no room."""
        for peer, tag, iteration in self._inbox.awaited():
            yield "receive", self.number, peer, tag, iteration
        yield from self._blocked

    def describe(self, rank: int, wait: Wait) -> str:
        """A line that says what a rank waits for."""
        return describe(rank, wait, self.name, self._words)

    def _watchers(self) -> list[Call]:
        """Calls that tell the watcher of the loss, if there are both."""
        if self._watcher is None or self._loss is None:
            return []
        watcher, self._watcher = self._watcher, None
        error = self._loss.error()
        return [lambda: watcher(error)]

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"transport of rank {self.rank} is closed: make a new one")

    def _require_nobody_lost(self) -> None:
        if self._loss is not None:
            raise self._loss.error()

    def _require_peer(self, peer: int) -> None:
        if peer in self._left:
            raise PeerLost(peer, self._left[peer])
