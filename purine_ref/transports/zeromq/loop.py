"""The I/O thread: it alone touches the sockets. It sends what was posted, handles what comes, and watches the time.

It may lend that to a thread that waits: see `helm`. One at a time is the I/O thread, whichever it is.

One ROUTER listens; one DEALER for each peer connects. What goes to a peer goes out by its DEALER, so whoever binds or
comes first, nothing is sent to nobody: a ROUTER sends only refusals, which may get lost.
"""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable, Sequence

import zmq

from purine_ref.errors import Refused
from purine_ref.transports.keys import Keys
from purine_ref.transports.waits import REASON, Loss
from purine_ref.transports.zeromq.addresses import Endpoint, parse_numeric
from purine_ref.transports.zeromq.admission import require_protection
from purine_ref.transports.zeromq.desk import Desk
from purine_ref.transports.zeromq.handshake import Identity
from purine_ref.transports.zeromq.handshakes import events, failure
from purine_ref.transports.zeromq.helm import Helm
from purine_ref.transports.zeromq.link import Link
from purine_ref.transports.zeromq.refusals import Refusals
from purine_ref.transports.zeromq.shared import LOG, Call, Shared
from purine_ref.transports.zeromq.sockets import SocketMaker
from purine_ref.transports.zeromq.wake import Wake
from purine_ref.transports.zeromq.wire import Malformed, decode, encode

BURST = 64
"""Most messages handled before what was posted is sent, and the clock is looked at."""

LINGER = 1000
"""Milliseconds that what was handed to a socket has to go when it is closed in peace."""

JOINING = 0.1
"""Seconds between two looks at the clock while ranks join."""


class Loop:
    """The sockets of one rank and the thread that owns them. Binds `listen`: raises Refused where it cannot."""

    def __init__(self, shared: Shared, listen: Endpoint, keys: Keys | None = None, insecure: bool = False) -> None:
        self._shared = shared
        self._keys, self._insecure = keys, insecure
        self.refusals = Refusals(shared.rank)
        self._sockets = SocketMaker(shared.timeout, keys, lambda why: self.refusals.count(Refused(why), None))
        self._router, self._strangers = self._sockets.listen(listen)
        self.bound = str(self._router.getsockopt_string(zmq.LAST_ENDPOINT))
        self.links: dict[int, Link] = {}
        self._poll = select.poll()
        self._watched: dict[int, Callable[[], None]] = {}  # by file descriptor: what to do when it can be read
        self._wake = Wake()
        shared.rouse = self._wake.rouse
        self._watch(self._wake.descriptor, self._wake.sleep)  # `_turn` sends what was posted, whatever woke it
        self._watch(self._router.FD, self._receive)
        self._watch(self._strangers.FD, self._watch_strangers)
        self._watch(self._sockets.admission.socket.FD, self._sockets.admission.answer)
        self._incoming = [(self._router, int(zmq.POLLIN))]
        self._drained = True  # nothing is left in the ROUTER
        self._helm = Helm(self._turn, self._goes_on, self._steered)
        shared.await_arrival = self._helm.wait
        self._thread = threading.Thread(target=self._run, name=f"rank{shared.rank}-sockets", daemon=True)
        self._linger: int | None = None  # milliseconds; set to end the thread, ...
        self._until = math.inf  # ... at the latest then
        self._readied = False
        self._told = False  # whether the loss was told to all
        self._tick = 0.0  # when to look at the clock again

    # Other threads -----------------------------------------------------------------------------------------------

    def start(self, identity: Identity, first: Endpoint | None) -> None:
        """Start the thread; `first` is rank 0's endpoint, to be greeted, on other ranks."""
        self._identity = identity
        self._desk = Desk(self._shared, identity, self, self.refusals, self._keys)
        self._first = first
        self._thread.start()

    def stop(self, linger: int) -> None:
        """Have the thread end; what it has handed to ZeroMQ has `linger` milliseconds to go."""
        self._linger = linger if self._linger is None else min(self._linger, linger)
        self._until = min(self._until, time.monotonic() + linger / 1000)
        self._shared.rouse()

    def join(self, seconds: float) -> bool:
        """Wait until the thread has ended; returns whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def waits_for_table(self) -> bool:
        """Whether rank 0 has answered, and has not said yet who the others are: it knows better who has not come."""
        return self._identity.rank != 0 and not self._desk.told and 0 not in self.trouble()

    def trouble(self) -> dict[int, str]:
        """What is wrong with the connections to peers that have not been met, by rank; for messages."""
        found = {}
        for peer, link in list(self.links.items()):
            if not link.welcomed or link.routing is None:
                found[peer] = f"{link.address}: {link.failure or 'it does not answer'}"
        return found

    # The thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._helm.take()
        try:
            if self._first is not None:
                self.dial(0, str(self._first), "" if self._keys is None else self._keys.root.decode())
            while self._linger is None or self._has_to_tell():
                self._turn(math.inf)
                self._helm.lend()
                if self._helm.failure is not None:
                    raise self._helm.failure
            self._send_posted()
            self._tell_loss()
        except BaseException as error:
            LOG.exception("rank %d: the thread of the sockets failed", self._shared.rank)
            with self._shared.lock:
                calls = self._shared.lose(Loss(self._shared.rank, f"its transport failed: {error!r}"))
            self._tell_loss()
            _make(calls)
        finally:
            self._end()

    def _goes_on(self) -> bool:
        """Whether those who wait may turn the loop: not when it is to end."""
        return self._linger is None and self._helm.failure is None

    def _steered(self, thread: int) -> None:
        self._shared.thread = thread

    def _turn(self, most: float) -> None:
        """Wait for anything, at most so many seconds, and do what there is to do."""
        left = max(0.0, min(most, self._tick - time.monotonic())) if self._drained else 0.0
        found = [descriptor for descriptor, _ in self._poll.poll(math.ceil(1000 * left))]
        self._send_posted()
        if not self._drained:
            self._receive()
        for descriptor in found:
            if descriptor in self._watched:  # else its connection was made anew
                self._watched[descriptor]()
        if not self._readied and self._desk.ready():
            self._announce()
        if self._shared.loss is not None and not self._told:
            self._tell_loss()
        now = time.monotonic()
        if now >= self._tick:
            self._look_at_clock(now)
        self._send_posted()  # what the above has posted

    def _send_posted(self) -> None:
        shared = self._shared
        if not shared.queue:
            return
        with shared.lock:
            posted = shared.posted()
        for parting in posted:
            link = self.links.get(parting.rank)
            if link is None or parting.rank in shared.gone:
                with shared.lock:
                    shared.flying[parting.rank] -= parting.size
                    if parting.ticket is not None:
                        parting.ticket.done = True
                    shared.changed.notify_all()
            else:
                link.send(parting)

    def _receive(self) -> None:
        """Handle what has come. A descriptor tells once that more has: so all is read, or `_drained` says that not."""
        self._drained = False
        for _ in range(BURST):
            if not zmq.zmq_poll(self._incoming, 0):  # cheaper than an error that is raised
                self._drained = True
                return
            routing = self._router.recv(zmq.NOBLOCK)
            frames = [self._router.recv(copy=False)]
            while frames[-1].more:
                frames[2:] = [self._router.recv(copy=False)]  # no message has three, so of more one tells as much
            _make(self._desk.handle(routing, frames))
            self._send_posted()

    def _look(self, link: Link) -> None:
        """See what happened to a connection."""
        if link.watch():
            if link.peer in self._shared.gone:
                self._part(link, 0)
            else:
                self._reconnect(link)

    def _read_refusal(self, link: Link) -> None:
        """The only thing that comes back on a connection: why it is refused."""
        try:
            header = decode(link.socket.recv(zmq.NOBLOCK))
            if header["kind"] != "refuse":
                raise Malformed(f"a message of kind {header['kind']} where only refusals may come")
        except zmq.Again:
            return
        except Malformed as error:
            self.refusals.count(error, link.peer)
            return
        said = f"refuses rank {self._shared.rank}: {header['reason']}"
        self.give_up(Refused(f"rank {link.peer} at {link.address} {said}"))

    def give_up(self, refusal: Refused) -> None:
        """This rank cannot join, or stay: have those who wait raise that."""
        with self._shared.lock:
            self._shared.refusal = self._shared.refusal or refusal
            calls = self._shared.lose(Loss(self._shared.rank, str(refusal))) if self._readied else []
            self._shared.changed.notify_all()
        _make(calls)

    def _watch_strangers(self) -> None:
        """Count and log handshakes that failed: who is not admitted, and what does not speak ZeroMQ."""
        for event, value in events(self._strangers):
            failed = failure(event, value, listening=True, encrypted=self._keys is not None)
            if failed is not None and event != zmq.EVENT_HANDSHAKE_FAILED_AUTH:  # `Admission` has counted that
                self.refusals.count(Refused(f"a handshake failed: {failed.reason}"), None)

    # Time ----------------------------------------------------------------------------------------------------------

    def _look_at_clock(self, now: float) -> None:
        shared = self._shared
        pause = shared.timeout / 5 if self._readied else min(JOINING, shared.timeout / 5)
        late = now - self._tick > shared.timeout / 2 and self._tick > 0  # then it cannot say who was silent meanwhile
        self._tick = now + pause
        for descriptor, action in list(self._watched.items()):
            if self._watched.get(descriptor) is action:  # else one before it has made that connection anew
                action()  # in case that sending has swallowed what a descriptor had to tell
        with shared.lock:
            waits = [list(wait) for wait in shared.waits()]
            for session in shared.sessions.values():
                session.flush()
        self._send_posted()
        for link in self.links.values():
            if link.peer in shared.gone:
                self._part(link, LINGER)
                continue
            if late and link.heard:
                link.heard = now
            if not link.welcomed:
                link.greet()
            link.ping()  # the last one may have been lost with its connection
            link.say({"kind": "beat", "ack": link.received, "waits": waits})
            self._check_silence(link, now)
            if not self._readied and link.barred(shared.timeout):
                self.give_up(Refused(f"rank {link.peer} at {link.address}: {link.failure}"))
        if shared.loss is not None:
            self._tell_loss()

    def _announce(self) -> None:
        """This rank has met all others: tell them."""
        self._readied = True
        with self._shared.lock:
            self._shared.offsets.update({peer: link.offset for peer, link in self.links.items()})
            self._shared.ready.add(self._shared.rank)
            self._shared.changed.notify_all()
            for peer in self._shared.peers:
                self._shared.post(peer, {"kind": "ready"})

    def _check_silence(self, link: Link, now: float) -> None:
        shared = self._shared
        if not link.heard or shared.loss is not None:
            return
        silent = now - link.heard
        if silent > 0.4 * shared.timeout and now - link.dialled > 0.2 * shared.timeout:
            self._reconnect(link)  # after a cut, the system's own next try may be far away
        if silent <= shared.timeout:
            return
        heard = time.strftime("%H:%M:%S", time.localtime(time.time() - silent))
        connection = f", {link.failure}" if link.failure else ""
        reason = f"it was silent for {silent:.1f} s, more than {shared.timeout:g} s; last heard at {heard}{connection}"
        with shared.lock:
            known = {peer: other.waits for peer, other in self.links.items()}
            known[shared.rank] = shared.waits()
            calls = shared.lose(Loss(link.peer, reason, shared.describe(known)))
        self._tell_loss()
        _make(calls)

    def _has_to_tell(self) -> bool:
        """Whether there was a loss that a peer cannot have heard of, for its connection is yet to be made."""
        loss = self._shared.loss
        if loss is None or time.monotonic() >= self._until:
            return False
        return any(link.unmade and link.peer not in {loss.rank, *self._shared.gone} for link in self.links.values())

    def _tell_loss(self) -> None:
        """Tell everyone what was lost: again and again, for a message may get lost too."""
        loss = self._shared.loss
        if loss is not None:
            self._told = True
            self._send_posted()  # what a run said of itself, before what its process says
            for link in self.links.values():
                link.say({"kind": "lost", "rank": loss.rank, "reason": loss.reason[:REASON], "waits": list(loss.waits)})

    # Sockets ---------------------------------------------------------------------------------------------------------

    def dial(self, peer: int, address: str, key: str) -> Link:
        """Connect to a peer, unless that was done before, and trust only who holds that public key, if there are keys.

        Raises Refused for an address or a key that this rank does not connect to.
        """
        if peer not in self.links:
            endpoint = parse_numeric(address)
            require_protection(str(endpoint), self._keys, self._insecure)
            self._sockets.admission.require_admitted(key)
            encrypted = self._keys is not None
            greeting, dealer = self._identity.greeting, lambda _: self._sockets.connect(endpoint, key)
            self.links[peer] = Link(peer, address, greeting, dealer, encrypted=encrypted)
            self._register(self.links[peer])
        return self.links[peer]

    def refuse(self, routing: bytes, reason: str) -> None:
        """Tell a stranger why it is refused, if it can be told."""
        try:
            self._router.send_multipart([routing, encode({"kind": "refuse", "reason": reason})], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            LOG.debug("rank %d could not tell a stranger that it is refused: %s", self._shared.rank, error)

    def _watch(self, descriptor: int, action: Callable[[], None]) -> None:
        """Have `action` called when there is something to read. It must leave nothing: ZeroMQ tells of it once."""
        self._watched[descriptor] = action
        self._poll.register(descriptor, select.POLLIN)

    def _register(self, link: Link) -> None:
        self._watch(link.monitor.FD, lambda: self._look(link))
        self._watch(link.socket.FD, lambda: self._read_refusal(link))
        self._read_refusal(link)  # a descriptor tells nothing before the first look
        link.watch()

    def _unregister(self, link: Link) -> None:
        for watched in (link.monitor, link.socket):
            self._poll.unregister(watched.FD)
            del self._watched[watched.FD]

    def _part(self, link: Link, linger: int) -> None:
        """Let go of the connection to a peer that has left. It was told so: what it said last is acknowledged."""
        if not link.ended:
            link.ended = True
            self._unregister(link)
            link.close(linger)

    def renew(self, link: Link) -> None:
        """Connect to a peer once more, unless that was done just now: or two ranks would go on answering each other."""
        if time.monotonic() - link.dialled > 0.2 * self._shared.timeout:
            self._reconnect(link)

    def _reconnect(self, link: Link) -> None:
        self._unregister(link)
        link.connect()
        self._register(link)

    def _end(self) -> None:
        """Close everything, and tell those who wait that nobody comes any more."""
        linger = self._linger or 0
        for link in self.links.values():
            if not link.ended:
                link.close(linger)
        self._router.disable_monitor()
        self._strangers.close(0)
        self._router.close(linger)
        self._sockets.close()
        with self._shared.lock:
            self._shared.ended = True
            self._wake.close()
            self._shared.changed.notify_all()


def _make(calls: Sequence[Call]) -> None:
    for call in calls:
        call()
