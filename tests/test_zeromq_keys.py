"""Nobody gets in who does not belong: CURVE, admission by public key, and handshakes that say why they failed."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import zmq
from zmq.utils import z85

from hooks import WATCH, bits
from meshes import Worlds, opened
from purine_ref.errors import PeerLost, PurineError, Refused
from purine_ref.executors import Hosts
from purine_ref.tensor import Tensor
from purine_ref.transports import EARLY, Route, Transport
from purine_ref.transports.keys import Keys
from purine_ref.transports.zeromq import Joining, Mesh, admission, join
from purine_ref.transports.zeromq.admission import Admission, is_local, key_of, require_protection
from purine_ref.transports.zeromq.handshake import Identity
from purine_ref.transports.zeromq.handshakes import FAILED, Failure, events, failure
from purine_ref.transports.zeromq.loop import Loop
from ranked import serial_bits, training
from suites.transports import Connect, TransportContract

SECRETS = [z85.encode(bytes([number]) * 32) for number in range(1, 5)]
LISTENER, FRIEND, STRANGER, OTHER = [(zmq.curve_public(secret), secret) for secret in SECRETS]


def keys(pair: tuple[bytes, bytes], *admitted: tuple[bytes, bytes], root: tuple[bytes, bytes] = LISTENER) -> Keys:
    return Keys(*pair, frozenset(public for public, _ in admitted), root[0])


# Where keys are needed -----------------------------------------------------------------------------------------------


@pytest.fixture
def no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name but `localhost` is found, and no server is asked for one."""
    lookup = socket.getaddrinfo

    def numeric(host: str, port: None, type: int) -> list[Any]:
        return lookup("127.0.0.1" if host == "localhost" else host, port, type=type, flags=socket.AI_NUMERICHOST)

    monkeypatch.setattr(socket, "getaddrinfo", numeric)


@pytest.mark.usefixtures("no_names")
@pytest.mark.parametrize(
    "endpoint",
    ["ipc:///tmp/x", "tcp://127.0.0.1:5", "tcp://127.8.9.1:*", "tcp://[::1]:5", "tcp://localhost:0",
     "tcp://[::ffff:127.0.0.1]:5"],
)  # fmt: skip
def test_these_are_reached_from_this_machine_alone(endpoint: str) -> None:
    assert is_local(endpoint)
    require_protection(endpoint, None, insecure=False)


@pytest.mark.usefixtures("no_names")
@pytest.mark.parametrize(
    "endpoint",
    ["tcp://0.0.0.0:5", "tcp://*:5", "tcp://[::]:5", "tcp://10.0.0.1:5", "tcp://[fe80::1]:5", "tcp://eth0:5",
     "tcp://nowhere.invalid:5", "tcp://127.0.0.1;10.0.0.1:5", "tcp://:5", "tcp://[::ffff:10.0.0.1]:5", "tcp://xn--:5",
     "tcp://" + "x" * 99 + ":5", "pgm://127.0.0.1:5", "udp://127.0.0.1:5", "127.0.0.1:5", ""],
)  # fmt: skip
def test_for_these_keys_are_needed_or_the_word_insecure(endpoint: str) -> None:
    assert not is_local(endpoint)
    with pytest.raises(Refused, match=r"can be reached from other machines, .* `purine-ref keygen DIR` .*--insecure"):
        require_protection(endpoint, None, insecure=False)
    require_protection(endpoint, None, insecure=True)
    require_protection(endpoint, keys(FRIEND), insecure=False)


def test_a_name_is_local_only_if_all_its_addresses_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(host: str, *_: Any, **__: Any) -> list[Any]:
        found = {"both": ["127.0.0.1", "10.0.0.1"], "loop": ["127.0.0.1", "::1"], "none": []}
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0)) for address in found[host]]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert [is_local(f"tcp://{name}:5") for name in ("loop", "both", "none")] == [True, False, False]


# Two sockets ---------------------------------------------------------------------------------------------------------


@dataclass
class Meeting:
    """A listening and a connecting socket, and what becomes of them."""

    held: Keys | None
    answered: bool = True
    refusals: list[str] = field(default_factory=list)
    heard: list[zmq.Frame] = field(default_factory=list)
    failures: dict[str, list[Failure]] = field(default_factory=lambda: {"listening": [], "joining": []})

    def __post_init__(self) -> None:
        self.context = zmq.Context()
        self.elsewhere = zmq.Context()
        answering = self.context if self.answered else self.elsewhere
        self.admission = Admission(answering, self.held, self.refusals.append)
        self.router = self.context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.admission.listen(self.router)
        if not self.answered:
            self.router.handshake_ivl = 200  # milliseconds after which a handshake without an answer ends
        self.monitors = {"listening": self.router.get_monitor_socket(FAILED)}
        port = self.router.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self.dealer: zmq.Socket[bytes] | None = None

    def join(self, held: Keys | None, listener: bytes = LISTENER[0]) -> None:
        """Let somebody connect, with keys or none."""
        self.other = zmq.Context()
        self.theirs = Admission(self.other, held, self.refusals.append)
        self.dealer = self.other.socket(zmq.DEALER)
        self.dealer.linger = 0
        self.theirs.connect(self.dealer, listener.decode())
        self.monitors["joining"] = self.dealer.get_monitor_socket(FAILED)
        self.encrypted = {"listening": self.held is not None, "joining": held is not None}
        self.dealer.connect(self.endpoint)
        self.dealer.send(b"hello")

    def until(self, done: Callable[[], object]) -> None:
        """Poll until something is so, such as that a message has been `heard`."""
        poller = zmq.Poller()
        for polled in (self.admission.socket, self.router, *self.monitors.values()):
            poller.register(polled, zmq.POLLIN)
        deadline = time.monotonic() + WATCH
        while not done():
            assert time.monotonic() < deadline, "they neither met nor failed to"
            poller.poll(1000)
            self.admission.answer()
            if self.router.poll(0):
                self.heard = self.router.recv_multipart(copy=False)
            for side, monitor in self.monitors.items():
                for event, value in events(monitor):
                    found = failure(event, value, listening=side == "listening", encrypted=self.encrypted[side])
                    assert found is not None
                    self.failures[side].append(found)

    def close(self) -> None:
        for monitored in filter(None, (self.router, self.dealer)):
            monitored.disable_monitor()
        for monitor in self.monitors.values():
            monitor.close()
        self.admission.close()
        self.router.close()
        self.context.destroy(0)
        self.elsewhere.destroy(0)
        if self.dealer is not None:
            self.theirs.close()
            self.dealer.close()
            self.other.destroy(0)

    def both_failed(self) -> bool:
        return all(self.failures.values())

    def reasons(self, side: str) -> set[str]:
        return {failure.reason for failure in self.failures[side]}


@pytest.fixture
def meetings() -> Iterator[list[Meeting]]:
    made: list[Meeting] = []
    yield made
    for meeting in made:
        meeting.close()


def meeting(made: list[Meeting], held: Keys | None, answered: bool = True) -> Meeting:
    made.append(Meeting(held, answered))
    return made[-1]


def test_who_is_admitted_gets_in_and_is_known_by_its_key(meetings: list[Meeting]) -> None:
    met = meeting(meetings, keys(LISTENER, FRIEND))
    met.join(keys(FRIEND))
    met.until(lambda: met.heard)
    assert [bytes(frame) for frame in met.heard[1:]] == [b"hello"]
    assert key_of(met.heard[1]) == FRIEND[0].decode()
    assert (met.refusals, met.failures) == ([], {"listening": [], "joining": []})


def test_one_pair_on_all_hosts_is_enough(meetings: list[Meeting]) -> None:
    met = meeting(meetings, keys(LISTENER))
    met.join(keys(LISTENER))
    met.until(lambda: met.heard)
    assert key_of(met.heard[1]) == LISTENER[0].decode()


def test_without_keys_nobody_is_known(meetings: list[Meeting]) -> None:
    met = meeting(meetings, None)
    met.join(None)
    met.until(lambda: met.heard)
    assert key_of(met.heard[1]) == ""


def test_mq_08_a_key_that_is_not_admitted_is_told_so(meetings: list[Meeting]) -> None:
    met = meeting(meetings, keys(LISTENER, FRIEND))
    met.join(keys(STRANGER))
    met.until(met.both_failed)
    reason = "it does not admit this rank's public key: copy that .key file into the folder of keys there"
    assert met.failures["joining"] == [Failure(reason, final=True)]
    assert met.reasons("listening") == {"its public key is not admitted"}
    assert met.refusals == [f"peer at 127.0.0.1: its public key, {STRANGER[0].decode()}, is not admitted"]
    assert met.heard == []


def test_mq_08_a_wrong_key_of_the_listener_is_told_from_a_dead_network(meetings: list[Meeting]) -> None:
    met = meeting(meetings, keys(LISTENER, FRIEND))
    met.join(keys(FRIEND, OTHER), OTHER[0])
    met.until(met.both_failed)
    [reason] = met.reasons("joining")
    assert reason.startswith("it ended the connection, as one does that has another public key than the one expected")
    assert met.reasons("listening") == {"it took another public key for this rank's"}
    assert not met.failures["joining"][0].final
    assert met.heard == []


@pytest.mark.parametrize("encrypted", ["listening", "joining"])
def test_mq_08_plain_text_and_keys_do_not_meet(meetings: list[Meeting], encrypted: str) -> None:
    met = meeting(meetings, keys(LISTENER, FRIEND) if encrypted == "listening" else None)
    met.join(keys(FRIEND) if encrypted == "joining" else None)
    # before that, it may have seen the other end go away, and tried again
    met.until(lambda: any(failure.final for failure in met.failures["joining"]))
    reason = "one end has keys and the other none: give --keys on every rank, or on none"
    assert met.failures["joining"][-1].reason == reason
    assert met.reasons("listening") <= {reason, "it ended the connection"}
    assert met.heard == []


def test_mq_08_a_client_without_a_pair_of_its_own_does_not_get_in(meetings: list[Meeting]) -> None:
    """It forgot its own pair, and has the listener's key only: it makes one up, as an attacker would."""
    met = meeting(meetings, keys(LISTENER, FRIEND))
    made_up = zmq.curve_keypair()
    met.join(Keys(*made_up, frozenset(), LISTENER[0]))
    met.until(met.both_failed)
    assert met.failures["joining"][0].final
    assert (len(met.refusals), met.heard) == (1, [])


def test_a_dead_network_has_no_failed_handshake(meetings: list[Meeting]) -> None:
    met = meeting(meetings, keys(LISTENER, FRIEND))
    with socket.socket() as held:  # a port at which nobody listens, and that nobody else can take
        held.bind(("127.0.0.1", 0))
        met.endpoint = f"tcp://127.0.0.1:{held.getsockname()[1]}"
        met.join(keys(FRIEND))
        assert not met.monitors["joining"].poll(300)


def test_with_nobody_to_ask_nobody_comes_in(meetings: list[Meeting]) -> None:
    """Where no answerer is in a socket's context, even those who are admitted are kept out."""
    met = meeting(meetings, keys(LISTENER, FRIEND), answered=False)
    met.join(keys(FRIEND))
    met.until(met.both_failed)
    assert met.heard == []


def test_a_key_that_is_not_admitted_is_not_connected_to(meetings: list[Meeting]) -> None:
    met = meeting(meetings, keys(LISTENER, FRIEND))
    met.admission.require_admitted(FRIEND[0].decode())
    with pytest.raises(Refused, match=r"it is not admitted here; copy its .key file into the folder of keys"):
        met.admission.require_admitted(OTHER[0].decode())


def test_what_is_said_is_not_readable_on_the_way(meetings: list[Meeting]) -> None:
    """A wire-tap between the two sees that CURVE is spoken, and not what."""
    met = meeting(meetings, keys(LISTENER, FRIEND))
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as tap:
        port = int(met.endpoint.rpartition(":")[2])
        thread = threading.Thread(target=relay, args=(tap, port, seen), daemon=True)
        thread.start()
        met.endpoint = f"tcp://127.0.0.1:{tap.getsockname()[1]}"
        met.join(keys(FRIEND))
        met.until(lambda: met.heard)
        assert [bytes(frame) for frame in met.heard[1:]] == [b"hello"]
        meetings.remove(met)
        met.close()
        thread.join(WATCH)
    assert b"CURVE" in seen
    assert b"READY" in seen
    assert b"hello" not in seen
    assert not any(public in seen or z85.decode(public) in seen for public, _ in (FRIEND, LISTENER))


def relay(tap: socket.socket, port: int, seen: bytearray) -> None:
    """Carry bytes both ways for one connection, and keep a copy."""
    one, _ = tap.accept()
    with one, socket.create_connection(("127.0.0.1", port)) as two:
        back = threading.Thread(target=carry, args=(two, one, seen), daemon=True)
        back.start()
        carry(one, two, seen)
        two.shutdown(socket.SHUT_RDWR)
        back.join(WATCH)


def carry(source: socket.socket, target: socket.socket, seen: bytearray) -> None:
    while data := source.recv(4096):
        seen += data
        target.sendall(data)


# Worlds --------------------------------------------------------------------------------------------------------------


class TestEncrypted(TransportContract):
    """All that a transport promises, with CURVE, one pair on all ranks."""

    @pytest.fixture
    def connect(self) -> Iterator[Connect]:
        worlds = Worlds()

        def connected(incoming: Sequence[Mapping[Route, Tensor]], early: int = EARLY) -> Sequence[Transport]:
            return opened(worlds.join(len(incoming), keys=keys(LISTENER)), incoming, early=early)

        yield connected
        worlds.close()


ALL = (LISTENER, FRIEND, OTHER)
"""The pairs of ranks 0, 1 and 2."""


def outcomes(held: Sequence[Keys | None], patience: float = WATCH, **options: Any) -> list[Mesh | PurineError]:
    """What becomes of ranks that join with these keys: each joins, or is told why it cannot."""
    where: Future[str] = Future()

    def one(rank: int) -> Mesh | PurineError:
        address = "tcp://127.0.0.1:0" if rank == 0 else where.result(WATCH)
        bound = where.set_result if rank == 0 else None
        try:
            return join(Joining(rank, len(held), address, keys=held[rank], patience=patience, bound=bound, **options))
        except PurineError as error:
            return error

    with ThreadPoolExecutor(len(held)) as pool:
        found = list(pool.map(one, range(len(held))))
    for end in found:
        if isinstance(end, Mesh):
            end.close()
    return found


def test_ranks_with_a_pair_each_meet() -> None:
    ends = outcomes([keys(pair, *ALL) for pair in ALL])
    assert [end.refused for end in ends if isinstance(end, Mesh)] == [{}, {}, {}]


def test_mq_08_a_rank_that_rank_0_does_not_admit_is_told_so() -> None:
    zero, one = outcomes([keys(LISTENER), keys(STRANGER, LISTENER)], patience=1)
    assert isinstance(one, Refused)
    assert re.fullmatch(
        r"rank 0 at tcp://127.0.0.1:\d+: the handshake failed: it does not admit this rank's public key: .*", str(one)
    )
    assert isinstance(zero, PeerLost)
    assert zero.rank == 1
    assert f"its public key, {STRANGER[0].decode()}, is not admitted" in zero.reason


def test_mq_08_a_rank_with_another_key_for_rank_0_is_told_so() -> None:
    """After the time in which a peer must be heard, not after the time for which late ranks are waited for."""
    zero, one = outcomes([keys(LISTENER, FRIEND), keys(FRIEND, root=OTHER)], patience=2, timeout=0.3)
    assert isinstance(one, Refused)
    assert "the handshake failed: it ended the connection, as one does that has another public key" in str(one)
    assert isinstance(zero, PeerLost)
    assert "a handshake failed: it took another public key for this rank's" in zero.reason


@pytest.mark.parametrize("plain", [0, 1])
def test_mq_08_a_rank_without_keys_is_told_so(plain: int) -> None:
    held: list[Keys | None] = [keys(LISTENER, FRIEND), keys(FRIEND)]
    held[plain] = None
    zero, one = outcomes(held, patience=1)
    assert isinstance(one, Refused)
    assert "the handshake failed: one end has keys and the other none: give --keys on every rank, or on" in str(one)
    assert isinstance(zero, PeerLost)
    assert "a handshake failed: " in zero.reason


def test_mq_08_a_dead_network_is_no_wrong_key() -> None:
    """Nobody listens at that port: what is said is another thing, and after another time."""
    said = r"rank 0 is lost: it did not come within 0.5 s \(.* connection is not accepted"
    with socket.socket() as held:  # it cannot be taken by anybody else
        held.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(PeerLost, match=said):
            join(Joining(1, 2, address, keys=keys(FRIEND), timeout=0.2, patience=0.5))


def test_a_rank_that_another_one_does_not_admit_is_named() -> None:
    """Rank 0 admits all, rank 1 does not admit rank 2: nobody runs, and all are told whose key is missing where."""
    ends = outcomes([keys(LISTENER, *ALL), keys(FRIEND), keys(OTHER, *ALL)])
    pattern = rf"rank 2 at \S+: public key {re.escape(OTHER[0].decode())}: it is not admitted here"
    assert isinstance(ends[1], Refused)
    assert all(re.search(pattern, str(end)) for end in ends)
    assert all(isinstance(end, PeerLost) and end.rank == 1 for end in (ends[0], ends[2]))


def test_an_admitted_host_cannot_take_the_place_of_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2's process, admitted, greets rank 1 as rank 0 would: its key is another one."""
    told: list[str] = []
    greeting = Identity.greeting

    def forged(self: Identity, to: int, epoch: int) -> dict[str, Any]:
        return {**greeting(self, to, epoch), **({"rank": 0} if (self.rank, to) == (2, 1) else {})}

    monkeypatch.setattr(Identity, "greeting", forged)
    refuse = Loop.refuse
    monkeypatch.setattr(Loop, "refuse", lambda loop, routing, why: (told.append(why), refuse(loop, routing, why)))
    ends = outcomes([keys(pair, *ALL) for pair in ALL], patience=3)
    assert set(told) == {"its public key is not the one of rank 0"}
    assert isinstance(ends[2], Refused)


def test_a_world_beyond_the_loopback_needs_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is beyond it: the loopback is taken for reachable."""
    monkeypatch.setattr(admission, "is_local", lambda endpoint: False)
    with pytest.raises(Refused, match=r"^tcp://127.0.0.1:\d+ can be reached from other machines, and there are"):
        join(Joining(0, 1, "tcp://127.0.0.1:0"))
    assert [type(end) for end in outcomes([keys(LISTENER), keys(LISTENER)])] == [Mesh, Mesh]
    assert [type(end) for end in outcomes([None, None], insecure=True)] == [Mesh, Mesh]


def test_without_keys_nobody_is_sent_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that says it listens elsewhere is not connected to, nor is a name looked up for it."""
    for listen, why in {
        "tcp://10.0.0.1:5": "can be reached from other machines",
        "tcp://nowhere.invalid:5": "expected numbers, got the name",
        "tcp://0.0.0.0:5": "nobody can connect to it",
        "http://127.0.0.1:5": "expected tcp://HOST:PORT",
    }.items():
        monkeypatch.setattr(Identity, "greeting", with_listen(Identity.greeting, listen))
        zero, one = outcomes([None, None], patience=0.4)
        monkeypatch.undo()
        assert isinstance(one, Refused)
        assert why in str(one)
        assert isinstance(zero, PeerLost)


class Meddler:
    """A relay for one port that changes one bit of every so many bytes that pass, once it is told to."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.target: Future[int] = Future()
        self.armed = threading.Event()
        self.changed = 0
        self.ends = [socket.create_server(("127.0.0.1", 0))]
        self.address = f"tcp://127.0.0.1:{self.ends[0].getsockname()[1]}"
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):  # until it is closed
            while True:
                one, _ = self.ends[0].accept()
                self.ends.append(one)
                two = socket.create_connection(("127.0.0.1", self.target.result(WATCH)))
                self.ends.append(two)
                for ends in ((one, two), (two, one)):
                    self.threads.append(threading.Thread(target=self._carry, args=ends, daemon=True))
                    self.threads[-1].start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        passed = 0
        with suppress(OSError):
            while data := bytearray(source.recv(65_536)):
                passed += len(data) if self.armed.is_set() else 0
                if passed > self.every:
                    passed, self.changed = 0, self.changed + 1
                    data[len(data) // 2] ^= 4
                target.sendall(data)
        shut(source)
        shut(target)

    def close(self) -> None:
        shut(self.ends[0])
        self.threads[0].join(WATCH)
        for end in self.ends[1:]:
            shut(end)
        for thread in self.threads:
            thread.join(WATCH)
        for end in self.ends:
            end.close()


def shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def test_what_is_altered_on_the_way_is_not_believed_and_sent_again() -> None:
    """With keys, every change is noticed: the connection is made anew, and the run's result is the same bits."""
    graph, meddlers = training(2), [Meddler(5_000), Meddler(5_000)]

    def one(rank: int) -> tuple[dict[str, bytes], int]:
        bound = lambda address: meddlers[rank].target.set_result(int(address.rpartition(":")[2]))  # noqa: E731
        connect = meddlers[0].address if rank else "tcp://127.0.0.1:0"
        options = {"keys": keys(LISTENER), "bound": bound, "advertise": meddlers[rank].address, "timeout": 3.0}
        mesh = join(Joining(rank, 2, connect, **options))
        try:
            with Hosts(graph, world=mesh, threads=1) as hosts:
                meddlers[rank].armed.set()
                for _ in range(20):
                    hosts.run()
                meddlers[rank].armed.clear()
                return bits(hosts), meddlers[rank].changed
        finally:
            mesh.close()

    try:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(one, range(2)))
    finally:
        for meddler in meddlers:
            meddler.close()
    assert all(changed > 0 for _, changed in found)
    assert [held for held, _ in found] == [serial_bits(graph, 20)] * 2


def with_listen(greeting: Callable[..., dict[str, Any]], listen: str) -> Callable[..., dict[str, Any]]:
    return lambda identity, to, epoch: {**greeting(identity, to, epoch), "listen": listen}
