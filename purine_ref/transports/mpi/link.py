"""One thread that makes all MPI calls, while ranks are joined: it posts what others queue, and hands on what comes.

MPI can say what has come, but not wake a thread when it does, so this one looks again and again: at once while there
is traffic, then after pauses that grow to `PAUSE`. Frames from one rank are handed on one after the other, in the order
in which they were sent, each with its array: a large one is received where the `Listener` says. Sends do not block;
their buffers are held until MPI is done with them.

Every rank sends each other beats, so that silence means something: a rank that is silent for longer than the time
limit is lost. Beats overtake all else. A pause of this process itself, stopped or starved, is not held against others.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from purine_ref.errors import Refused
from purine_ref.operation import Array
from purine_ref.transports.mpi.frames import INLINE, octets, pack, pieces, unpack

Calls = Sequence[Callable[[], None]]
Fields = dict[str, Any]

EAGER = 200
"""How many times in a row the thread looks for traffic in vain before it pauses."""

PAUSE = 1e-3
"""Seconds of the longest pause."""

BEATS_IN_LIMIT = 5
"""How many beats a rank sends in one time limit."""

FRAMES, ARRAYS, BEATS = 1, 2, 3
"""The tags of MPI's messages: frames, arrays that are too large for one, and frames that overtake."""


class Listener(Protocol):
    """Whom a link serves. Called with the link's lock held; the calls that are returned are made after it is let go."""

    def buffer(self, peer: int, fields: Fields) -> Array | None:
        """Where to receive the array that comes with a frame; None where there is none. Raises Refused."""

    def received(self, peer: int, fields: Fields, array: Array | None) -> Calls:
        """A frame has come, with its array. Raises Refused for what breaks the protocol."""

    def lose(self, rank: int, reason: str) -> Calls:
        """A rank is lost: it is silent, or cannot be believed, or, if it is this one, MPI failed."""

    def beat(self) -> Fields:
        """What a beat tells."""


@dataclass(slots=True)
class _Peer:
    """One other rank: when it was last heard, and the frame whose array is still coming."""

    heard: float
    fields: Fields = field(default_factory=dict)
    array: Array | None = None
    requests: list[Any] = field(default_factory=list)
    left: bool = False  # nothing more comes from it
    lost: bool = False  # nor does it take anything

    @property
    def gone(self) -> bool:
        """Whether it left, or is lost."""
        return self.left or self.lost


class Link:
    """This rank's end of a communicator that nobody else uses. `timeout`, the time limit, is in seconds.

    `lock` guards the listener too; `changed`, of the same lock, is notified when frames have come or gone.
    """

    def __init__(self, mpi: Any, communicator: Any, timeout: float, listener: Listener) -> None:
        self.rank: int = communicator.Get_rank()
        self.size: int = communicator.Get_size()
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self._mpi = mpi
        self._communicator = communicator
        self._timeout = timeout
        self._listener = listener
        self._peers = {peer: _Peer(time.monotonic()) for peer in range(self.size) if peer != self.rank}
        self._queue: deque[tuple[int, Fields, Array | None]] = deque()
        self._sending: list[tuple[int, list[Any], Any]] = []  # to whom, MPI's requests, and what they read from
        self._wake = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._work, name=f"mpi-rank{self.rank}", daemon=True)

    def start(self) -> None:
        """Begin; all peers are heard as of now."""
        self._thread.start()

    def end(self) -> None:
        """End the thread: it makes no more MPI calls. Not to be called on it."""
        self._ending = True
        self._wake.set()
        self._thread.join()

    # With the lock held -----------------------------------------------------------------------------------------

    def post(self, peers: Iterable[int], fields: Fields, array: Array | None = None) -> None:
        """Send a frame to ranks; those that are lost get none. The array, in C order, is the link's from now on."""
        self._queue.extend((peer, fields, array) for peer in peers if not self._peers[peer].lost)
        self._wake.set()

    def leave(self, peer: int) -> None:
        """A rank has left: nothing more comes from it, and its silence means nothing."""
        self._peers[peer].left = True

    def forget(self, peer: int) -> None:
        """A rank is lost: send it nothing more, and wait for nothing of it."""
        self._peers[peer].lost = True

    def here(self) -> list[int]:
        """The other ranks that have not left, and are not lost."""
        return [rank for rank, peer in self._peers.items() if not peer.gone]

    def idle(self) -> bool:
        """Whether all that was posted is on its way, except what is for ranks that are lost."""
        return all(self._peers[peer].lost for peer, *_ in (*self._queue, *self._sending))

    # On the link's thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self._serve()
        except Exception as error:  # an error of MPI, most likely: nobody can be reached any more
            self._lose(self.rank, f"its MPI failed: {error!r}")

    def _serve(self) -> None:
        beaten = looked = time.monotonic()
        vain = 0
        while not self._ending:
            self._wake.clear()
            busy = self._post_queue() | self._receive() | self._complete()
            now = time.monotonic()
            if now - looked > self._timeout / 2:  # this process stood still: first hear what came meanwhile
                for peer in self._peers.values():
                    peer.heard = now
            looked = now
            if now - beaten >= self._timeout / BEATS_IN_LIMIT:
                beaten = now
                self._beat(now)
            vain = 0 if busy else vain + 1
            if vain > EAGER:
                self._wake.wait(min(PAUSE, 1e-5 * (vain - EAGER)))
            elif vain:
                os.sched_yield()

    def _post_queue(self) -> bool:
        with self.lock:
            posts = list(self._queue)
            self._queue.clear()
            for peer, fields, array in posts:
                self._send(peer, fields, array)
        return bool(posts)

    def _send(self, peer: int, fields: Fields, array: Array | None) -> None:
        inline = array is not None and array.nbytes <= INLINE
        frame = pack(fields, array if inline else None)
        requests = [self._isend(frame, peer, BEATS if fields["kind"] == "beat" else FRAMES)]
        if array is not None and not inline:
            requests += [self._isend(piece, peer, ARRAYS) for piece in pieces(array)]
        self._sending.append((peer, requests, (frame, array)))

    def _isend(self, data: Any, peer: int, tag: int) -> Any:
        return self._communicator.Isend([data, self._mpi.BYTE], dest=peer, tag=tag)

    def _complete(self) -> bool:
        """Let go of what MPI has sent."""
        left = [sent for sent in self._sending if not self._mpi.Request.Testall(sent[1])]
        if len(left) == len(self._sending):
            return False
        with self.lock:
            self._sending = left
            self.changed.notify_all()
        return True

    def _receive(self) -> bool:
        """Hand on what has come: at most one frame of each rank, for fairness, and one beat."""
        steps = [self._step(rank, peer) for rank, peer in self._peers.items() if not peer.gone]
        beat = self._probe(self._mpi.ANY_SOURCE, BEATS)
        if beat is not None:
            self._believe(beat[0], self._begin, beat[1])
        return any(steps) or beat is not None

    def _step(self, rank: int, peer: _Peer) -> bool:
        """Go on with the array that comes from a rank, or with its next frame; returns whether there was any."""
        if not peer.requests:
            frame = self._probe(rank, FRAMES)
            if frame is None:
                return False
            self._believe(rank, self._begin, frame[1])
            return True
        if not self._mpi.Request.Testall(peer.requests):
            return False
        fields, array = peer.fields, peer.array
        peer.fields, peer.array, peer.requests = {}, None, []
        self._believe(rank, self._hand_on, fields, array)
        return True

    def _probe(self, source: int, tag: int) -> tuple[int, memoryview] | None:
        """The next frame of a tag from a rank, or from any, and whose it is."""
        status = self._mpi.Status()
        message = self._communicator.Improbe(source=source, tag=tag, status=status)
        if message is None:
            return None
        frame = bytearray(status.Get_count(self._mpi.BYTE))
        message.Recv([frame, self._mpi.BYTE])
        return status.Get_source(), memoryview(frame)

    def _begin(self, rank: int, frame: memoryview) -> Calls:
        """Hand on a frame, or start to receive the array that follows it."""
        fields, rest = unpack(frame)
        with self.lock:
            array = self._listener.buffer(rank, fields)
        follows = array is not None and array.nbytes > INLINE
        size = 0 if array is None or follows else array.nbytes
        if len(rest) != size:
            raise Refused(f"frame of kind {fields['kind']!r}: expected {size} bytes of an array, got {len(rest)}")
        if array is None or not follows:
            if size:
                octets(array)[:] = rest
            return self._hand_on(rank, fields, array)
        peer = self._peers[rank]
        peer.fields, peer.array = fields, array
        peer.requests = [
            self._communicator.Irecv([piece, self._mpi.BYTE], source=rank, tag=ARRAYS) for piece in pieces(array)
        ]
        return ()

    def _believe(self, rank: int, action: Callable[..., Calls], *arguments: Any) -> None:
        """Do what a frame asks for; a rank that breaks the protocol is lost."""
        self._peers[rank].heard = time.monotonic()
        try:
            calls = action(rank, *arguments)
        except Refused as error:
            self._lose(rank, f"it broke the protocol: {error}")
            return
        for call in calls:
            call()

    def _hand_on(self, rank: int, fields: Fields, array: Array | None) -> Calls:
        with self.lock:
            calls = self._listener.received(rank, fields, array)
            self.changed.notify_all()
        return calls

    def _lose(self, rank: int, reason: str) -> None:
        with self.lock:
            calls = self._listener.lose(rank, reason)
            self.changed.notify_all()
        for call in calls:
            call()

    def _beat(self, now: float) -> None:
        """Tell the others that this rank is there, and find those that are not."""
        with self.lock:
            self.post(self.here(), self._listener.beat())
            silent = [rank for rank in self.here() if now - self._peers[rank].heard > self._timeout]
        for rank in silent:
            heard = now - self._peers[rank].heard
            self._lose(rank, f"it was last heard {heard:.1f} s ago, and the limit is {self._timeout:g} s")
