"""A proxy between hosts that the test owns: one thread that carries bytes, late, not at all, or until it cuts.

A *way* is the pair (source, target) of two hosts: all bytes that flow so, whichever of the two made the connection.
Each way can be delayed, with jitter drawn from a seed, or stalled; a connection is cut by a reset on both sides, and
between hosts that are cut every new one is reset as well, until they are healed. `at` names a place in the stream of a
way: the proxy passes exactly so many bytes, then does what it was given, so a fault falls where the seed says and not
where the clock does. Only the proxy keeps time; who uses it waits for what it sets.
"""

from __future__ import annotations

import heapq
import itertools
import random
import selectors
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

Way = tuple[int, int]
Action = Callable[[], None]

CHUNK = 1 << 16
"""The most bytes that are read at once."""

HELD = 1 << 18
"""The most bytes of one flow that the proxy holds back: like a real network, it makes the sender wait at last."""

TICK = 0.005
"""Seconds after which the loop looks at what it was asked to `poll`."""

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER for a socket that is to be reset when it is closed."""


@dataclass(eq=False, slots=True)
class Pace:
    """How one way is treated: `delay` and `jitter` in seconds, `stalled`, and the bytes that have `passed`."""

    delay: float = 0.0
    jitter: float = 0.0
    stalled: bool = False
    passed: int = 0
    places: list[tuple[int, int, Action]] = field(default_factory=list)

    def room(self) -> int:
        """How many bytes may pass before the next place."""
        return self.places[0][0] - self.passed if self.places else CHUNK


@dataclass(eq=False, slots=True)
class Flow:
    """One direction of a connection: what `source` says and `target` has not yet been given."""

    way: Way
    source: socket.socket
    target: socket.socket
    held: deque[tuple[float, bytes]] = field(default_factory=deque)
    size: int = 0
    ended: bool = False  # the source said that it will send no more
    told: bool = False  # and so the target was told


@dataclass(eq=False, slots=True)
class Connection:
    """A connection that `way[0]` made to `way[1]`. `ready` when the far side has accepted."""

    way: Way
    near: socket.socket
    far: socket.socket
    flows: tuple[Flow, Flow]
    ready: bool = False


class Proxy:
    """Carries what is accepted at the listening sockets that it is given. Use it as a context manager.

    Everything is done by the proxy's own thread; a method returns when it is. What an action raises ends the proxy,
    and is raised by what is asked of it after that, and at the end.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._paces: defaultdict[Way, Pace] = defaultdict(Pace)
        self._cut: set[Way] = set()
        self._connections: list[Connection] = []
        self._listening: list[socket.socket] = []
        self._selector = selectors.DefaultSelector()
        self._number = itertools.count()
        self._timers: list[tuple[float, int, Action]] = []
        self._polls: list[tuple[Callable[[], bool], Action]] = []
        self._asked: deque[Callable[[], object]] = deque()
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self._selector.register(self._near, selectors.EVENT_READ, None)
        self._over = False
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="proxy")

    # What may be asked, by any thread ---------------------------------------------------------------------------

    def relay(self, way: Way, listening: socket.socket, dial: Callable[[], socket.socket], to: tuple[str, int]) -> None:
        """Carry each connection that is accepted at `listening` to the address `to`, over a socket that `dial` makes.

        Both are the proxy's to close.
        """
        listening.setblocking(False)
        self._ask(lambda: self._listen(way, listening, dial, to))

    def delay(self, way: Way, seconds: float, jitter: float = 0.0) -> None:
        """Let bytes of a way arrive `seconds` late, and up to `jitter` later, in order."""
        self._ask(lambda: self._delay(way, seconds, jitter))

    def stall(self, *ways: Way) -> None:
        """Let nothing through, and say nothing, until `resume`."""
        self._ask(lambda: self._stall(ways, True))

    def resume(self, *ways: Way) -> None:
        """Let through what was held back, and all after it."""
        self._ask(lambda: self._stall(ways, False))

    def cut(self, *ways: Way) -> None:
        """Reset all connections that the first host of each way made to the second, and all new ones, until `heal`."""
        self._ask(lambda: self._sever(ways))

    def heal(self, *ways: Way) -> None:
        """Let new connections be made again."""
        self._ask(lambda: self._cut.difference_update(ways))

    def at(self, way: Way, passed: int, action: Action) -> None:
        """Do `action` when exactly so many bytes of a way have passed in all; at once when they have already."""
        self._ask(lambda: self._place(way, passed, action))

    def after(self, seconds: float, action: Action) -> None:
        """Do `action` so much later."""
        due = time.monotonic() + seconds
        self._ask(lambda: heapq.heappush(self._timers, (due, next(self._number), action)))

    def when(self, condition: Callable[[], bool], action: Action) -> None:
        """Do `action` once `condition`, asked every `TICK`, holds."""
        self._ask(lambda: self._polls.append((condition, action)))

    def passed(self, way: Way) -> int:
        """The bytes of a way that have been carried to their end."""
        return self._paces[way].passed if way in self._paces else 0

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread, and close all that it has. Raises what an action raised."""
        try:
            self._ask(self._end)
        finally:
            self._thread.join()
            self._selector.close()
            self._near.close()
            self._far.close()

    # The proxy's own thread -------------------------------------------------------------------------------------

    def _ask(self, action: Callable[[], object]) -> None:
        """Have the proxy's thread do it, and return when it has. Raises what ended that thread."""
        if threading.current_thread() is self._thread:
            action()
            return
        done = threading.Event()
        self._asked.append(lambda: (action(), done.set()))
        self._far.send(b"x")
        while not done.wait(TICK):
            if not self._thread.is_alive():
                raise self._failed or RuntimeError("the proxy has ended")

    def _run(self) -> None:
        try:
            while not self._over:
                self._turn()
        except BaseException as error:
            self._failed = error
        finally:
            for connection in list(self._connections):
                self._reset(connection)
            for listening in self._listening:
                listening.close()

    def _end(self) -> None:
        self._over = True

    def _turn(self) -> None:
        while self._asked:
            self._asked.popleft()()
        if self._over:
            return
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        for poll in [poll for poll in self._polls if poll[0]()]:
            self._polls.remove(poll)
            poll[1]()
        for connection in list(self._connections):
            self._register(connection, now)
        for key, events in self._selector.select(self._patience(now)):
            if key.data is not None:
                key.data(events)
            else:
                self._near.recv(CHUNK)

    def _patience(self, now: float) -> float:
        """Seconds until the loop has to look again by itself."""
        ends = [at for at, _, _ in self._timers[:1]]
        flows = [flow for connection in self._connections for flow in connection.flows]
        ends += [flow.held[0][0] for flow in flows if flow.held and not self._paces[flow.way].stalled]
        ends += [now + TICK] if self._polls else []
        return max(0.0, min(1.0, min(ends, default=now + 1) - now))

    def _listen(
        self, way: Way, listening: socket.socket, dial: Callable[[], socket.socket], to: tuple[str, int]
    ) -> None:
        self._listening.append(listening)

        def accept(_: int) -> None:
            near, _peer = listening.accept()
            if way in self._cut:
                _reset(near)
                return
            far = dial()
            for end in (near, far):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far.connect_ex(to)
            flows = (Flow(way, near, far), Flow((way[1], way[0]), far, near))
            self._connections.append(Connection(way, near, far, flows))

        self._selector.register(listening, selectors.EVENT_READ, accept)

    def _delay(self, way: Way, seconds: float, jitter: float) -> None:
        pace = self._paces[way]
        pace.delay, pace.jitter = seconds, jitter

    def _stall(self, ways: tuple[Way, ...], stalled: bool) -> None:
        for way in ways:
            self._paces[way].stalled = stalled

    def _sever(self, ways: tuple[Way, ...]) -> None:
        self._cut.update(ways)
        for connection in [each for each in self._connections if each.way in ways]:
            self._reset(connection)

    def _place(self, way: Way, passed: int, action: Action) -> None:
        pace = self._paces[way]
        if pace.passed >= passed:
            action()
            return
        pace.places.append((passed, next(self._number), action))
        pace.places.sort(key=lambda place: place[:2])

    def _reset(self, connection: Connection) -> None:
        """End a connection as a crash does: what it held is lost, and both sides learn it at once."""
        self._forget(connection)
        _reset(connection.near)
        _reset(connection.far)

    def _forget(self, connection: Connection) -> None:
        self._connections.remove(connection)
        for end in (connection.near, connection.far):
            if end in self._selector.get_map():
                self._selector.unregister(end)

    # Carrying bytes ---------------------------------------------------------------------------------------------

    def _register(self, connection: Connection, now: float) -> None:
        """Ask the selector for what the two ends of a connection can do now."""
        forth, back = connection.flows
        for end, out, into in ((connection.near, forth, back), (connection.far, back, forth)):
            if not connection.ready:
                events = selectors.EVENT_WRITE if end is connection.far else 0
            else:
                events = selectors.EVENT_READ if not out.ended and out.size < HELD else 0
                events |= selectors.EVENT_WRITE if self._can_pass(into, now) else 0
            known = self._selector.get_map().get(end)
            if known is not None and known.events != events:
                self._selector.unregister(end)
                known = None
            if known is None and events:
                self._selector.register(end, events, lambda events, c=connection, e=end: self._serve(c, e, events))

    def _can_pass(self, flow: Flow, now: float) -> bool:
        if flow.told or self._paces[flow.way].stalled:
            return False
        return flow.held[0][0] <= now if flow.held else flow.ended

    def _serve(self, connection: Connection, end: socket.socket, events: int) -> None:
        if connection not in self._connections:  # an action has just reset it
            return
        try:
            if not connection.ready:
                code = end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    raise OSError(code, "refused")
                connection.ready = True
                return
            forth, back = connection.flows
            out, into = (forth, back) if end is connection.near else (back, forth)
            if events & selectors.EVENT_READ:
                self._read(out)
            if events & selectors.EVENT_WRITE:
                self._write(into)
        except OSError:  # one side is gone: so is the other
            if connection in self._connections:
                self._reset(connection)
            return
        if connection in self._connections and forth.told and back.told:
            self._forget(connection)
            connection.near.close()
            connection.far.close()

    def _read(self, flow: Flow) -> None:
        data = flow.source.recv(CHUNK)
        if not data:
            flow.ended = True
            return
        pace = self._paces[flow.way]
        due = time.monotonic() + pace.delay + self._random.random() * pace.jitter
        if flow.held:
            due = max(due, flow.held[-1][0])  # the order stays
        flow.held.append((due, data))
        flow.size += len(data)

    def _write(self, flow: Flow) -> None:
        """Pass what is due, up to the next place on this way, and do what is to be done there."""
        pace = self._paces[flow.way]
        if not flow.held:
            flow.told = True
            flow.target.shutdown(socket.SHUT_WR)
            return
        due, data = flow.held.popleft()
        count = flow.target.send(data[: min(CHUNK, pace.room())])
        if count < len(data):
            flow.held.appendleft((due, data[count:]))
        flow.size -= count
        pace.passed += count
        while pace.places and pace.places[0][0] <= pace.passed:
            pace.places.pop(0)[2]()


def _reset(end: socket.socket) -> None:
    """Close without delivering what is left."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    end.close()
