"""One graph's transport over a world of MPI: what may be sent, what has come, who is lost.

All state is guarded by the link's lock. What a rank expects it tells its peers by a frame, so that they know what they
may send beyond the early messages that there is room for (`Outbox`); what came is kept in an `Inbox`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from purine_ref.errors import PeerLost, Refused
from purine_ref.operation import Array
from purine_ref.tensor import Tensor
from purine_ref.transports.inbox import Inbox, Route
from purine_ref.transports.mpi.frames import buffer, integer, loss_of, lost, outgoing
from purine_ref.transports.mpi.link import Calls, Fields, Link
from purine_ref.transports.outbox import Outbox
from purine_ref.transports.waits import REASON, Loss, Wait, describe
from purine_ref.transports.world import Words

PATIENCE = 0.25
"""Seconds of one sleep of whoever waits: between two, an interrupt from the keyboard is seen."""


class Session:
    """One rank's end of one graph: see `Transport`. Made by `MpiWorld.open` alone."""

    def __init__(
        self,
        link: Link,
        number: int,
        name: str,
        incoming: Sequence[Mapping[Route, Tensor]],
        early: int,
        words: Words | None,
    ) -> None:
        self.rank = link.rank
        self._name, self._words = name, words
        self._link = link
        self._number = number
        self._incoming = incoming[link.rank]
        self._inbox = Inbox(link.rank, incoming[link.rank], early)
        self._outbox = Outbox(link.rank, incoming, early)
        self._refused: dict[Route, Refused] = {}  # routes along which a message came that cannot be taken
        self._gone: dict[int, str] = {}  # peers that closed, or left
        self._blocked: list[Wait] = []  # sends that wait for room
        self._lost: Loss | None = None
        self._watcher: Callable[[PeerLost], None] | None = None
        self._closed = False
        self._process = os.getpid()

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self._link.size

    def send(self, peer: int, tag: int, iteration: int, array: Array) -> None:
        """Have a copy sent, once there is room at the peer; see `Transport`."""
        self._require_process()
        with self._link.lock:
            self._require_sendable(peer, tag, iteration, array)
        copy = outgoing(array)  # outside the lock: it may take long
        with self._link.lock:
            self._require_sendable(peer, tag, iteration, array)
            if not self._outbox.has_room(peer, tag):
                self._wait_for_room(peer, tag, iteration, array)
            self._outbox.put(peer, tag, iteration)
            self._post([peer], "data", copy, tag=tag, iteration=iteration)

    def expect(
        self, peer: int, tag: int, iteration: int, arrived: Callable[[], None], into: Array | None = None
    ) -> None:
        """Call back when the message is there or never will be; see `Transport`. `into` is left alone until `take`."""
        self._require_process()
        with self._link.lock:
            self._require_open()
            if self._lost is not None:
                calls = [arrived]
            else:
                here = self._inbox.expect(peer, tag, iteration, arrived)
                calls = [arrived] if here else self._inbox.missing(peer) if peer in self._gone else []
                self._post([peer], "ask", tag=tag, iteration=iteration)
        for call in calls:
            call()

    def wait(self, arrived: threading.Event, seconds: float) -> bool:
        """Sleep until a callback has set `arrived`; see `Transport`."""
        return arrived.wait(seconds)

    def take(self, peer: int, tag: int, iteration: int, into: Array) -> None:
        """Write a message that has arrived into an array; see `Transport`."""
        self._require_process()
        with self._link.lock:
            self._require_open()
            self._require_nobody_lost()
            array = self._inbox.take(peer, tag, iteration, into)
            if array is None:
                if (peer, tag) in self._refused:
                    raise Refused(str(self._refused[peer, tag]))
                self._require_peer(peer)
                raise Refused(f"message of tag {tag}, iteration {iteration}, from rank {peer} has not arrived")
        into[...] = array

    def watch(self, lost: Callable[[PeerLost], None]) -> None:
        """Call back when a rank is lost; see `Transport`."""
        self._require_process()
        with self._link.lock:
            self._require_open()
            self._watcher = lost
            calls = self._watchers() if self._lost else []
        for call in calls:
            call()

    def close(self) -> None:
        """Let go of everything, once what was sent has left or nobody is there to take it; see `Transport`."""
        self._require_process()
        with self._link.lock:
            if self._closed:
                return
            self.abandon()
            if self._lost is not None:  # whoever has not heard of it yet shall not think that this rank just closed
                self._tell(self._lost)
            self._post(self._link.here(), "shut")
            while self._lost is None and not self._link.idle():
                self._link.changed.wait(PATIENCE)

    def abort(self, reason: str) -> None:
        """Tell all ranks that this one is lost."""
        self._require_process()
        with self._link.lock:
            if self._closed or self._lost:
                return
            loss = Loss(self.rank, reason[:REASON])
            self._tell(loss)
            calls = self.lose(loss)
            self._link.changed.notify_all()
        for call in calls:
            call()

    # By the world, with the link's lock held --------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether all ranks have closed: no frame for it comes any more."""
        return self._closed and len(self._gone) == self.world - 1

    def abandon(self) -> None:
        """Be closed, without a word to the others."""
        self._closed = True
        self._watcher = None
        self._inbox.missing()
        self._inbox.clear()

    def buffer(self, peer: int, fields: Fields) -> Array:
        """Where to receive the array of a message. Raises Refused where no such message may come."""
        tensor = self._incoming.get((peer, integer(fields, "tag")))
        if tensor is None:
            raise Refused(f"message of tag {fields['tag']} from rank {peer}: expected none")
        return buffer(tensor)

    def received(self, peer: int, fields: Fields, array: Array | None) -> Calls:
        """Go by a frame that came. Raises Refused for one that breaks the protocol."""
        kind = fields["kind"]
        if kind == "shut":
            return self.forget(peer, "it closed its transport")
        if kind == "lost":
            return self.lose(loss_of(fields))
        tag, iteration = integer(fields, "tag"), integer(fields, "iteration")
        if kind == "ask":
            self._outbox.ask(peer, tag, iteration)
            return ()
        if kind != "data" or array is None:
            raise Refused(f"frame of kind {kind!r} is unknown")
        return () if self._closed or self._lost else self._arrive(peer, tag, iteration, array)

    def lose(self, loss: Loss) -> Calls:
        """Note the first loss, and drop all messages."""
        if self._closed or self._lost:
            return ()
        self._lost = loss
        self._inbox.clear()
        return [*self._watchers(), *self._inbox.missing()]

    def forget(self, peer: int, reason: str) -> Calls:
        """A peer closed: nothing more comes from it."""
        self._gone.setdefault(peer, reason)
        return self._inbox.missing(peer)

    def waits(self) -> Iterator[Wait]:
        """What is expected and has not come, and what is to be sent and has no room."""
        for peer, tag, iteration in self._inbox.awaited():
            yield "receive", self._number, peer, tag, iteration
        yield from self._blocked

    def describe(self, rank: int, wait: Wait) -> str:
        """A line that says what a rank waits for."""
        return describe(rank, wait, self._name, self._words)

    # Under the link's lock --------------------------------------------------------------------------------------

    def _arrive(self, peer: int, tag: int, iteration: int, array: Array) -> Calls:
        """Keep a message. One that is not what this rank expects by now is refused when it is taken. Raises Refused."""
        native = np.asarray(array, array.dtype.newbyteorder("="))
        self._inbox.admit(peer, tag, iteration, native)
        conflict = self._inbox.conflict(peer, tag, iteration)
        if conflict is not None:
            self._refused[peer, tag] = conflict
            arrived = self._inbox.give_up(peer, tag)
        else:
            arrived = self._inbox.put(peer, tag, iteration, native)
        return () if arrived is None else (arrived,)

    def _wait_for_room(self, peer: int, tag: int, iteration: int, array: Array) -> None:
        wait: Wait = ("send", self._number, peer, tag, iteration)
        self._blocked.append(wait)
        try:
            while not self._outbox.has_room(peer, tag):
                self._link.changed.wait(PATIENCE)
                self._require_sendable(peer, tag, iteration, array)
        finally:
            self._blocked.remove(wait)

    def _post(self, peers: Sequence[int], kind: str, array: Array | None = None, **more: int) -> None:
        self._link.post(peers, {"kind": kind, "session": self._number, **more}, array)

    def _tell(self, loss: Loss) -> None:
        self._link.post(self._link.here(), lost(loss) | {"session": self._number})

    def _require_sendable(self, peer: int, tag: int, iteration: int, array: Array) -> None:
        self._require_open()
        self._require_nobody_lost()
        if not 0 <= peer < self.world:
            raise Refused(f"message of tag {tag}, iteration {iteration}, to rank {peer}: there are {self.world} ranks")
        self._require_peer(peer)
        self._outbox.check(peer, tag, iteration, array)

    def _watchers(self) -> Calls:
        """Calls that tell of the loss, if anybody watches."""
        watcher, self._watcher = self._watcher, None
        if watcher is None or self._lost is None:
            return ()
        error = self._lost.error()
        return (lambda: watcher(error),)

    def _require_process(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"transport of rank {self.rank} was made in process {self._process} and used after fork in "
                f"{os.getpid()}: join anew in a process of its own"
            )

    def _require_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"transport of rank {self.rank} is closed: make a new one")

    def _require_nobody_lost(self) -> None:
        if self._lost is not None:
            raise self._lost.error()

    def _require_peer(self, peer: int) -> None:
        if peer in self._gone:
            raise PeerLost(peer, self._gone[peer])
