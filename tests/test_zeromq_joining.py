"""How ranks join over ZeroMQ: in any order, at every kind of address, and who is refused, by whom, and why."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from hooks import WATCH
from meshes import LOOPBACK, Worlds, all_of, at_once, opened, ranks
from purine_ref.errors import PeerLost, Refused
from purine_ref.tensor import Tensor
from purine_ref.transports.zeromq import Joining, Mesh, join
from purine_ref.transports.zeromq.addresses import Endpoint, parse
from purine_ref.transports.zeromq.handshake import Identity
from purine_ref.transports.zeromq.wire import decode, encode
from suites.transports import MOMENT, all_to_all, beside, receive, vector

HERE = "tcp://127.0.0.1:1"


@pytest.fixture
def worlds() -> Iterator[Worlds]:
    made = Worlds()
    yield made
    made.close()


def round_trip(meshes: list[Mesh]) -> None:
    """Every rank sends to every other."""
    transports = opened(meshes, all_to_all(len(meshes), (2,)))
    for transport in transports:
        for peer in range(len(meshes)):
            if peer != transport.rank:
                transport.send(peer, 2, 0, vector(10 * transport.rank + peer))
    for transport in transports:
        for peer in range(len(meshes)):
            if peer != transport.rank:
                np.testing.assert_array_equal(receive(transport, peer, 2), vector(10 * peer + transport.rank))


# Order and addresses -------------------------------------------------------------------------------------------


@contextmanager
def free_port() -> Iterator[int]:
    """A port that nobody is given as long as nobody listens there: for a rank that is to bind it later."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZeroMQ does, which shares it then
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 0, 2)])
def test_ranks_may_come_in_any_order(order: tuple[int, ...]) -> None:
    """Each begins before the next one does: the others wait for it."""
    begun = [threading.Event() for _ in order]

    def one(place: int, address: str) -> Mesh:
        if place:
            assert begun[place - 1].wait(WATCH)
        return join(Joining(order[place], 3, address, bound=lambda _: begun[place].set()))

    with free_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        found = all_of(at_once([lambda place=place: one(place, address) for place in range(3)]))
    meshes = sorted(found, key=lambda mesh: mesh.rank)
    round_trip(meshes)
    at_once([mesh.close for mesh in meshes])


def test_mq_06_the_first_message_waits_for_ranks_that_come_late() -> None:
    """Rank 0 sends the weights as soon as it has joined; nobody's are lost, whenever it came."""
    actions = ranks(4)
    come = [threading.Event() for _ in actions]

    def worker(rank: int) -> Any:
        assert come[rank].wait(WATCH)
        mesh = actions[rank]()
        [transport] = opened([mesh], all_to_all(4, (2,)))
        weights = receive(transport, 0, 2)
        mesh.close()
        return weights

    def server() -> None:
        mesh = actions[0]()
        [transport] = opened([mesh], all_to_all(4, (2,)))
        for peer in (1, 2, 3):
            transport.send(peer, 2, 0, vector(7))
        mesh.close()

    with beside(at_once, [server, *(lambda rank=rank: worker(rank) for rank in (1, 2, 3))]) as all_ranks:
        for rank in (2, 3, 1):
            with pytest.raises(TimeoutError):
                all_ranks.result(MOMENT)
            come[rank].set()
        for weights in all_of(all_ranks.result(WATCH))[1:]:
            np.testing.assert_array_equal(weights, vector(7))


@pytest.mark.parametrize("address", ["tcp://localhost:0", "tcp://[::1]:0", "tcp://0.0.0.0:0"])
def test_addresses_may_be_names_and_of_both_versions(address: str) -> None:
    found = at_once(ranks(3, address, insecure=True))
    if "::1" in address and all("Cannot assign" in str(error) for error in found if isinstance(error, Refused)):
        pytest.skip("no IPv6 on this machine")
    meshes: list[Mesh] = all_of(found)
    round_trip(meshes)
    at_once([mesh.close for mesh in meshes])


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("tcp://10.1.2.3:80", Endpoint("tcp", "10.1.2.3", 80)),
        ("tcp://*:80", Endpoint("tcp", "0.0.0.0", 80)),
        ("tcp://localhost:80", Endpoint("tcp", "127.0.0.1", 80)),
        ("tcp://[fe80::1]:80", Endpoint("tcp", "fe80::1", 80)),
        ("ipc:///tmp/x", Endpoint("ipc", "/tmp/x")),
    ],
)
def test_an_address_is_resolved_once(text: str, endpoint: Endpoint) -> None:
    assert parse(text) == endpoint
    assert parse(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://127.0.0.1", r"expected tcp://HOST:PORT, tcp://\[IPv6\]:PORT or ipc://PATH"),
        ("tcp://127.0.0.1:65536", r"expected tcp://HOST:PORT"),
        ("tcp://::1:80", r"expected tcp://HOST:PORT"),
        ("udp://127.0.0.1:80", r"expected tcp://HOST:PORT"),
        ("ipc://", r"a path of 1 to 107 bytes"),
        ("ipc:///" + "x" * 107, r"a path of 1 to 107 bytes"),
        ("tcp://no.such.name.invalid:80", r"the name 'no.such.name.invalid' does not resolve"),
    ],
)
def test_what_is_no_address_is_refused(text: str, expected: str) -> None:
    with pytest.raises(Refused, match=expected):
        join(Joining(0, 1, text))


def test_an_address_in_use_is_refused(socket_folder: Path) -> None:
    """Also a file of `ipc`, which ZeroMQ alone would take from who listens there; one left behind is not in use."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        with pytest.raises(Refused, match=r"^tcp://127.0.0.1:\d+ cannot be listened at: Address already in use$"):
            join(Joining(0, 1, "tcp://{}:{}".format(*busy.getsockname())))
    path = socket_folder / "0"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        left.listen()
        with pytest.raises(Refused, match=r"^ipc://.*/0 cannot be listened at: Address already in use$"):
            join(Joining(0, 1, f"ipc://{path}"))
    join(Joining(0, 1, f"ipc://{path}")).close()


@pytest.mark.parametrize("wrong", [{"rank": 2}, {"rank": -1}, {"size": 0}, {"size": 257}, {"timeout": 0}])
def test_what_cannot_be_joined_raises(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"^(rank -?\d of \d+: expected|timeout and patience must be above 0, got)"):
        join(Joining(**{"rank": 0, "size": 2, "connect": LOOPBACK} | wrong))


# Who is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"run_id": "other"}, "it is of run 'other', expected 'this'"),
        ({"size": 3}, "its world has 3 ranks, expected 2"),
    ],
)
def test_a_rank_of_another_run_or_world_is_refused_and_says_why(wrong: dict[str, Any], expected: str) -> None:
    """The refused one says so at once; rank 0 goes on, and the right rank 1 may still come."""
    where: Future[str] = Future()
    with beside(join, Joining(0, 2, LOOPBACK, run_id="this", bound=where.set_result)) as joining:
        address = where.result(WATCH)
        with pytest.raises(Refused, match=f"^rank 0 at {address} refuses rank 1: {expected}$"):
            join(Joining(**{"rank": 1, "size": 2, "connect": address, "run_id": "this"} | wrong))
        one = join(Joining(1, 2, address, run_id="this"))
        zero = joining.result(WATCH)
        assert zero.refused["stranger"] > 0
        round_trip([zero, one])
        at_once([zero.close, one.close])


def test_a_second_rank_of_one_number_is_refused_and_the_first_goes_on(worlds: Worlds) -> None:
    where: Future[str] = Future()
    meshes: list[Mesh] = all_of(
        at_once(
            [
                lambda: join(Joining(0, 2, LOOPBACK, bound=where.set_result)),
                lambda: join(Joining(1, 2, where.result(WATCH))),
            ]
        )
    )
    with pytest.raises(Refused, match=r"refuses rank 1: another process joined as rank 1 before$"):
        join(Joining(1, 2, where.result(WATCH)))
    round_trip(meshes)
    at_once([mesh.close for mesh in meshes])


class Stranger:
    """A DEALER that says what a test has it say, to rank 0 of a world of two."""

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.RCVTIMEO, int(1000 * WATCH))
        self.socket.connect(address)

    def hello(self, **other: Any) -> dict[str, Any]:
        """Greet as rank 1, with some fields changed, and read the answer."""
        self.socket.send(encode(Identity(2, 1, "", HERE).greeting(0, 1) | other))
        return decode(self.socket.recv())

    def close(self) -> None:
        """Let go."""
        self._context.destroy(0)


@pytest.fixture
def stranger() -> Iterator[tuple[Stranger, Callable[[], Any]]]:
    """A stranger at rank 0, which waits for a second, and what then comes of rank 0."""
    where: Future[str] = Future()
    with beside(join, Joining(0, 2, LOOPBACK, patience=1.0, bound=where.set_result)) as joining:
        made = Stranger(where.result(WATCH))
        yield made, lambda: joining.result(WATCH)
        made.close()
        assert isinstance(joining.exception(WATCH), PeerLost)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"version": 7}, "it speaks version 7 of the protocol, expected 1"),
        ({"version": 7, "more": [1]}, "it speaks version 7 of the protocol, expected 1"),
        ({"to": 1}, "it looks for rank 1, and this is rank 0"),
        ({"rank": 0}, "it calls itself rank 0, expected another one of 2 than 0"),
        ({"rank": 2}, "it calls itself rank 2, expected another one of 2 than 0"),
    ],
)
def test_a_greeting_that_is_wrong_is_refused_with_the_reason(
    stranger: tuple[Stranger, Callable[[], Any]], other: dict[str, Any], expected: str
) -> None:
    """Both sides say it: the one that was refused at once, the other when it has waited in vain."""
    who, outcome = stranger
    assert who.hello(**other) == {"kind": "refuse", "reason": expected}
    with pytest.raises(PeerLost, match=f"^rank 1 is lost: it did not come within 1 s; refused .*{expected}$"):
        outcome()


def test_a_rank_that_does_not_come_is_lost_to_all_that_have() -> None:
    where: Future[str] = Future()
    found = at_once(
        [
            lambda: join(Joining(0, 3, LOOPBACK, patience=1.0, bound=where.set_result)),
            lambda: join(Joining(2, 3, where.result(WATCH), patience=1.0)),
        ]
    )
    for error in found:
        assert isinstance(error, PeerLost)
        assert (error.rank, error.reason) == (1, "it did not come within 1 s")


def test_rank_0_that_is_not_there_is_lost_and_its_address_told() -> None:
    with free_port() as port:
        address = f"tcp://127.0.0.1:{port}"
        said = rf"^rank 0 is lost: it did not come within 1 s \({address}: .*not accepted\)$"
        with pytest.raises(PeerLost, match=said):
            join(Joining(1, 2, address, patience=1.0))


def test_an_address_that_can_only_be_bound_is_refused_by_all_but_rank_0() -> None:
    for address in ("tcp://0.0.0.0:5555", "tcp://127.0.0.1:0"):
        with pytest.raises(Refused, match=f"^address '{address}': nobody can connect to it$"):
            join(Joining(1, 2, address))


def test_a_peer_that_was_written_from_the_page_alone_joins_and_computes() -> None:
    """`docs/wire.md` is enough: `wire_peer.py` knows nothing else. Each array has several chunks."""
    tensor = Tensor((150_000,), "float64")
    where: Future[str] = Future()
    program = Path(__file__).with_name("wire_peer.py")
    with beside(join, Joining(0, 2, LOOPBACK, bound=where.set_result)) as joining:
        peer = subprocess.Popen([sys.executable, "-P", program, where.result(WATCH), "3"])
        try:
            mesh = joining.result(WATCH)
            transport = mesh.open("net", "f" * 64, [{(1, 5): tensor}, {(0, 2): tensor}], early=4)
            for iteration in range(3):
                array = np.arange(150_000.0) + iteration
                transport.send(1, 2, iteration, array)
                np.testing.assert_array_equal(receive(transport, 1, 5, iteration, tensor), 2 * array)
            assert peer.wait(WATCH) == 0
            mesh.close()
        finally:
            peer.kill()
            peer.wait()
