"""Lost peers over ZeroMQ: killed, stopped, cut off and forked, what is told of them, and ends that never hang."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import numpy as np
import pytest

from hooks import WATCH
from meshes import LOOPBACK, Worlds, all_of, at_once, line, opened, process
from purine_ref.errors import PeerLost
from purine_ref.tensor import Tensor
from purine_ref.transports.zeromq import Joining, Mesh, Session, join
from purine_ref.transports.zeromq.loop import LINGER
from separation.proxy import Connection, Proxy
from suites.transports import MOMENT, all_to_all, beside, expect, receive, take, vector

TIMEOUT = 1.0
"""Seconds of silence after which a peer is lost, in these tests."""

LIMIT = 5.0
"""Seconds within which all ranks must know of a loss: more than `TIMEOUT`, since the machine may be busy."""

WORDS = {(rank, peer, 2): f"operator 'x>{rank}' for blob 'x'" for rank in range(3) for peer in range(3)}


@pytest.fixture
def worlds() -> Iterator[Worlds]:
    made = Worlds()
    yield made
    made.close()


# Processes that die ---------------------------------------------------------------------------------------------


@contextmanager
def with_a_process() -> Iterator[tuple[list[Session], list[Mesh], subprocess.Popen[str]]]:
    """Ranks 0 and 2 of this process and rank 1 of another, which waits for a message of rank 0."""
    where: Future[str] = Future()
    actions = [
        lambda: join(Joining(0, 3, LOOPBACK, timeout=TIMEOUT, bound=where.set_result)),
        lambda: join(Joining(2, 3, where.result(WATCH), timeout=TIMEOUT)),
    ]
    with beside(at_once, actions) as joining, process(1, 3, where.result(WATCH), TIMEOUT) as other:
        meshes: list[Mesh] = all_of(joining.result(WATCH))
        try:
            sessions = opened(meshes, all_to_all(3, (2,)), words=WORDS)
            assert line(other) == "open"
            yield sessions, meshes, other
        finally:
            at_once([mesh.close for mesh in meshes])


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_dies_or_stops_is_lost_to_all_in_time(stop: signal.Signals) -> None:
    """The error says when it was last heard, and who waits for whom: the same on all ranks that are left."""
    with with_a_process() as ((zero, two), _, other):
        calls = [expect(zero, 1, 2), expect(two, 0, 2)]
        other.send_signal(stop)
        stopped = time.monotonic()
        for call in calls:
            call.wait()
        assert time.monotonic() - stopped < LIMIT
        said = []
        for transport, peer in ((zero, 1), (two, 0)):
            silent = r"^rank 1 is lost: it was silent for \d\.\d s, more than 1 s; last heard at \d\d:\d\d:\d\d"
            with pytest.raises(PeerLost, match=silent) as caught:
                take(transport, peer, 2)
            assert caught.value.rank == 1
            assert caught.value.waits[0] == (
                "rank 0 waits for rank 1: operator 'x>0' for blob 'x', message of iteration 0"
            )
            assert caught.value.waits[-1] == (
                "rank 2 waits for rank 0: operator 'x>2' for blob 'x', message of iteration 0"
            )
            said.append(str(caught.value))
        assert said[0] == said[1]
        assert said[0].endswith("\n  ".join(("", *caught.value.waits)))
        if stop == signal.SIGSTOP:  # it wakes in a world that has lost it
            other.send_signal(signal.SIGCONT)
            assert re.match(r"rank [02]: to it, this rank, 1, is lost: it was silent", line(other))


def test_a_process_that_leaves_is_not_silent() -> None:
    with with_a_process() as ((zero, two), meshes, other):
        zero.send(1, 2, 0, vector(3))
        assert line(other) == "[3.0, -3.0, 0.5]"
        assert other.wait(WATCH) == 0
        two.send(0, 2, 0, vector(2))
        np.testing.assert_array_equal(receive(zero, 2, 2), vector(2))
        call = expect(zero, 1, 2)
        call.wait()
        with pytest.raises(PeerLost, match=r"^rank 1 is lost: it has left$"):
            take(zero, 1, 2)
        with pytest.raises(PeerLost, match=r"^rank 1 is lost: it has left, and did not open graph 'net'$"):
            opened(meshes[:1], all_to_all(3, (2,)))


# Connections that break --------------------------------------------------------------------------------------------


@contextmanager
def behind_a_proxy(timeout: float) -> Iterator[tuple[Proxy, list[Mesh]]]:
    """Two ranks whose connections go through a proxy: way (1, 0) is that of what rank 1 sends to rank 0."""
    where: Future[str] = Future()
    doors = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = ["tcp://{}:{}".format(*door.getsockname()) for door in doors]

    def relay(rank: int, bound: str) -> None:
        host, _, port = bound.removeprefix("tcp://").rpartition(":")
        proxy.relay((1 - rank, rank), doors[rank], socket.socket, (host, int(port)))

    def first() -> Mesh:
        return join(
            Joining(0, 2, LOOPBACK, timeout=timeout, bound=lambda bound: (relay(0, bound), where.set_result(bound)))
        )

    def second() -> Mesh:
        where.result(WATCH)
        bound = lambda bound: relay(1, bound)  # noqa: E731
        return join(Joining(1, 2, addresses[0], LOOPBACK, timeout=timeout, advertise=addresses[1], bound=bound))

    with Proxy() as proxy:
        meshes: list[Mesh] = all_of(at_once([first, second]))
        try:
            yield proxy, meshes
        finally:
            at_once([mesh.close for mesh in meshes])


@pytest.mark.parametrize("way", [(0, 1), (1, 0)])
def test_what_a_broken_connection_lost_is_sent_again(way: tuple[int, int]) -> None:
    """The connection is cut in the middle of chunks, four times, and healed at once: all arrives, once, in order."""
    tensor = Tensor((300_000,), "float64")
    rng = np.random.default_rng(way[0])
    array = rng.integers(0, 9, tensor.shape).astype("float64")
    with behind_a_proxy(timeout=20.0) as (proxy, meshes):
        zero, one = opened(meshes, all_to_all(2, (2,), tensor))

        def cut() -> None:
            proxy.cut(way)
            proxy.heal(way)

        start = proxy.passed(way)
        for place in (1, 400_000, 2_000_000, 5_000_000):
            proxy.at(way, start + place, cut)

        def send_all(transport: Session) -> None:
            for iteration in range(5):
                transport.send(1 - transport.rank, 2, iteration, array + iteration)

        with beside(send_all, zero) as a, beside(send_all, one) as b:
            for iteration in range(5):
                for receiver in (zero, one):
                    got = receive(receiver, 1 - receiver.rank, 2, iteration, tensor)
                    np.testing.assert_array_equal(got, array + iteration)
            a.result(WATCH)
            b.result(WATCH)
        assert proxy.passed(way) > start + 5_000_000
        assert all(not mesh.refused.get("peer") for mesh in meshes)


def test_a_cut_that_does_not_heal_is_a_loss_on_both_sides() -> None:
    with behind_a_proxy(timeout=TIMEOUT) as (proxy, meshes):
        transports = opened(meshes, all_to_all(2, (2,)))
        calls = [expect(transport, 1 - transport.rank, 2) for transport in transports]
        proxy.cut((0, 1), (1, 0))
        for transport, call in zip(transports, calls, strict=True):
            call.wait()
            peer = 1 - transport.rank
            with pytest.raises(PeerLost, match=rf"^rank {peer} is lost: it was silent for .*\d, .* connection"):
                take(transport, peer, 2)


def test_a_stall_shorter_than_the_limit_is_no_loss() -> None:
    """Nothing passes, and nothing breaks: until it goes on, half a limit later."""
    with behind_a_proxy(timeout=4 * TIMEOUT) as (proxy, meshes):
        zero, one = opened(meshes, all_to_all(2, (2,)))
        call = expect(one, 0, 2)
        proxy.stall((0, 1), (1, 0))
        zero.send(1, 2, 0, vector(1))
        proxy.after(TIMEOUT, lambda: proxy.resume((0, 1), (1, 0)))
        call.wait()
        np.testing.assert_array_equal(take(one, 0, 2), vector(1))


def test_a_connection_that_the_network_forgot_is_made_again() -> None:
    """Nothing of the old ones passes any more, and nobody is told; new ones do."""
    forgotten: list[Connection] = []
    with behind_a_proxy(timeout=3 * TIMEOUT) as (proxy, meshes):
        zero, one = opened(meshes, all_to_all(2, (2,)))

        def forget() -> None:
            forgotten.extend(proxy._connections)
            for connection in forgotten:
                proxy._forget(connection)

        proxy._ask(forget)
        for iteration in range(3):
            zero.send(1, 2, iteration, vector(iteration))
            np.testing.assert_array_equal(receive(one, 0, 2, iteration), vector(iteration))
            one.send(0, 2, iteration, vector(-iteration))
            np.testing.assert_array_equal(receive(zero, 1, 2, iteration), vector(-iteration))
    for connection in forgotten:
        connection.near.close()
        connection.far.close()


def test_mq_01_what_is_written_over_while_it_waits_arrives_as_it_was_sent() -> None:
    """Nothing passes while the sender writes over its arrays, small and of several chunks: they were copied."""
    small, large = Tensor((3,), "float64"), Tensor((1_900_000,), "float64")  # more than sockets hold on the way
    with behind_a_proxy(timeout=20.0) as (proxy, meshes):
        zero, one = opened(meshes, [{}, {(0, 2): small, (0, 5): large}])
        proxy.stall((0, 1), (1, 0))
        for tag, tensor in ((2, small), (5, large)):
            array = np.arange(float(tensor.shape[0]))
            zero.send(1, tag, 0, array)
            array[...] = -1
        proxy.resume((0, 1), (1, 0))
        for tag, tensor in ((2, small), (5, large)):
            np.testing.assert_array_equal(receive(one, 0, tag, 0, tensor), np.arange(float(tensor.shape[0])))


# Ends that do not hang ---------------------------------------------------------------------------------------------


def test_mq_04_closing_ends_when_the_peer_is_gone() -> None:
    """Neither leaving nor aborting waits for a process that is stopped."""
    with with_a_process() as ((zero, _), _, other):
        other.send_signal(signal.SIGSTOP)
        zero.send(1, 2, 0, vector(1))
        begun = time.monotonic()
        zero.close()
        assert time.monotonic() - begun < LIMIT


def test_mq_04_leaving_waits_until_what_was_sent_has_arrived() -> None:
    """10 MB, while nothing passes: who leaves at once stays until it does, and all of it can be received."""
    tensor = Tensor((1_250_000,), "float64")
    with behind_a_proxy(timeout=20.0) as (proxy, meshes):
        zero, one = opened(meshes, [{}, {(0, 2): tensor}])
        proxy.stall((0, 1), (1, 0))
        zero.send(1, 2, 0, np.arange(1_250_000.0))
        with beside(meshes[0].close) as leaving:
            with pytest.raises(TimeoutError):
                leaving.result(LINGER / 1000 + MOMENT)  # what ZeroMQ alone would wait for
            proxy.resume((0, 1), (1, 0))
            leaving.result(WATCH)
        np.testing.assert_array_equal(receive(one, 0, 2, 0, tensor), np.arange(1_250_000.0))


def test_aborting_does_not_wait() -> None:
    with with_a_process() as ((zero, two), _, other):
        other.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        zero.abort("no power")
        assert time.monotonic() - begun < TIMEOUT
        with pytest.raises(PeerLost, match=r"^rank 0 is lost: no power$"):
            receive(two, 1, 2)


def test_mq_03_what_is_sent_to_a_peer_that_stops_reading_waits_and_then_raises() -> None:
    """The window is full, and the sender waits in `send`: it ends with the loss, and not before."""
    tensor = Tensor((4 * 2**20,), "float64")  # twice the window
    with behind_a_proxy(timeout=TIMEOUT) as (proxy, meshes):
        sender, _ = opened(meshes, all_to_all(2, (2,), tensor))
        proxy.stall((0, 1), (1, 0))
        with pytest.raises(PeerLost, match=r"^rank 1 is lost: it was silent for"):
            sender.send(1, 2, 0, np.zeros(tensor.shape))


def test_mq_07_a_forked_process_is_refused_before_it_touches_a_socket(worlds: Worlds) -> None:
    meshes = worlds.join(2)
    transport, other = opened(meshes, all_to_all(2, (2,)))
    uses = [
        lambda: transport.send(1, 2, 0, vector(1)),
        lambda: expect(transport, 1, 2),
        lambda: take(transport, 1, 2),
        lambda: transport.watch(print),
        transport.close,
        lambda: transport.abort("it was forked"),
        lambda: opened(meshes[:1], all_to_all(2, (2,))),
        meshes[0].close,
        lambda: meshes[0].abort("it was forked"),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
        child = os.fork()
    if child == 0:
        signal.alarm(10)  # one that hangs ends
        refused = 0
        for use in uses:
            try:
                use()
            except RuntimeError as error:
                refused += "was forked from it, and must join for itself" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(uses)
    transport.send(1, 2, 0, vector(1))
    np.testing.assert_array_equal(receive(other, 0, 2), vector(1))


def test_a_process_that_ends_without_leaving_tells_the_others() -> None:
    program = (
        "import sys; from purine_ref.transports.zeromq import Joining, join; "
        "mesh = join(Joining(1, 2, sys.argv[1])); raise SystemExit(3)"
    )
    where: Future[str] = Future()
    with beside(lambda: join(Joining(0, 2, LOOPBACK, bound=where.set_result))) as joining:
        ended = subprocess.run([sys.executable, "-P", "-c", program, where.result(WATCH)], timeout=WATCH)
        assert ended.returncode == 3
        mesh = joining.result(WATCH)
        with pytest.raises(PeerLost, match=r"^rank 1 is lost: its process ended$"):
            mesh.open("net", "f" * 64, all_to_all(2, (2,)))
        mesh.close()
